"""DiLoCo by fragments: streaming, eager and elastic.

A model that is averaged fragment by fragment, while workers train on. Of every contribution one
fragment is handed in: the next of the worker's own count. The others go on being trained where
they are. When a worker finds that the shared model has changed in a fragment, it mixes the two.

Douillard et al. (arXiv 2501.18512), algorithm 2. Fragments are equal contiguous parts of the
parameters; the paper's are whole layers. Shape letters: W workers, P parameters.

Streaming DiLoCo: rounds in which one fragment of the model is averaged after the other. Douillard
et al. (arXiv 2501.18512), algorithm 2. Under overlapped rounds a worker trains on while its
fragment travels, and mixes in what comes back a round late (their tau and alpha).

Eager DiLoCo: overlapped rounds in which a worker knows its own part before the others' comes.
Kale, Douillard and Donchev (arXiv 2502.12996): worker m goes on from an outer step along ``D_m(t)
/ W + (sum of the others' D(t - 1)) / W``.

Elastic, decoupled DiLoCo: a fragment is averaged once enough workers have handed it in. Douillard
et al. (arXiv 2604.21428): no worker waits for another, and who has done more counts for more.
Without their grace window: a quorum that is complete is folded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor

from harness.algorithms.averaging import MOMENTUM, OuterNesterov
from harness.algorithms.contract import Algorithm, Fold, LocalWork, Memory, Server
from harness.algorithms.descent import PLAIN, Descent, local_steps
from harness.algorithms.stale import PENDING
from harness.base.settings import setting
from harness.networks.contract import upload

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

    def contribute(self, work: LocalWork) -> Tensor:
        """Take in what is new, make the local steps, hand in the next fragment's difference."""
        network, replicas, minibatches, out, rate, memory = work
        local = self._mix_changes(replicas, memory)
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

    def _mix_changes(self, replicas: Tensor, memory: Memory) -> Tensor:
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

    def fold(self, server: Server, fold: Fold) -> None:
        """Add up what ``contributions [W, P]`` have of each fragment; a step where it is enough."""
        contributions = fold.contributions
        given = fold.weights or [1.0] * len(contributions)
        weighed = upload(torch.tensor(given, dtype=contributions.dtype), contributions.device)
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


@dataclass(frozen=True)
class StreamingDiLoCo(Fragmented):
    """With one fragment and no mixing it is DiLoCo; a round has H / P of its local steps.

    Args:
        descent: makes the local steps, in the paper AdamW.
        outer: the server's step.
        fragments: P.
        mixing: alpha, a worker's own part in what it goes on with; 0.5 in the paper under overlap.
    """

    rounds: ClassVar[bool] = True

    descent: Descent = PLAIN
    outer: OuterNesterov = field(default_factory=OuterNesterov)
    fragments: int = setting(4, at_least=1, at_most=4096)
    mixing: float = setting(0.0, at_least=0.0, at_most=1.0)


LAST, AHEAD, SPEED = "last", "ahead", "speed"
"""A worker's last difference, how far it is ahead of the shared model, and the momentum of that."""


@dataclass(frozen=True)
class EagerDiLoCo(Algorithm):
    """A worker goes on from the shared model of a round ago, and its own steps since.

    An outer step is linear in its gradients. So the model of worker m, which has stepped along
    ``D(t - 1) + (D_m(t) - D_m(t - 1)) / W``, is the shared one, which has stepped along
    ``D(t - 1)``, plus an outer loop of the worker's own from zero along the rest. A pass begins
    with nothing under way, so from the shared model alone.

    Args:
        workers: W.
        descent: makes the local steps, in the paper AdamW.
        outer: the server's step, and the worker's.
    """

    rounds: ClassVar[bool] = True

    workers: int = setting(at_least=1)
    descent: Descent = PLAIN
    outer: OuterNesterov = field(default_factory=OuterNesterov)

    def with_workers(self, workers: int) -> Self:
        """See `Algorithm`."""
        return replace(self, workers=workers)

    def trouble(self, workers: int, under_way: int) -> tuple[str, str] | None:
        """Other workers; or rounds without overlap, where a worker's own part would count twice."""
        if workers != self.workers:
            told = f"{self.workers} is not allowed; allowed: {workers}, as the run has"
            return "algorithm.workers", told
        if under_way == workers:
            return "protocol.overlap", "false is not allowed with EagerDiLoCo; allowed: true"
        return None

    def start(self, model: Tensor) -> Server:
        """A server that holds a copy of ``model [P]``, and a momentum of zero."""
        return Server(model.clone(), tensors={MOMENTUM: torch.zeros_like(model)})

    def contribute(self, work: LocalWork) -> Tensor:
        """Local steps from the worker's own model; their difference into ``out [W, P]``."""
        network, replicas, minibatches, out, rate, memory = work
        known = memory.tensors
        # Nothing is under way as a pass begins: the shared model has it all.
        if memory.new_pass or LAST not in known:
            known |= {name: torch.zeros_like(replicas) for name in (LAST, AHEAD, SPEED)}
        local = replicas.add_(known[AHEAD])
        out.copy_(local)
        losses = local_steps(self.descent, network, local, minibatches, rate, memory)
        out.sub_(local)
        news = (out - known[LAST]).div_(self.workers)
        self.outer.descend_(known[AHEAD], known[SPEED], news)
        known[LAST] = out.clone()
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """An outer step along the mean of ``contributions [W, P]``."""
        slope = torch.mean(fold.contributions, 0)
        self.outer.descend_(server.model, server.tensors[MOMENTUM], slope)
        server.version += 1


@dataclass(frozen=True)
class ElasticDiLoCo(Fragmented):
    """``theta_p <- OuterOpt(theta_p, sum w D / sum w)`` over a quorum's contributions of p.

    w is the minibatches that a contribution was computed from.

    Args:
        descent: makes the local steps, in the paper AdamW.
        outer: the server's step.
        fragments: P.
        mixing: a worker's own part in what it goes on with when it finds a new fragment.
        quorum: contributions of a fragment for a step of it.
    """

    descent: Descent = PLAIN
    outer: OuterNesterov = field(default_factory=OuterNesterov)
    fragments: int = setting(1, at_least=1, at_most=4096)
    mixing: float = setting(0.0, at_least=0.0, at_most=1.0)
    quorum: int = setting(2, at_least=1)

    @property
    def needed(self) -> int:
        """The quorum."""
        return self.quorum
