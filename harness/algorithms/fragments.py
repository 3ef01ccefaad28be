"""A model that is averaged fragment by fragment, while workers train on.

Of every contribution one fragment is handed in: the next of the worker's own count. The others go
on being trained where they are. When a worker finds that the shared model has changed in a
fragment, it mixes the two.

Douillard et al. (arXiv 2501.18512), algorithm 2. Fragments are equal contiguous parts of the
parameters; the paper's are whole layers. Shape letters: W workers, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Memory, Server
from harness.algorithms.differences import PENDING
from harness.algorithms.local_descent import Descent, local_steps
from harness.algorithms.outer_step import MOMENTUM, OuterNesterov
from harness.network import Minibatch, Network

LOCAL, ANCHOR, SEEN, COUNT = "local", "anchor", "seen", "count"
"""A worker's parameters, from where it has trained on, the shared model it last saw ``[W, P]``, and
its contributions ``[W]``."""


class Fragmented(Algorithm):
    """An algorithm whose contributions are differences of one fragment, zero elsewhere.

    Attributes:
        descent: makes the local steps.
        outer: the server's step along the mean of what it got of a fragment.
        fragments: how many.
        mixing: alpha, the part of its own parameters that a worker keeps when it finds new ones.
    """

    in_shards: ClassVar[bool] = False

    descent: Descent
    outer: OuterNesterov
    fragments: int
    mixing: float

    @property
    def sent(self) -> float:
        """One fragment."""
        return 1.0 / self.fragments

    @property
    def needed(self) -> int:
        """Contributions of a fragment for a step of it."""
        return 1

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``, and has got nothing of any fragment."""
        momenta = {name: torch.zeros_like(model) for name in (MOMENTUM, PENDING)}
        counts = {f"{what}/{k}": 0.0 for what in ("got", "weight") for k in range(self.fragments)}
        return Server(model.clone(), momenta=momenta, numbers=counts)

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """Take in what is new, make the local steps, hand in the next fragment's difference."""
        local = self._taken_in(replicas, memory)
        losses = local_steps(self.descent, network, local, minibatches, rate, memory)
        anchor, count = memory.tensors[ANCHOR], memory.tensors[COUNT]
        out.zero_()
        for worker in range(len(out)):
            own = slice(*self._edges(out.shape[1])[int(count[worker].item()) % self.fragments])
            torch.sub(anchor[worker, own], local[worker, own], out=out[worker, own])
            anchor[worker, own] = local[worker, own]
        count.add_(1.0)
        return losses

    def _taken_in(self, replicas: Tensor, memory: Memory) -> Tensor:
        """The workers' own parameters ``[W, P]``, mixed with what they find changed."""
        known = memory.tensors
        if LOCAL not in known:
            count = torch.zeros(len(replicas), dtype=torch.float64, device=replicas.device)
            known |= {name: replicas.clone() for name in (LOCAL, ANCHOR, SEEN)} | {COUNT: count}
        changed = replicas != known[SEEN]
        mixed = torch.lerp(replicas, known[LOCAL], self.mixing)
        known[LOCAL] = torch.where(changed, mixed, known[LOCAL])
        known[ANCHOR] = torch.where(changed, replicas, known[ANCHOR])
        known[SEEN] = replicas.clone()
        return known[LOCAL]

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """Add up what ``contributions [W, P]`` have of each fragment; a step where it is enough."""
        del staleness, rate, workers
        weighed = contributions.new_tensor(weights or [1.0] * len(contributions))
        for k, edge in enumerate(self._edges(contributions.shape[1])):
            part = contributions[:, slice(*edge)]
            there = part.ne(0.0).any(1)
            if not there.any():
                continue
            server.momenta[PENDING][slice(*edge)] += (weighed * there) @ part
            server.numbers[f"got/{k}"] += float(there.sum())
            server.numbers[f"weight/{k}"] += float((weighed * there).sum())
            if server.numbers[f"got/{k}"] >= self.needed:
                self._step(server, k, slice(*edge))
        server.version += 1

    def _step(self, server: Server, k: int, own: slice) -> None:
        """``OuterOpt(theta_p, sum w D / sum w)``, and nothing waits any more."""
        pending = server.momenta[PENDING][own]
        slope = pending / server.numbers[f"weight/{k}"]
        self.outer.descend_(server.model[own], server.momenta[MOMENTUM][own], slope)
        pending.zero_()
        server.numbers |= {f"got/{k}": 0.0, f"weight/{k}": 0.0}

    def _edges(self, size: int) -> list[tuple[int, int]]:
        cuts = [size * k // self.fragments for k in range(self.fragments + 1)]
        return list(pairwise(cuts))
