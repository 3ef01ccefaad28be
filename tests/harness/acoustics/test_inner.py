import pytest
import torch
from torch.nn.functional import linear, log_softmax

from harness.acoustics.mmi import InnerLoss
from harness.networks.feedforward import Dnn, Layout

LAYOUT = Layout((5, 4, 6))


def problem(balanced):
    draw = torch.Generator().manual_seed(2)
    stack = torch.randn(2, LAYOUT.parameters, dtype=torch.float64, generator=draw)
    x = torch.randn(2, 7, 5, dtype=torch.float64, generator=draw)
    outer = torch.randn(2, 7, 6, dtype=torch.float64, generator=draw)
    if balanced:
        outer -= outer.mean(2, keepdim=True)
    outer[:, 3] = 0.0
    return stack, x, outer


def inner_loss(parameters, x, outer):
    """Written down from paper 3, section 2, for one replica."""
    first, last = LAYOUT.views(parameters.unsqueeze(0))
    hidden = torch.relu(linear(x, first.weight[0], first.bias[0]))
    logits = linear(hidden, last.weight[0], last.bias[0])
    return -(outer * log_softmax(logits, 1)).sum()


@pytest.mark.parametrize("balanced", [True, False])
def test_the_gradient_equals_autograds_of_the_loss_written_down(balanced):
    stack, x, outer = problem(balanced)
    out = torch.full_like(stack, torch.nan)
    InnerLoss(Dnn(LAYOUT, "relu"), balanced).gradient(stack, x, outer, out)
    for r in range(2):
        flat = stack[r].clone().requires_grad_()
        inner_loss(flat, x[r], outer[r]).backward()
        torch.testing.assert_close(out[r], flat.grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("balanced", [True, False])
def test_a_row_of_zeros_is_as_good_as_a_frame_left_out(balanced):
    stack, x, outer = problem(balanced)
    gradient = InnerLoss(Dnn(LAYOUT, "relu"), balanced).gradient
    rest = [t for t in range(7) if t != 3]
    whole, without = torch.empty_like(stack), torch.empty_like(stack)
    gradient(stack, x, outer, whole)
    gradient(stack, x[:, rest], outer[:, rest], without)
    torch.testing.assert_close(whole, without, rtol=1e-12, atol=1e-13)


def test_frozen_targets_get_no_update_and_the_others_outputs_theirs():
    stack, x, outer = problem(balanced=True)
    free, bound = torch.empty_like(stack), torch.empty_like(stack)
    InnerLoss(Dnn(LAYOUT, "relu")).gradient(stack, x, outer, free)
    InnerLoss(Dnn(LAYOUT, "relu"), frozen=(1, 4)).gradient(stack, x, outer, bound)
    last = LAYOUT.views(bound)[-1]
    assert not last.weight[:, [1, 4]].any()
    assert not last.bias[:, [1, 4]].any()
    others = [0, 2, 3, 5]
    torch.testing.assert_close(last.weight[:, others], LAYOUT.views(free)[-1].weight[:, others])
