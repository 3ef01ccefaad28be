"""The parameters that training starts from where no machine has pretrained them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from harness.networks.feedforward import Layout


@dataclass(frozen=True)
class WideRandom:
    """The random start of Kaldi's nnet1 for sigmoid networks, which paper 2 used.

    ``W ~ N(0, (gain sqrt(2 / (in + out)))²)``, that of the first layer times ``first``; biases
    of hidden units uniform from ``low_bias`` to 0, of the outputs zero.

    Args:
        gain: 3.5 there (0.1 of Glorot's, times 35).
        first: factor of the first layer, sqrt(1/12) there.
        low_bias: the lowest bias of a hidden unit, -4 there.
    """

    gain: float = 3.5
    first: float = (1.0 / 12.0) ** 0.5
    low_bias: float = -4.0

    def parameters(self, layout: Layout, generator: torch.Generator) -> Tensor:
        """A ``[1, P]`` stack, drawn in float64 on the CPU and rounded to float32."""
        stack = torch.zeros(1, layout.parameters, dtype=torch.float64)
        layers = layout.views(stack)
        for i, ((m, n), layer) in enumerate(zip(pairwise(layout.sizes), layers, strict=True)):
            spread = self.gain * (2.0 / (m + n)) ** 0.5 * (self.first if i == 0 else 1.0)
            layer.weight[0] = spread * torch.randn(n, m, generator=generator, dtype=torch.float64)
            if i < len(layers) - 1:
                drawn = torch.rand(n, generator=generator, dtype=torch.float64)
                layer.bias[0] = self.low_bias * drawn
        return stack.float()
