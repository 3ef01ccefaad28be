"""Contribute, then fold: what every training algorithm of the harness is.

An algorithm is two functions and a server state that goes in and comes out. It sees
tensors, how stale they are and the rate its schedule asks for; never time, ranks or
transports. So one object runs on a simulated cluster and on a real one.

Shape letters: W contributions at once, P parameters, B frames, D inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
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
        self, gradient: Gradient, replicas: Tensor, minibatch: Minibatch, out: Tensor
    ) -> Tensor:
        """Fill ``out [W, P]`` with the contributions of W workers from their stale replicas.

        Returns the losses ``[W]``, summed over each minibatch, in nats.
        """
        ...

    def fold(self, server: Server, contribution: Tensor, *, staleness: int, rate: float) -> None:
        """Enter one contribution ``[P]`` into the server, in place; its version grows by one."""
        ...


@torch.no_grad()
def copy_server(server: Server) -> Server:
    """An independent copy of a server's state."""
    vectors = {name: vector.clone() for name, vector in server.vectors.items()}
    return Server(server.model.clone(), server.version, vectors, dict(server.numbers))
