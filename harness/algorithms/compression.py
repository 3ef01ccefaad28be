"""Compressed contributions with error feedback, and their coders.

A coder compresses a contribution and decompresses it at the receiver; here only the decompressed
result is computed. With error feedback a worker adds the compression error to its next contribution
(Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et al., "Error feedback fixes
SignSGD", 2019), so at any time the sum of all sent vectors and the residue is the sum of the
uncompressed contributions.

Shape letters: W workers, P parameters, n × m a layer's weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.contract import Algorithm, Fold, LocalWork, Server
from harness.base.settings import setting
from harness.networks.contract import Network, RuledNetwork
from harness.networks.unused import Unused, find_unused, mark_unused_

FACTOR = "factor"


@dataclass(frozen=True)
class TopK:
    """The largest entries and their indices (Lin et al., "Deep gradient compression", 2018).

    The paper's momentum correction is a setting of `Compressed`. Its local clipping, of each of N
    workers' gradients to ``limit / sqrt(N)``, is the setting ``clip`` of a run. Its warm-up, in
    which ``kept`` falls from 25% to 0.1% over the first passes, is left out.

    Args:
        kept: share of the entries that is sent; at least one entry.
    """

    adds_up: ClassVar[bool] = False
    """Whether messages can be added up on their way, compressed."""

    kept: float = setting(0.01, above=0.0, at_most=1.0)

    @property
    def sent(self) -> float:
        """Twice ``kept``: an entry of 4 bytes is sent with an index of 4 bytes."""
        return 2.0 * self.kept

    def compress(self, network: Network, vectors: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Each row of ``vectors [W, P]`` with all but its largest entries set to zero."""
        del network, state
        count = math.ceil(self.kept * vectors.shape[1])
        places = vectors.abs().topk(count, dim=1).indices
        return torch.zeros_like(vectors).scatter_(1, places, vectors.gather(1, places))


@dataclass(frozen=True)
class Int8:
    """Integers from -127 to 127, with a scale for each block (absmax quantisation).

    Args:
        block: number of entries that share a scale.
    """

    adds_up: ClassVar[bool] = False
    """Whether messages can be added up on their way, compressed."""

    block: int = setting(256, at_least=1, at_most=2**30)

    @property
    def sent(self) -> float:
        """One byte for an entry of 4, and 4 bytes more for each block."""
        return 0.25 + 1.0 / self.block

    def compress(self, network: Network, vectors: Tensor, state: dict[str, Tensor]) -> Tensor:
        """``vectors [W, P]``, each entry rounded to a multiple of its block's step."""
        del network, state
        workers, entries = vectors.shape
        padded = torch.nn.functional.pad(vectors, (0, -entries % self.block))
        blocks = padded.view(workers, -1, self.block)
        # A block of zeros has a step of 0, and quotients that are not numbers.
        step = blocks.abs().amax(dim=2, keepdim=True).div_(127.0)
        levels = torch.where(step > 0.0, blocks / step, 0.0).round_()
        return (levels * step).view(workers, -1)[:, :entries]


@dataclass(frozen=True)
class PowerSgd:
    """Two thin factors of each layer's weights (Vogels, Karimireddy and Jaggi, 1905.13727).

    One step of the power method per contribution, ``P = orthonormal(M Q)``, ``Q = M' P``, from the
    Q of the previous contribution (the paper's algorithm 1). Each worker has factors of its own;
    the paper averages P over workers between the two products, by an exchange of its own. Biases
    are sent uncompressed.

    Args:
        rank: number of columns of a factor.
    """

    adds_up: ClassVar[bool] = True
    """Whether messages can be added up on their way, compressed."""

    rank: int = setting(4, at_least=1, at_most=2**20)

    @property
    def sent(self) -> float:
        """1, since the share depends on the layers: set a cluster's ``compression.ratio``."""
        return 1.0

    def compress(self, network: Network, vectors: Tensor, state: dict[str, Tensor]) -> Tensor:
        """``vectors [W, P]`` with each layer's weights reduced to rank ``rank`` or less."""
        out = vectors.clone()
        for number, weight in enumerate(network.matrices(out)):
            name = f"{FACTOR}.{number}"
            rank = min(self.rank, *weight.shape[1:])
            if name not in state:
                state[name] = _first(weight, rank)
            basis = cast(Any, torch.linalg).qr(weight @ state[name])[0]
            state[name] = weight.transpose(1, 2) @ basis
            weight.copy_(basis @ state[name].transpose(1, 2))
        return out


