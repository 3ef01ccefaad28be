"""What timing needs to know of a training job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.base.settings import Spec, setting
from harness.simulator.quantities import size

__all__ = ["Workload"]


@dataclass(frozen=True)
class Workload(Spec):
    """One minibatch of work, and the size of what travels.

    Attributes:
        minibatch_frames: frames (training examples) in one minibatch.
        flops_per_frame: floating-point operations to train on one frame.
        parameter_bytes: size of the parameters, and so of a gradient.
    """

    minibatch_frames: int = setting(at_least=1, at_most=2**40)
    flops_per_frame: float = size()
    parameter_bytes: float = size()

    @property
    def minibatch_flops(self) -> float:
        """Floating-point operations of one minibatch."""
        return self.minibatch_frames * self.flops_per_frame

    @classmethod
    def of_network(cls, layer_sizes: Sequence[int], minibatch: int) -> Workload:
        """The job of training a fully connected network in 32-bit floats.

        A frame costs 2 operations a weight forward, 2 for the weights' gradient and 2 for
        the inputs' gradient, which the first layer does not need: 6·P − 2·P₁ over weights;
        biases travel but their additions are not counted.

        Args:
            layer_sizes: units of each layer, input first, e.g. ``(429, 2048, 10217)``.
            minibatch: frames in a minibatch.
        """
        weights = [below * above for below, above in pairwise(layer_sizes)]
        return cls(
            minibatch_frames=minibatch,
            flops_per_frame=float(6 * sum(weights) - 2 * weights[0]),
            parameter_bytes=float(4 * (sum(weights) + sum(layer_sizes[1:]))),
        )
