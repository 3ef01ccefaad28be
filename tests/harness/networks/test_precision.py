import numpy as np
import pytest
import torch

from harness.base.errors import UserError
from harness.networks.feedforward import Dnn, Layout, check, products_in, random_parameters

LAYOUT = Layout((5, 7, 6, 4))


def drawn(replicas, frames):
    draw = torch.Generator().manual_seed(3)
    stack = random_parameters(LAYOUT, draw).repeat(replicas, 1)
    stack += 0.3 * torch.randn(stack.shape, generator=draw)
    x = torch.randn(replicas, frames, 5, generator=draw)
    return stack, x, torch.randint(4, (replicas, frames), generator=draw)


def rounded(values):
    """The nearest bfloat16 of each number, ties to even, from the bits of its float32."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def product(a, b):
    return rounded(rounded(a).astype(np.float64) @ rounded(b).astype(np.float64))


def reference(stack, x, targets):
    """One replica's gradient with every product of rounded factors, rounded, in NumPy."""
    layers = [(w[0].numpy(), b[0].numpy()) for w, b in LAYOUT.views(stack)]
    levels = [x[0].numpy()]
    for w, b in layers:
        pre = product(levels[-1], w.T) + b
        levels.append(1 / (1 + np.exp(-pre)) if len(levels) < len(layers) else pre)
    delta = np.exp(levels[-1]) / np.exp(levels[-1]).sum(1, keepdims=True)
    delta[np.arange(len(delta)), targets[0].numpy()] -= 1
    found = []
    for (w, _), level in zip(reversed(layers), reversed(levels[:-1]), strict=True):
        found = [product(delta.T, level).ravel(), delta.sum(0), *found]
        delta = product(delta, w) * level * (1 - level)
    return np.concatenate(found)


def test_a_bfloat16_gradient_is_that_of_rounded_factors_and_products():
    stack, x, targets = drawn(1, 40)
    ours, exact = torch.empty_like(stack), torch.empty_like(stack)
    Dnn(LAYOUT, precision="bf16").gradient(stack, x, targets, ours)
    Dnn(LAYOUT).gradient(stack, x, targets, exact)
    expected = reference(stack, x, targets)
    scale = float(exact.norm())
    # Nearer to it by far than to the exact gradient; a last bit may be rounded the other way.
    assert np.linalg.norm(ours[0].numpy() - expected) < 2e-3 * scale
    assert 1e-3 * scale < float((ours - exact).norm()) < 2e-2 * scale


def test_replicas_in_bfloat16_do_not_mix():
    stack, x, targets = drawn(3, 20)
    net, together, alone = (
        Dnn(LAYOUT, precision="bf16"),
        torch.empty_like(stack),
        torch.empty_like(stack),
    )
    net.gradient(stack, x, targets, together)
    for k in range(3):
        one = slice(k, k + 1)
        net.gradient(stack[one], x[one], targets[one], alone[one])
    torch.testing.assert_close(together, alone, rtol=1e-2, atol=1e-4)


def test_scoring_is_float32_whatever_the_gradients_are():
    stack, x, _ = drawn(2, 9)
    assert torch.equal(Dnn(LAYOUT, precision="bf16").logits(stack, x), Dnn(LAYOUT).logits(stack, x))


def test_tf32_is_a_setting_of_what_is_inside_and_no_longer():
    before = torch.get_float32_matmul_precision()
    with products_in("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_tf32_without_a_gpu_is_refused_in_one_line():
    with pytest.raises(UserError, match=r"^precision: tf32 is not possible on cpu; .*bf16$"):
        check("tf32", "cpu")
