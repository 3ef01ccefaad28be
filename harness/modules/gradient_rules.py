"""Changes of a gradient before its optimizer: microbatches, clipping, weight decay.

The rules apply to every minibatch of every worker, whatever the algorithm and the optimizer; where
a server steps along the mean gradient (`GradientAveraging`), it clips and decays that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.base.settings import setting


@dataclass(frozen=True)
class GradientRules:
    """Rules for the gradient of one minibatch.

    Args:
        clip: largest norm of a worker's gradient over all parameters, as in
            ``torch.nn.utils.clip_grad_norm_``; with ``"sync"``, of the mean gradient. None for no
            limit.
        weight_decay: multiple of the parameters that is added to each gradient after clipping, as
            in ``torch.optim.SGD``; ``"adamw"``, ``"muon"`` and ``"ngsgd"`` decay beside the
            gradient. 0 for all by default, also for ``"adamw"``, where torch has 0.01.
        accumulate: equal parts of each minibatch that are computed one after the other, and whose
            outputs are joined for its loss: the step is that of the whole, except that batch
            normalisation sees a part at a time. Outputs that cannot be joined are computed whole.
    """

    clip: float | None = setting(None, above=0.0)
    weight_decay: float = setting(0.0, at_least=0.0)
    accumulate: int = setting(1, at_least=1)

    def clip_(self, gradient: Sequence[Tensor]) -> None:
        """Scale a gradient, a tensor for each parameter, in place."""
        if self.clip is None:
            return
        norm = torch.nn.utils.get_total_norm(gradient)
        share = torch.clamp(self.clip / (norm + 1e-6), max=1.0)
        for part in gradient:
            part.mul_(share)

    def decay_(self, gradients: Tensor, stack: Tensor) -> None:
        """Add the decay of parameters to gradients of their shape, in place."""
        if self.weight_decay:
            gradients.add_(stack, alpha=self.weight_decay)


NO_RULES = GradientRules()
