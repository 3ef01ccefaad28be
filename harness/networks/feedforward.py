"""A feed-forward network over the replica stack: outputs, loss and exact gradients.

Back-propagation is written out rather than recorded by autograd: gradients are written to the
caller's ``[R, P]`` buffer, allocations per layer are few, and the order of floating-point
operations is fixed, which a bit-exact replay of a run needs.

The replica stack holds the parameters of R networks as one ``[R, P]`` tensor. A read, a fold or an
average is then one vector operation, and the gradients of many replicas are one batched product.
Views give each layer's ``[R, out, in]`` weights without copying. Shape letters, here and in the
neighbouring packages: R replicas, P parameters of one network, B frames of a minibatch, D inputs,
K targets.

Frame cross-entropy is the loss of papers 1 and 2, and of paper 3 before MMI.

`Precision` is that of the matrix products in a gradient. ``tf32`` multiplies numbers with 10
mantissa bits, on GPUs from Ampere on. ``bf16`` rounds both factors to bfloat16 (7 mantissa bits),
accumulates in float32 and rounds the product to bfloat16, as `torch.autocast` does; processors with
AMX and GPUs have units for it. Parameters, activations, the loss, folds and averages are float32
with any of them, and so are forward passes that only score a model.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from harness.base.errors import UserError

Activation = Literal["sigmoid", "relu"]

Visit = Callable[[int, Tensor, Tensor], None]
"""``visit(layer, inputs [R, B, m], derivatives [R, B, n])`` of one affine layer."""

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
        return self.backward(stack, x, targets, self.gradient_writer(out))

    def matrices(self, stack: Tensor) -> list[Tensor]:
        """Views ``[R, out, in]`` of every layer's weights in a ``[R, P]`` stack."""
        return [layer.weight for layer in self.layout.views(stack)]

    def gradient_writer(self, out: Tensor) -> Visit:
        """A visitor that writes each layer's gradient, summed over frames, to ``out [R, P]``."""
        gradients = self.layout.views(out)

        def write(i: int, level: Tensor, delta: Tensor) -> None:
            if self.precision == "bf16":
                factors = cast_factor(delta, "bf16").transpose(1, 2), cast_factor(level, "bf16")
                gradients[i].weight.copy_(torch.bmm(*factors))
            else:
                # Straight into the layer's strided view of the stack: a copy would cost as
                # much as half the product where layers are small.
                torch.bmm(delta.transpose(1, 2), level, out=gradients[i].weight)
            torch.sum(delta, 1, out=gradients[i].bias)

        return write

    def backward(self, stack: Tensor, x: Tensor, targets: Tensor, visit: Visit) -> Tensor:
        """Back-propagate the summed cross-entropy, and pass each layer's two sides to ``visit``.

        The layer's gradient is ``derivativesᵀ inputs``. Natural gradient and per-frame statistics
        need both factors, and get them here without a second pass.

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
            The losses ``[R]`` that ``inner`` returned.
        """
        with products_in(self.precision):
            return self._backward_from(stack, x, inner, visit)

    def _backward_from(self, stack: Tensor, x: Tensor, inner: Inner, visit: Visit) -> Tensor:
        views = self.layout.views(stack)
        layers = [Affine(cast_factor(weight, self.precision), bias) for weight, bias in views]
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
    """``a [R, B, n] b [R, n, m]``, computed in the precision of ``b`` and returned in ``a``'s."""
    return torch.bmm(a.to(b.dtype), b).to(a.dtype)


class Affine(NamedTuple):
    """One affine layer of every replica: ``weight [R, out, in]`` and ``bias [R, out]``."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Layout:
    """Position of each layer of a feed-forward network in a parameter vector.

    Args:
        sizes: units of each level, input first, targets last, e.g. ``(429, 128, 352)``.
    """

    sizes: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """P, the length of one network's parameter vector."""
        return sum(m * n + n for m, n in pairwise(self.sizes))

    def views(self, stack: Tensor) -> list[Affine]:
        """Per-layer views of a ``[R, P]`` stack; writing to them writes to the stack."""
        # One split, because a slice each takes as long as a small layer's product.
        parts, replicas = stack.split_with_sizes(self._lengths, 1), stack.shape[0]
        weights = zip(parts[::2], pairwise(self.sizes), strict=True)
        shaped = [part.view(replicas, n, m) for part, (m, n) in weights]
        return [Affine(*layer) for layer in zip(shaped, parts[1::2], strict=True)]

    @cached_property
    def _lengths(self) -> list[int]:
        """Lengths of each layer's weights and biases, alternating."""
        return [length for m, n in pairwise(self.sizes) for length in (m * n, n)]


def random_parameters(layout: Layout, generator: torch.Generator, gain: float = 1.0) -> Tensor:
    """A ``[1, P]`` stack drawn with Glorot and Bengio's (2010) variance, biases zero.

    ``W ~ N(0, g^2 2 / (in + out))`` with g = ``gain`` between hidden levels and 1 at
    the input and output. Drawn in float64 on the CPU and rounded to float32, so that every
    device starts from the same bytes.

    Args:
        layout: the network's levels.
        generator: the source of randomness.
        gain: 4 suits the logistic sigmoid (Bengio 2012, arXiv 1206.5533, section
            5.3.6, equation 15). The first layer keeps 1: eleven nearly equal spliced frames
            add up in it.
    """
    stack = torch.zeros(1, layout.parameters, dtype=torch.float64)
    layers = layout.views(stack)
    for i, ((m, n), layer) in enumerate(zip(pairwise(layout.sizes), layers, strict=True)):
        g = gain if 0 < i < len(layers) - 1 else 1.0
        noise = torch.randn(n, m, generator=generator, dtype=torch.float64)
        layer.weight[0] = noise * g * (2.0 / (m + n)) ** 0.5
    return stack.float()


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
    """Number of misclassified frames of each replica, ``[R]``.

    Args:
        logits: ``[R, B, K]``.
        targets: ``[B]``.
    """
    return (logits.argmax(2) != targets).sum(1)


Precision = Literal["float32", "tf32", "bf16"]


def check(precision: Precision, device: str) -> None:
    """Reject a precision that no device of a kind supports.

    Args:
        precision: of the products.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        UserError: TF32 without a GPU.
    """
    if precision == "tf32" and device == "cpu":
        raise UserError("precision: tf32 is not possible on cpu; allowed there: float32, bf16")


def check_here(precision: Precision, device: str) -> None:
    """Reject a precision that this machine's GPU does not support.

    Raises:
        UserError: its GPU is older than Ampere, and so has neither TF32 nor bfloat16.
    """
    if precision != "float32" and device == "cuda" and torch.cuda.get_device_capability()[0] < 8:
        name = torch.cuda.get_device_name()
        raise UserError(f"precision: {precision} is not possible on {name}; allowed: float32")


@contextmanager
def products_in(precision: Precision) -> Generator[None]:
    """Compute products of float32 matrices on a GPU in TF32 within the block, for ``"tf32"``."""
    if precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def cast_factor(tensor: Tensor, precision: Precision) -> Tensor:
    """A factor of a product, rounded to bfloat16 for ``"bf16"``."""
    return tensor.bfloat16() if precision == "bf16" else tensor


@contextmanager
def denormals_flushed() -> Generator[None]:
    """Treat denormal numbers as zero: saturated sigmoids produce many, and each is slow.

    The processor's mode ends with the block (or, as a decorator, with the call), since other code
    of the process may need denormals.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
