"""DiLoCo by fragments: streaming, eager and elastic.

A `Fragmented` model is averaged fragment by fragment while workers keep training. Each contribution
contains one fragment: the next by the worker's own count. When a worker reads a shared model that
has changed in a fragment, it mixes the shared and its own parameters there. Fragments are equal
contiguous parts of the parameters; in the papers they are whole layers.

- `StreamingDiLoCo`: rounds that average one fragment after the other. Douillard et al. (arXiv
  2501.18512), algorithm 2. In overlapped rounds a worker trains while its fragment is in flight,
  and mixes in the result one round late (the paper's tau and alpha).
- `EagerDiLoCo`: overlapped rounds in which a worker applies its own part before the others' arrive.
  Kale, Douillard and Donchev (arXiv 2502.12996): worker m continues from an outer step along
  ``D_m(t) / W + (sum of the others' D(t - 1)) / W``.
- `ElasticDiLoCo`: elastic, decoupled: a fragment is averaged once a quorum of workers has sent it.
  Douillard et al. (arXiv 2604.21428): no worker waits for another, and contributions are weighted
  by their minibatches. Without the paper's grace window: a complete quorum is folded at once.

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.averaging import MOMENTUM, OuterNesterov
from harness.algorithms.contract import Algorithm, Fold, LocalWork, Memory, Server
from harness.algorithms.descent import PLAIN, Descent, local_steps
from harness.algorithms.stale import PENDING
from harness.base.settings import setting
from harness.networks.contract import upload

LOCAL, ANCHOR, SEEN, COUNT = "local", "anchor", "seen", "count"
"""Names in a memory: a worker's parameters, the point from which its next difference counts, the
shared model that it last read (all ``[W, P]``), and its number of contributions ``[W]``."""

GOT, WEIGHT = "got", "weight"
"""For each parameter, the number of pending contributions of its fragment, and their minibatches.
They are compared with the quorum on the device, so that the host need not wait for the result."""


class Fragmented(Algorithm):
    """Base of algorithms with differences of one fragment as contributions.

    A contribution is negative zero in the fragments that it does not contain, and in its own one a
    difference of zero is positive: so a worker counts even if it has moved nothing.

    Attributes:
        descent: optimizer of local steps.
        outer: the server's step along the mean difference of a fragment.
        fragments: number of fragments.
        mixing: alpha, the weight of a worker's own parameters when it reads changed shared ones.
    """

    in_shards: ClassVar[bool] = False

    descent: Descent
    outer: OuterNesterov
    fragments: int
    mixing: float

    @property
    def sent(self) -> float:
        """The share of one fragment."""
        return 1.0 / self.fragments

    @property
    def needed(self) -> int:
        """Number of contributions of a fragment that trigger its outer step."""
        return 1

    def start(self, model: Tensor) -> Server:
        """A server with a copy of ``model [P]``, and no pending contributions."""
        names = (MOMENTUM, PENDING, GOT, WEIGHT)
        return Server(model.clone(), tensors={name: torch.zeros_like(model) for name in names})

    def contribute(self, work: LocalWork) -> Tensor:
        """Mix in changes of the shared model, take local steps, send the next fragment."""
        network, replicas, minibatches, out, rate, memory = work
        local = self._mix_changes(replicas, memory)
        losses = local_steps(self.descent, network, local, minibatches, rate, memory)
        anchor, count = memory.tensors[ANCHOR], memory.tensors[COUNT]
        for k, fragment in enumerate(self._slices(out.shape[1])):
            theirs = (count % self.fragments == k).unsqueeze(1)
            mine, base = local[:, fragment], anchor[:, fragment]
            out[:, fragment] = torch.where(theirs, base - mine + 0.0, -0.0)
            anchor[:, fragment] = torch.where(theirs, mine, base)
        count.add_(1.0)
        return losses

    def _mix_changes(self, replicas: Tensor, memory: Memory) -> Tensor:
        """The workers' own parameters ``[W, P]``, mixed with the shared ones that have changed."""
        tensors = memory.tensors
        if LOCAL not in tensors:
            count = torch.zeros(len(replicas), dtype=torch.float64, device=replicas.device)
            tensors |= {name: replicas.clone() for name in (LOCAL, ANCHOR, SEEN)} | {COUNT: count}
        in_flight = torch.tensor([*memory.in_flight] or [0.0], dtype=torch.float64)
        folded = tensors[COUNT] - 1.0 - upload(in_flight, replicas.device)
        for k, fragment in enumerate(self._slices(replicas.shape[1])):
            stacks = replicas, tensors[LOCAL], tensors[ANCHOR]
            shared, local, anchor = (stack[:, fragment] for stack in stacks)
            changed = (shared != tensors[SEEN][:, fragment]).any(1)
            if self.needed == 1:  # a step of zero is a change, too
                changed |= (folded >= 0.0) & (folded % self.fragments == k)
            mask = changed.unsqueeze(1)
            local.copy_(torch.where(mask, torch.lerp(shared, local, self.mixing), local))
            anchor.copy_(torch.where(mask, shared, anchor))
        tensors[SEEN] = replicas.clone()
        return tensors[LOCAL]

    def fold(self, server: Server, fold: Fold) -> None:
        """Add ``contributions [W, P]`` to the sums of their fragments; step complete fragments."""
        contributions = fold.contributions
        weights = fold.weights or [1.0] * len(contributions)
        weighed = upload(torch.tensor(weights, dtype=contributions.dtype), contributions.device)
        for fragment in self._slices(contributions.shape[1]):
            part, momenta = contributions[:, fragment], server.tensors
            presence = ~((part == 0.0) & part.signbit()).all(1)
            momenta[PENDING][fragment] += (weighed * presence) @ part
            momenta[GOT][fragment] += presence.sum()
            momenta[WEIGHT][fragment] += (weighed * presence).sum()
            self._step(server, fragment)
        server.version += 1

    def _step(self, server: Server, fragment: slice) -> None:
        """``OuterOpt(theta_p, sum w D / sum w)`` for complete fragments, which are then cleared."""
        model, parts = server.model[fragment], {n: v[fragment] for n, v in server.tensors.items()}
        enough = parts[GOT] >= self.needed
        moved, speed = model.clone(), parts[MOMENTUM].clone()
        self.outer.descend_(moved, speed, parts[PENDING] / parts[WEIGHT])
        model.copy_(torch.where(enough, moved, model))
        parts[MOMENTUM].copy_(torch.where(enough, speed, parts[MOMENTUM]))
        for name in (PENDING, GOT, WEIGHT):
            parts[name].masked_fill_(enough, 0.0)

    def _slices(self, size: int) -> list[slice]:
        """The slice of each fragment in a vector of ``size`` parameters."""
        cuts = [size * k // self.fragments for k in range(self.fragments + 1)]
        return [slice(*edges) for edges in pairwise(cuts)]


@dataclass(frozen=True)
class StreamingDiLoCo(Fragmented):
    """``theta_p <- OuterOpt(theta_p, mean D)`` for one fragment p per round.

    With one fragment and no mixing it is DiLoCo. For DiLoCo's H local steps per outer step of a
    fragment, a round has H / P steps.

    Args:
        descent: optimizer of local steps; AdamW in the paper.
        outer: the server's step.
        fragments: P, the number of fragments.
        mixing: alpha, the weight of a worker's own parameters; 0.5 in the paper under overlap.
    """

    rounds: ClassVar[bool] = True

    descent: Descent = PLAIN
    outer: OuterNesterov = field(default_factory=OuterNesterov)
    fragments: int = setting(4, at_least=1, at_most=4096)
    mixing: float = setting(0.0, at_least=0.0, at_most=1.0)


LAST, AHEAD, SPEED = "last", "ahead", "speed"
"""Names in a memory: a worker's last difference, its lead over the shared model, and the momentum
of that lead."""


@dataclass(frozen=True)
class EagerDiLoCo(Algorithm):
    """Worker m steps along ``D(t - 1) + (D_m(t) - D_m(t - 1)) / W`` in overlapped rounds.

    An outer step is linear in its gradients. So the model of worker m is the shared one, which has
    stepped along ``D(t - 1)``, plus an outer loop of the worker's own from zero along the rest. At
    A worker that has nothing in flight when it reads starts from the shared model alone.

    Args:
        workers: W, the number of workers of the run.
        descent: optimizer of local steps; AdamW in the paper.
        outer: the outer step of the server and of the workers.
    """

    rounds: ClassVar[bool] = True

    workers: int = setting(at_least=1)
    descent: Descent = PLAIN
    outer: OuterNesterov = field(default_factory=OuterNesterov)

    def trouble(self, workers: int, under_way: int) -> tuple[str, str] | None:
        """Reject another number of workers, and rounds without overlap.

        Without overlap, a worker's own part would count twice.
        """
        if workers != self.workers:
            reason = f"{self.workers} is not allowed; allowed: {workers}, as the run has"
            return "algorithm.workers", reason
        if under_way == workers:
            return "protocol.overlap", "false is not allowed with EagerDiLoCo; allowed: true"
        return None

    def start(self, model: Tensor) -> Server:
        """A server with a copy of ``model [P]`` and zero momentum."""
        return Server(model.clone(), tensors={MOMENTUM: torch.zeros_like(model)})

    def contribute(self, work: LocalWork) -> Tensor:
        """Take local steps from the worker's own model; writes their difference to ``out``."""
        network, replicas, minibatches, out, rate, memory = work
        tensors = memory.tensors
        if LAST not in tensors:
            tensors |= {name: torch.zeros_like(replicas) for name in (LAST, AHEAD, SPEED)}
        # With nothing in flight, the shared model contains all that the worker has sent.
        for row, in_flight in enumerate(memory.in_flight or [False] * len(replicas)):
            for name in (LAST, AHEAD, SPEED) if not in_flight else ():
                tensors[name][row] = 0.0
        local = replicas.add_(tensors[AHEAD])
        out.copy_(local)
        losses = local_steps(self.descent, network, local, minibatches, rate, memory)
        out.sub_(local)
        news = (out - tensors[LAST]).div_(self.workers)
        self.outer.descend_(tensors[AHEAD], tensors[SPEED], news)
        tensors[LAST] = out.clone()
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """Take an outer step along the mean of ``contributions [W, P]``."""
        slope = torch.mean(fold.contributions, 0)
        self.outer.descend_(server.model, server.tensors[MOMENTUM], slope)
        server.version += 1


@dataclass(frozen=True)
class ElasticDiLoCo(Fragmented):
    """``theta_p <- OuterOpt(theta_p, sum w D / sum w)`` over a quorum's contributions of p.

    w is the number of minibatches that a contribution was computed from.

    Args:
        descent: optimizer of local steps; AdamW in the paper.
        outer: the server's step.
        fragments: P, the number of fragments.
        mixing: the weight of a worker's own parameters when it reads a changed fragment.
        quorum: number of contributions of a fragment that trigger its outer step.
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
