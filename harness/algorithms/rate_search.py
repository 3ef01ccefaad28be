"""Trial descents for a rate search, all rungs of the ladder at once as one replica stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from harness.networks.contract import Gradient, Minibatch


@torch.no_grad()
def trial_losses(
    gradient: Gradient, model: Tensor, rates: Sequence[float], minibatches: Iterable[Minibatch]
) -> list[float]:
    """Descend from ``model [P]`` at each rate; the model itself is left alone.

    Args:
        gradient: the model's summed gradient.
        model: where every descent starts.
        rates: one descent each; a rate of 0 measures the untouched model.
        minibatches: each with W = 1; every descent sees the same.

    Returns:
        For each rate the loss summed over all frames, each minibatch scored before the
        descent learns from it; NaN or infinity where the descent left the finite numbers.
    """
    stack = model.repeat(len(rates), 1)
    out = torch.empty_like(stack)
    scale = torch.tensor(rates, dtype=model.dtype, device=model.device).unsqueeze(1)
    losses = torch.zeros(len(rates), dtype=torch.float64, device=model.device)
    for x, targets in minibatches:
        shared = Minibatch(_repeated(x, len(rates)), _repeated(targets, len(rates)).contiguous())
        losses += gradient(stack, *shared, out)
        stack.sub_(out.mul_(scale))
    return [float(loss) for loss in losses]


def _repeated(one: Tensor, times: int) -> Tensor:
    """The one minibatch for so many descents."""
    return one.expand(times, *(-1 for _ in one.shape[1:]))
