"""Compressed contributions with error feedback, in rounds.

What a coder leaves out is not lost: a worker adds it to its next contribution (Seide et al.,
"1-bit stochastic gradient descent", 2014; Karimireddy et al., "Error feedback fixes SignSGD",
2019), so that at any time the sum of what it has sent and its residue is the sum of what it would
have sent.

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from harness.algorithms.coders import Coder, TopK
from harness.algorithms.contract import Algorithm, Memory, Server
from harness.algorithms.gradient_averaging import GradientAveraging
from harness.algorithms.model_averaging import ModelAveraging
from harness.networks.contract import Minibatch, Network

__all__ = ["Compressed"]

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

    def contribute(
        self,
        network: Network,
        replicas: Tensor,
        minibatches: Sequence[Minibatch],
        out: Tensor,
        rate: float,
        memory: Memory,
    ) -> Tensor:
        """What arrives of each worker's gradient or difference, into ``out [W, P]``."""
        mine = {n: t for n, t in memory.tensors.items() if n.startswith(OWN)}
        known = {name.removeprefix(OWN): tensor for name, tensor in mine.items()}
        inner = Memory({n: t for n, t in memory.tensors.items() if n not in mine}, memory.new_pass)
        read = replicas.clone() if isinstance(self.averaging, ModelAveraging) else None
        losses = self.averaging.contribute(network, replicas, minibatches, out, rate, inner)
        wanted = out if read is None else read.sub_(out)
        if self.feedback and RESIDUE in known:
            wanted = wanted + known[RESIDUE]
        arrived = self.coder.through(network, wanted, known)
        if self.feedback:
            known[RESIDUE] = wanted - arrived
        out.copy_(arrived)
        memory.tensors = inner.tensors | {OWN + name: t for name, t in known.items()}
        return losses

    def fold(
        self,
        server: Server,
        contributions: Tensor,
        staleness: Sequence[int],
        rate: float,
        workers: Sequence[int] = (),
        weights: Sequence[float] = (),
    ) -> None:
        """Fold what has arrived, ``contributions [W, P]``; a difference counts from the model."""
        del staleness
        arrived = contributions
        if isinstance(self.averaging, ModelAveraging):
            arrived = torch.sub(server.model, contributions)
        self.averaging.fold(server, arrived, [0] * len(arrived), rate, workers, weights)