def _first(weight: Tensor, rank: int) -> Tensor:
    """Initial factor ``[W, m, rank]``, equal for all workers and runs."""
    draw = torch.Generator().manual_seed(weight.shape[2])
    start = torch.randn(weight.shape[2], rank, generator=draw, dtype=torch.float64)
    return start.to(weight).expand(len(weight), -1, -1).contiguous()


Coder = TopK | Int8 | PowerSgd

OWN = "coder."

RESIDUE = "residue"

SPEED = "speed"
"""Name of the momentum that is accumulated before compression."""


@dataclass(frozen=True)
class Compressed(Algorithm):
    """Averaging of gradients or models with compressed contributions and error feedback.

    With v a gradient, or the difference ``read - moved`` of a model, and e the residue, a worker
    sends ``C(v + e)`` and keeps ``e <- v + e - C(v + e)``. With momentum correction v is
    ``u <- momentum u + gradient``, and u is set to zero in the entries that are sent (Lin et al.,
    arXiv 1712.01887, section 3.2 and algorithm 1, momentum factor masking).

    Args:
        averaging: the algorithm for contributions and folds.
        coder: C, the compression of the contributions.
        feedback: whether workers add e to their next contribution; otherwise e is 0.
        momentum: of the momentum correction, for gradients with `TopK`; 0 for none.
    """

    rounds: ClassVar[bool] = True

    averaging: GradientAveraging | ModelAveraging = field(default_factory=GradientAveraging)
    coder: Coder = field(default_factory=TopK)
    feedback: bool = True
    momentum: float = setting(0.0, at_least=0.0, at_most=1.0)

    def trouble(self, workers: int, under_way: int) -> tuple[str, str] | None:
        """A momentum correction of other messages than the largest entries of gradients."""
        del workers, under_way
        able = isinstance(self.averaging, GradientAveraging) and isinstance(self.coder, TopK)
        if self.momentum and not able:
            allowed = "allowed with GradientAveraging and TopK; otherwise 0"
            return "algorithm.momentum", f"{self.momentum:g}; {allowed}"
        return None

    @property
    def sent(self) -> float:
        """The coder's ``sent``."""
        return self.coder.sent

    @property
    def optimizes_in_server(self) -> bool:
        """See `Algorithm`."""
        return self.averaging.optimizes_in_server

    def on(self, network: Network) -> Compressed:
        """See `Algorithm`; rules apply to a worker's gradient before it is compressed."""
        if isinstance(network, RuledNetwork):
            network = network.without_rules()
        averaging = cast("GradientAveraging | ModelAveraging", self.averaging.on(network))
        return replace(self, averaging=averaging)

    def start(self, model: Tensor) -> Server:
        """The server of ``averaging``, from ``model [P]``."""
        return self.averaging.start(model)

    def contribute(self, work: LocalWork) -> Tensor:
        """Write each worker's decompressed gradient or difference to ``out [W, P]``."""
        network, replicas, _, out, _, memory = work
        mine = {n: t for n, t in memory.tensors.items() if n.startswith(OWN)}
        state = {name.removeprefix(OWN): tensor for name, tensor in mine.items()}
        theirs = {n: t for n, t in memory.tensors.items() if n not in mine}
        inner = replace(memory, tensors=theirs)
        start = replicas.clone() if isinstance(self.averaging, ModelAveraging) else None
        losses = self.averaging.contribute(work._replace(memory=inner))
        averaging, ruled, unused = self.averaging, work.network, Unused()
        if isinstance(averaging, GradientAveraging) and averaging.follows_rules(ruled):
            unused = find_unused(out, ruled.sizes)
            ruled.apply_rules_(out, replicas, unused)
        message = out if start is None else start.sub_(out)
        if self.momentum:
            message = message + self.momentum * state.get(SPEED, torch.zeros_like(message))
            state[SPEED] = message
        if self.feedback and RESIDUE in state:
            message = message + state[RESIDUE]
        arrived = self.coder.compress(network, message, state)
        if isinstance(network, RuledNetwork) and unused:
            mark_unused_(arrived, network.sizes, unused)  # their residues wait for a gradient
        if self.momentum:
            state[SPEED] = torch.where(arrived == 0.0, state[SPEED], 0.0)
        if self.feedback:
            state[RESIDUE] = message - arrived
        out.copy_(arrived)
        memory.tensors = inner.tensors | {OWN + name: t for name, t in state.items()}
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """Fold ``contributions [W, P]``; a difference is subtracted from the present model."""
        arrived = fold.contributions
        if isinstance(self.averaging, ModelAveraging):
            arrived = torch.sub(server.model, arrived)
        # Now relative to the present model: `ModelAveraging` must not correct for staleness again.
        staleness = [0] * len(arrived)
        self.averaging.fold(server, fold._replace(contributions=arrived, staleness=staleness))
