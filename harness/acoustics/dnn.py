"""A feed-forward acoustic model over the replica stack: outputs and exact gradients.

Back-propagation is written out rather than recorded by autograd: gradients land in the
caller's ``[R, P]`` buffer, nothing is allocated per layer that need not be, and the
order of floating-point operations is fixed, which replaying a run bit for bit needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.acoustics.cross_entropy import softmax_cross_entropy_
from harness.acoustics.precision import Precision, narrowed, products_in
from harness.acoustics.stack import Affine, Layout

Activation = Literal["sigmoid", "relu"]

Visit = Callable[[int, Tensor, Tensor], None]
"""``visit(layer, inputs [R, B, m], derivatives [R, B, n])``: what one affine layer sees."""


Inner = Callable[[Tensor], Tensor]
"""``inner(logits [R, B, K])`` turns them into the loss's derivatives; returns losses ``[R]``."""


@dataclass(frozen=True)
class Dnn:
    """Affine layers with one nonlinearity between them and a linear output.

    Args:
        layout: the sizes of the levels.
        activation: ``"sigmoid"`` (papers 1 and 2) or ``"relu"`` (paper 3).
        precision: of the products in gradients; ``logits`` are always float32.
    """

    layout: Layout
    activation: Activation = "sigmoid"
    precision: Precision = "float32"

    def logits(self, stack: Tensor, x: Tensor) -> Tensor:
        """Outputs ``[R, B, K]`` of R replicas for frames ``[R, B, D]`` or shared ``[B, D]``."""
        hidden = x if x.dim() == 3 else x.expand(stack.shape[0], *x.shape)
        layers = self.layout.views(stack)
        for layer in layers[:-1]:
            hidden = self._activate_(_affine(layer, hidden))
        return _affine(layers[-1], hidden)

    def gradient(self, stack: Tensor, x: Tensor, targets: Tensor, out: Tensor) -> Tensor:
        """The gradient of the cross-entropy, **summed** over each replica's minibatch.

        Paper 1, equation 1: the loss of a minibatch is the sum over its samples.

        Args:
            stack: parameters ``[R, P]``.
            x: spliced frames ``[R, B, D]``.
            targets: ``[R, B]``, int64.
            out: gradient buffer ``[R, P]``, overwritten.

        Returns:
            The summed loss of each replica, ``[R]``, in nats.
        """
        return self.backward(stack, x, targets, self.into(out))

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """Views ``[R, out, in]`` of every layer's weights in a ``[R, P]`` stack."""
        return [layer.weight for layer in self.layout.views(stack)]

    def into(self, out: Tensor) -> Visit:
        """A visitor that writes each layer's gradient, summed over frames, to ``out [R, P]``."""
        gradients = self.layout.views(out)

        def write(i: int, level: Tensor, delta: Tensor) -> None:
            if self.precision == "bf16":
                factors = narrowed(delta, "bf16").transpose(1, 2), narrowed(level, "bf16")
                gradients[i].weight.copy_(torch.bmm(*factors))
            else:
                # Straight into the layer's strided view of the stack: a copy would cost as
                # much as half the product where layers are small.
                torch.bmm(delta.transpose(1, 2), level, out=gradients[i].weight)
            torch.sum(delta, 1, out=gradients[i].bias)

        return write

    def backward(self, stack: Tensor, x: Tensor, targets: Tensor, visit: Visit) -> Tensor:
        """Back-propagate the summed cross-entropy, and show each layer's two sides to ``visit``.

        The layer's gradient is ``derivativesᵀ inputs``; who wants more than that (natural
        gradient, per-frame statistics) finds it here without a second pass.

        Args:
            stack: parameters ``[R, P]``.
            x: spliced frames ``[R, B, D]``.
            targets: ``[R, B]``, int64.
            visit: called once a layer, last layer first, with the layer's inputs and the
                loss's derivatives at its outputs, which it may keep: they are not overwritten.
                It may change this layer's parameters.

        Returns:
            The summed loss of each replica, ``[R]``, in nats.
        """
        return self.backward_from(
            stack, x, lambda logits: softmax_cross_entropy_(logits, targets), visit
        )

    def backward_from(self, stack: Tensor, x: Tensor, inner: Inner, visit: Visit) -> Tensor:
        """Back-propagate any loss of the logits; see ``backward``.

        Args:
            stack: parameters ``[R, P]``.
            x: spliced frames ``[R, B, D]``.
            inner: the loss.
            visit: called once a layer, last layer first.

        Returns:
            What ``inner`` returned.
        """
        with products_in(self.precision):
            return self._backward_from(stack, x, inner, visit)

    def _backward_from(self, stack: Tensor, x: Tensor, inner: Inner, visit: Visit) -> Tensor:
        views = self.layout.views(stack)
        layers = [Affine(narrowed(weight, self.precision), bias) for weight, bias in views]
        levels = [x]
        for layer in layers[:-1]:
            levels.append(self._activate_(_affine(layer, levels[-1])))
        delta = _affine(layers[-1], levels[-1])
        loss = inner(delta)
        for i in range(len(layers) - 1, -1, -1):
            back = _product(delta, layers[i].weight) if i else delta
            below = self._differentiate_(back, levels[i]) if i else delta
            visit(i, levels[i], delta)  # may change the layer, which is not used again
            delta = below
        return loss

    def _activate_(self, pre: Tensor) -> Tensor:
        return pre.sigmoid_() if self.activation == "sigmoid" else pre.relu_()

    def _differentiate_(self, delta: Tensor, level: Tensor) -> Tensor:
        """Multiply by the nonlinearity's slope, which both functions give from their output."""
        if self.activation == "sigmoid":
            return torch.ops.aten.sigmoid_backward(delta, level)
        return torch.ops.aten.threshold_backward(delta, level, 0.0)


def _affine(layer: Affine, x: Tensor) -> Tensor:
    weight = layer.weight.transpose(1, 2)
    if weight.dtype != x.dtype:
        return _product(x, weight).add_(layer.bias.unsqueeze(1))
    return torch.baddbmm(layer.bias.unsqueeze(1), x, weight)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a [R, B, n] b [R, n, m]``, rounded as ``b`` is and kept as ``a`` is."""
    return torch.bmm(a.to(b.dtype), b).to(a.dtype)
