"""The inner gradient of sequence training: a frame loss whose targets are outer gradients.

Paper 3, section 2: with the outer gradient o_t(s) held fixed, the loss is
-Σ_t Σ_s o_t(s) log p(s|x_t). Its derivative at the logits is softmax(z_t) Σ_s o_t(s) - o_t: where
the rows of o sum to zero, as in MMI, it is -o_t whatever the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.networks.feedforward import Dnn, Layout, Visit


@dataclass(frozen=True)
class InnerLoss:
    """A network under the inner loss, as algorithms take it: outer gradients are its targets.

    Args:
        net: what maps a frame's input to logits.
        balanced: whether every row of the outer gradients sums to zero.
        frozen: targets whose outputs get no update.
    """

    net: Dnn
    balanced: bool = True
    frozen: Sequence[int] = ()

    @property
    def layout(self) -> Layout:
        """Where the network's layers lie."""
        return self.net.layout

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """See ``Dnn.matrices``."""
        return self.net.matrices(stack)

    def gradient(self, stack: Tensor, x: Tensor, targets: Tensor, out: Tensor) -> Tensor:
        """The gradient summed over each minibatch, into ``out``; returns zeros ``[R]``.

        The loss's value says nothing: outer gradients change with the parameters.

        Args:
            stack: parameters ``[R, P]``.
            x: inputs ``[R, B, D]``.
            targets: outer gradients ``[R, B, K]``, uphill; a frame to leave out is a row of zeros.
            out: ``[R, P]``, overwritten.
        """
        return self.backward(stack, x, targets, self.net.into(out))

    def backward(self, stack: Tensor, x: Tensor, targets: Tensor, visit: Visit) -> Tensor:
        """Show every layer's inputs and derivatives to ``visit``; see ``Dnn.backward``."""
        return self.net.backward_from(stack, x, self._derivative(targets), visit)

    def _derivative(self, outer: Tensor) -> Callable[[Tensor], Tensor]:
        def inner(logits: Tensor) -> Tensor:
            if self.balanced:
                torch.neg(outer, out=logits)
            else:
                torch.softmax(logits, 2, out=logits)
                logits.mul_(outer.sum(2, keepdim=True)).sub_(outer)
            if self.frozen:
                logits[:, :, list(self.frozen)] = 0.0
            return logits.new_zeros(len(logits))

        return inner
