import pytest
import torch
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import linear

from harness.networks.feedforward import (
    Dnn,
    Layout,
    frame_errors,
    random_parameters,
    softmax_cross_entropy_,
)

LAYOUT = Layout((5, 4, 3, 6))


def problem(replicas: int = 3, frames: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    stack = torch.randn(replicas, LAYOUT.parameters, dtype=torch.float64, generator=draw)
    x = torch.randn(replicas, frames, 5, dtype=torch.float64, generator=draw)
    return stack, x, torch.randint(0, 6, (replicas, frames), generator=draw)


def by_autograd(
    net: Dnn, parameters: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """An independent oracle: torch.nn.functional and autograd, one replica, no stack."""
    flat = parameters.clone().requires_grad_()
    squash = torch.sigmoid if net.activation == "sigmoid" else torch.relu
    layers = LAYOUT.views(flat.unsqueeze(0))
    hidden = x
    for weight, bias in layers[:-1]:
        hidden = squash(linear(hidden, weight[0], bias[0]))
    weight, bias = layers[-1]
    loss = torch_cross_entropy(linear(hidden, weight[0], bias[0]), y, reduction="sum")
    loss.backward()
    assert flat.grad is not None
    return loss.detach(), flat.grad


@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
def test_gradient_of_every_replica_equals_autograd(activation):
    net = Dnn(LAYOUT, activation)
    stack, x, y = problem()
    out = torch.full_like(stack, torch.nan)
    losses = net.gradient(stack, x, y, out)
    for r in range(len(stack)):
        loss, gradient = by_autograd(net, stack[r], x[r], y[r])
        torch.testing.assert_close(losses[r], loss, rtol=1e-13, atol=0)
        torch.testing.assert_close(out[r], gradient, rtol=1e-12, atol=1e-13)


def test_layer_views_cover_every_parameter_once():
    stack = torch.zeros(1, LAYOUT.parameters)
    for layer in LAYOUT.views(stack):
        layer.weight.add_(1)
        layer.bias.add_(1)
    assert bool((stack == 1).all())


def test_shared_frames_give_the_same_outputs_as_repeated_ones():
    net = Dnn(LAYOUT)
    stack, x, _ = problem()
    assert torch.equal(net.logits(stack, x[0]), net.logits(stack, x[:1].repeat(3, 1, 1)))


def test_a_confident_mistake_has_a_finite_loss():
    logits = torch.tensor([[[200.0, 0.0]]])
    loss = softmax_cross_entropy_(logits, torch.tensor([[1]]))
    assert float(loss[0]) == 200.0


def test_frame_errors_count_wrong_argmax():
    logits = torch.tensor([[[1.0, 2.0], [3.0, 0.0]], [[1.0, 0.0], [3.0, 0.0]]])
    assert frame_errors(logits, torch.tensor([1, 0])).tolist() == [0, 1]


def test_random_parameters_depend_on_the_seed_alone():
    def draw(seed: int) -> torch.Tensor:
        return random_parameters(LAYOUT, torch.Generator().manual_seed(seed))

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


def test_random_weights_have_the_stated_variance():
    layout = Layout((300, 200))
    weight, bias = layout.views(random_parameters(layout, torch.Generator().manual_seed(0)))[0]
    assert abs(float(weight.var()) / (2 / 500) - 1) < 0.02
    assert not bias.any()
