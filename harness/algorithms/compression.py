"""Compressed contributions with error feedback, and their coders.

Coders: what workers send in the place of a contribution, and what is made of it again. Only what
comes out at the other end is computed here. Shape letters: W workers, P parameters, n × m a
layer's weights.

Compressed contributions with error feedback, in rounds. What a coder leaves out is not lost: a
worker adds it to its next contribution (Seide et al., "1-bit stochastic gradient descent", 2014;
Karimireddy et al., "Error feedback fixes SignSGD", 2019), so that at any time the sum of what it
has sent and its residue is the sum of what it would have sent.

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.contract import Algorithm, Fold, LocalWork, Memory, Server
from harness.base.settings import setting
from harness.networks.contract import Network

__all__ = ["Coder", "Compressed", "Int8", "PowerSgd", "TopK"]

FACTOR = "factor"


@dataclass(frozen=True)
class TopK:
    """The largest entries and where they are (Lin et al., "Deep gradient compression", 2018).

    Args:
        kept: their share of all, at least one.
    """

    kept: float = setting(0.01, above=0.0, at_most=1.0)

    @property
    def sent(self) -> float:
        """An entry of 4 bytes goes with a place of 4."""
        return 2.0 * self.kept

    def compress(self, network: Network, vectors: Tensor, known: dict[str, Tensor]) -> Tensor:
        """Of each row of ``vectors [W, P]`` the entries that are kept, zeros elsewhere."""
        del network, known
        count = math.ceil(self.kept * vectors.shape[1])
        places = vectors.abs().topk(count, dim=1).indices
        return torch.zeros_like(vectors).scatter_(1, places, vectors.gather(1, places))


@dataclass(frozen=True)
class Int8:
    """Whole numbers from -127 to 127, and a scale for each block (absmax quantisation).

    Args:
        block: entries that share a scale.
    """

    block: int = setting(256, at_least=1, at_most=2**30)

    @property
    def sent(self) -> float:
        """An entry has one byte in the place of 4, a block 4 more."""
        return 0.25 + 1.0 / self.block

    def compress(self, network: Network, vectors: Tensor, known: dict[str, Tensor]) -> Tensor:
        """``vectors [W, P]``, each entry at most half a step of its block away."""
        del network, known
        workers, entries = vectors.shape
        padded = torch.nn.functional.pad(vectors, (0, -entries % self.block))
        blocks = padded.view(workers, -1, self.block)
        step = blocks.abs().amax(dim=2, keepdim=True).div_(127.0)
        whole = torch.where(step > 0.0, blocks / step, 0.0).round_()
        return (whole * step).view(workers, -1)[:, :entries]


@dataclass(frozen=True)
class PowerSgd:
    """Two thin factors of each layer's weights (Vogels, Karimireddy and Jaggi, 1905.13727).

    One step of the power method a contribution, ``P = orthonormal(M Q)``, ``Q = M' P``, from the Q
    of the contribution before (algorithm 1 there). Each worker's factors are its own: there the
    mean of P is taken between the two products, which is an exchange of its own. Biases go as they
    are.

    Args:
        rank: columns of a factor.
    """

    rank: int = setting(4, at_least=1, at_most=2**20)

    @property
    def sent(self) -> float:
        """It depends on the layers: a cluster's ``compression.ratio`` is to say it."""
        return 1.0

    def share(self, sizes: Sequence[int]) -> float:
        """Of the parameters of a network with levels of these sizes, what is sent."""
        layers = list(pairwise(sizes))
        thin = sum(min(self.rank, n, m) * (n + m) for m, n in layers) + sum(sizes[1:])
        return thin / sum(n * m + n for m, n in layers)

    def compress(self, network: Network, vectors: Tensor, known: dict[str, Tensor]) -> Tensor:
        """``vectors [W, P]`` with each layer's weights of at most that rank."""
        out = vectors.clone()
        for number, weight in enumerate(network.matrices(out)):
            name = f"{FACTOR}.{number}"
            rank = min(self.rank, *weight.shape[1:])
            if name not in known:
                known[name] = _first(weight, rank)
            left = cast(Any, torch.linalg).qr(weight @ known[name])[0]
            known[name] = weight.transpose(1, 2) @ left
            weight.copy_(left @ known[name].transpose(1, 2))
        return out


def _first(weight: Tensor, rank: int) -> Tensor:
    """``[W, m, rank]``: the factor to begin with, equal for all workers and runs."""
    draw = torch.Generator().manual_seed(weight.shape[2])
    start = torch.randn(weight.shape[2], rank, generator=draw, dtype=torch.float64)
    return start.to(weight).expand(len(weight), -1, -1).contiguous()


Coder = TopK | Int8 | PowerSgd

OWN = "coder."

RESIDUE = "residue"


@dataclass(frozen=True)
class Compressed(Algorithm):
    """Averaging of gradients, or of models, whose contributions go through a coder.

    Models go as the difference ``read - moved`` to what was read, which is small.

    Args:
        averaging: what is averaged, and what is made of the mean.
        coder: what is sent in its place.
        feedback: whether workers keep what the coder leaves out.
    """

    rounds: ClassVar[bool] = True

    averaging: GradientAveraging | ModelAveraging = field(default_factory=GradientAveraging)
    coder: Coder = field(default_factory=TopK)
    feedback: bool = True

    @property
    def sent(self) -> float:
        """The coder's share."""
        return self.coder.sent

    def start(self, model: Tensor) -> Server:
        """As of what is averaged, from ``model [P]``."""
        return self.averaging.start(model)

    def contribute(self, work: LocalWork) -> Tensor:
        """What arrives of each worker's gradient or difference, into ``out [W, P]``."""
        network, replicas, _, out, _, memory = work
        mine = {n: t for n, t in memory.tensors.items() if n.startswith(OWN)}
        known = {name.removeprefix(OWN): tensor for name, tensor in mine.items()}
        inner = Memory({n: t for n, t in memory.tensors.items() if n not in mine}, memory.new_pass)
        read = replicas.clone() if isinstance(self.averaging, ModelAveraging) else None
        losses = self.averaging.contribute(work._replace(memory=inner))
        wanted = out if read is None else read.sub_(out)
        if self.feedback and RESIDUE in known:
            wanted = wanted + known[RESIDUE]
        arrived = self.coder.compress(network, wanted, known)
        if self.feedback:
            known[RESIDUE] = wanted - arrived
        out.copy_(arrived)
        memory.tensors = inner.tensors | {OWN + name: t for name, t in known.items()}
        return losses

    def fold(self, server: Server, fold: Fold) -> None:
        """Fold what has arrived, ``contributions [W, P]``; a difference counts from the model."""
        arrived = fold.contributions
        if isinstance(self.averaging, ModelAveraging):
            arrived = torch.sub(server.model, arrived)
        fresh = [0] * len(arrived)
        self.averaging.fold(server, fold._replace(contributions=arrived, staleness=fresh))
