"""Frame cross-entropy: the loss of papers 1 and 2, and of paper 3 before MMI."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax_cross_entropy_(logits: Tensor, targets: Tensor) -> Tensor:
    """Turn logits into the loss's derivative in place, and return the summed losses.

    For ``L = -sum_b log softmax(z_b)[y_b]`` the derivative is ``softmax(z) - onehot(y)``.

    Args:
        logits: ``[R, B, K]``; afterwards ``dL/dlogits``.
        targets: ``[R, B]``, int64, each in ``0 … K-1``.

    Returns:
        ``[R]``: each replica's loss summed over its B frames, in nats.
    """
    index = targets.unsqueeze(2)
    # The log of a frame's sum is its largest logit less the log of its largest posterior, which
    # no confident mistake lets underflow; the sum of exponentials is then taken only once.
    behind = logits.amax(2, keepdim=True).sub_(logits.gather(2, index))
    torch.softmax(logits, 2, out=logits)
    loss = behind.sub_(logits.amax(2, keepdim=True).log_()).sum((1, 2))
    logits.scatter_add_(2, index, torch.full_like(behind, -1.0))
    return loss


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed loss ``[R]`` in nats of logits ``[R, B, K]`` for shared targets ``[B]``."""
    picked = logits.gather(2, targets.view(1, -1, 1).expand(logits.shape[0], -1, 1))
    return (torch.logsumexp(logits, 2, keepdim=True) - picked).sum((1, 2))


def frame_errors(logits: Tensor, targets: Tensor) -> Tensor:
    """Frames each replica gets wrong, ``[R]``: logits ``[R, B, K]``, targets ``[B]``."""
    return (logits.argmax(2) != targets).sum(1)
