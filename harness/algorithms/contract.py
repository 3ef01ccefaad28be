"""Contribute, then fold: what every training algorithm of the harness is.

An algorithm is two functions and a server state that goes in and comes out. It sees
tensors, how stale they are and the rate its schedule asks for; never time, ranks or
transports. So one object runs on a simulated cluster and on a real one.

Shape letters: W contributions at once, P parameters, B frames, D inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor


class Minibatch(NamedTuple):
    """The frames of W minibatches of B frames: ``x [W, B, D]``, ``targets [W, B]`` (int64)."""

    x: Tensor
    targets: Tensor


@dataclass
class Server:
    """The shared model and whatever else the folds change.

    Args:
        model: the shared parameters ``[P]``.
        version: number of folds so far.
        vectors: further ``[P]`` vectors an algorithm keeps, by name.
        numbers: scalars it keeps, by name (counts and switches; exact in float64).
    """

    model: Tensor
    version: int = 0
    vectors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    numbers: dict[str, float] = field(default_factory=dict[str, float])

    def candidates(self) -> dict[str, Tensor]:
        """Every model one could deploy, by name: the iterate, and the vectors kept beside it."""
        return {"iterate": self.model, **self.vectors}


Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``gradient(stack [W, P], x [W, B, D], targets [W, B], out [W, P]) -> summed losses [W]``."""


class Algorithm(Protocol):
    """What an executor needs of an algorithm."""

    def start(self, model: Tensor) -> Server:
        """The server's state before the first fold, from initial parameters ``[P]``."""
        ...

    def contribute(
        self,
        gradient: Gradient,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
    ) -> Tensor:
        """Fill ``out [W, P]`` with the contributions of W workers from their stale replicas.

        Args:
            gradient: the model's summed gradient.
            replicas: ``[W, P]``, what each worker read; may be overwritten.
            minibatches: one for each local step, each with W minibatches of B frames.
            out: the contributions.
            rate: of local steps.

        Returns:
            The losses ``[W]``, summed over all frames, in nats.
        """
        ...

    def fold(
        self, server: Server, contributions: Tensor, staleness: Sequence[int], rate: float
    ) -> None:
        """Enter the contributions ``[W, P]`` of one fold into the server, in place.

        The server's version grows by one, however many contributions there are.
        """
        ...
