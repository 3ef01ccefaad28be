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
from harness.networks.contract import Minibatch, Network, uploaded

LOCAL, ANCHOR, SEEN, COUNT = "local", "anchor", "seen", "count"
"""A worker's parameters, from where it has trained on, the shared model it last saw ``[W, P]``, and
its contributions ``[W]``."""
GOT, WEIGHT = "got", "weight"
"""For each parameter the contributions of its fragment that wait, and their minibatches. Whether
they are enough is decided where they lie: the host would have to wait for the answer."""


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
        names = (MOMENTUM, PENDING, GOT, WEIGHT)
        return Server(model.clone(), tensors={name: torch.zeros_like(model) for name in names})

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
        for k, own in enumerate(self._slices(out.shape[1])):
            theirs = (count % self.fragments == k).unsqueeze(1)
            mine, kept = local[:, own], anchor[:, own]
            out[:, own] = torch.where(theirs, kept - mine, 0.0)
            anchor[:, own] = torch.where(theirs, mine, kept)
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
        given = weights or [1.0] * len(contributions)
        weighed = uploaded(torch.tensor(given, dtype=contributions.dtype), contributions.device)
        for own in self._slices(contributions.shape[1]):
            part, momenta = contributions[:, own], server.tensors
            there = part.ne(0.0).any(1)
            momenta[PENDING][own] += (weighed * there) @ part
            momenta[GOT][own] += there.sum()
            momenta[WEIGHT][own] += (weighed * there).sum()
            self._step(server, own)
        server.version += 1

    def _step(self, server: Server, own: slice) -> None:
        """``OuterOpt(theta_p, sum w D / sum w)`` where enough waits, and then nothing does."""
        model, parts = server.model[own], {n: v[own] for n, v in server.tensors.items()}
        enough = parts[GOT] >= self.needed
        moved, speed = model.clone(), parts[MOMENTUM].clone()
        self.outer.descend_(moved, speed, parts[PENDING] / parts[WEIGHT])
        model.copy_(torch.where(enough, moved, model))
        parts[MOMENTUM].copy_(torch.where(enough, speed, parts[MOMENTUM]))
        for name in (PENDING, GOT, WEIGHT):
            parts[name].masked_fill_(enough, 0.0)

    def _slices(self, size: int) -> list[slice]:
        """Each fragment's place among so many parameters."""
        cuts = [size * k // self.fragments for k in range(self.fragments + 1)]
        return [slice(*edges) for edges in pairwise(cuts)]
