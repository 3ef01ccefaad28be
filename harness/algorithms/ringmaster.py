"""Ringmaster: asynchronous SGD that leaves out gradients with too large a delay.

Maranjyan, Tyurin and Richtárik (arXiv 2501.16168), algorithm 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from harness.algorithms.contract import Server
from harness.algorithms.gradients import Gradients
from harness.base.settings import setting

USED = "used"
"""The server's number of gradients used so far."""


@dataclass(frozen=True)
class Ringmaster(Gradients):
    """``theta <- theta - rate g`` if fewer than ``most`` gradients were used since g's read.

    A gradient that is left out makes a version too, which has the model of the one before; the
    paper's delay counts used ones only. So the server remembers at which versions the last
    ``most`` were used.

    Args:
        most: R, the delay from which on a gradient is not used.
    """

    in_shards: ClassVar[bool] = False

    most: int = setting(16, at_least=1, at_most=65536)

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]`` and has used nothing."""
        last = {_name(k): -1.0 for k in range(self.most)}
        return Server(model.clone(), numbers={USED: 0.0, **last})

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """A step along each of ``contributions [W, P]`` that is used."""
        del workers, weights
        for contribution, tau in zip(contributions, staleness, strict=True):
            place = _name(int(server.numbers[USED]) % self.most)
            if server.numbers[place] < server.changes - tau:
                server.model.sub_(contribution, alpha=rate)
                server.numbers[place] = float(server.changes)
                server.numbers[USED] += 1.0
        server.version += 1


def _name(place: int) -> str:
    """Name of the place for when one of the last gradients was used, in changes of the model."""
    return f"used/{place}"
