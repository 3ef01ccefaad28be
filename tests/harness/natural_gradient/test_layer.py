import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.natural_gradient import NaturalGradient, PerComponent, PerSample, Preconditioner
from harness.natural_gradient.estimate import Moment, Rows, precondition
from harness.natural_gradient.layer import Sides, state_from_tensors, state_tensors
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, Visit

FLOAT64 = torch.float64
LAYOUT = Layout((7, 12, 9, 5))
NET = Dnn(LAYOUT)
BOTH = NaturalGradient(Preconditioner(4, 2), Preconditioner(3, 2))


def normal(*shape: int, key: int = 0) -> Tensor:
    return torch.from_numpy(stream(11, "layer", key, *shape).standard_normal(shape))


def minibatch(replicas: int, count: int, key: int = 0) -> Minibatch:
    targets = stream(11, "targets", key).integers(0, 5, (replicas, count))
    return Minibatch(normal(replicas, count, 7, key=key), torch.from_numpy(targets))


def hats(x: Tensor, delta: Tensor, sides: Sides, options: NaturalGradient) -> list[Tensor]:
    """``γ X̂`` and ``γ D̂`` with every column, formed the plain way."""
    formed = []
    both = [(sides.inputs, options.inputs, True, x), (sides.outputs, options.outputs, False, delta)]
    for moment, how, appended, rows in both:
        wide = torch.cat([rows, torch.ones_like(rows[..., :1])], 2) if appended else rows
        if moment is not None and how is not None:
            _, factor = precondition(moment, Rows(rows, appended), how)
            wide = factor.gain[:, None, None] * (wide - factor.along @ factor.basis)
        formed.append(wide)
    return formed


def warm(
    options: NaturalGradient, m: int, n: int, count: int, replicas: int = 2
) -> tuple[Sides, Tensor, Tensor]:
    """A state of five minibatches, and the inputs and derivatives of a sixth."""
    (sides,) = options.start((m, n), replicas, FLOAT64)
    for step in range(5):
        x, delta = normal(replicas, count, m, key=step), normal(replicas, count, n, key=step + 50)
        sides = options.precondition(Rows(x, appended=True), Rows(delta), sides, 1.0)[0]
    return sides, normal(replicas, count, m, key=77), normal(replicas, count, n, key=78)


class OneLayer:
    """A network whose one layer has these inputs and derivatives."""

    def __init__(self, x: Tensor, delta: Tensor) -> None:
        self.sides, self.layout = (x, delta), Layout((x.shape[2], delta.shape[2]))

    def backward(self, stack: Tensor, x: Tensor, targets: Tensor, visit: Visit) -> Tensor:
        visit(0, *self.sides)
        return stack.new_zeros(len(stack))


def one_layer(
    options: NaturalGradient, sides: Sides, x: Tensor, delta: Tensor, rate: float = 1.0
) -> Tensor:
    """``[weight, bias]`` of one layer's direction, ``[R, n, m + 1]``."""
    network, unread = OneLayer(x, delta), Minibatch(x, x)
    out = x.new_empty(len(x), network.layout.parameters)
    options.direction(network, out, unread, [sides], rate, out)
    ((weight, bias),) = network.layout.views(out)
    return torch.cat([weight, bias.unsqueeze(2)], 2)


@pytest.mark.parametrize("count", [3, 20, 200])
@pytest.mark.parametrize("sizes", [(6, 9), (30, 4), (1, 5), (5, 1), (1, 1)], ids=str)
def test_direction_is_the_product_of_both_preconditioned_sides(sizes, count):
    for options in (BOTH, NaturalGradient(BOTH.inputs, None), NaturalGradient(None, BOTH.outputs)):
        sides, x, delta = warm(options, *sizes, count)
        inputs, outputs = hats(x, delta, sides, options)
        found = one_layer(options, sides, x, delta)
        torch.testing.assert_close(found, outputs.mT @ inputs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("counts_rate", [True, False])
def test_per_sample_limit_counts_every_rows_share(counts_rate):
    options = NaturalGradient(BOTH.inputs, BOTH.outputs, PerSample(0.1, counts_rate))
    sides, x, delta = warm(options, 12, 9, 40)
    inputs, outputs = hats(x, delta, sides, options)
    change = (inputs.norm(dim=2) * outputs.norm(dim=2)).sum(1)
    for rate in (0.5, 1e-3):
        share = torch.clamp(0.1 * 40 / (change * (rate if counts_rate else 1.0)), max=1.0)
        assert bool((share < 1.0).all()) == (rate == 0.5 or not counts_rate)
        expected = share[:, None, None] * (outputs.mT @ inputs)
        found = one_layer(options, sides, x, delta, rate)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def changes(options: NaturalGradient, stack: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """A network's direction, and the norm of each layer's step ``[R, layers]``."""
    out = torch.empty_like(stack)
    state = options.start(LAYOUT.sizes, len(stack), FLOAT64)
    options.direction(NET, stack, minibatch(len(stack), 30), state, rate, out)
    norms = [
        torch.cat([weight.flatten(1), bias], 1).norm(dim=1) * rate
        for weight, bias in LAYOUT.views(out)
    ]
    return out, torch.stack(norms, 1)


def test_per_component_limit_bounds_each_layer_and_all_together():
    stack = normal(2, LAYOUT.parameters)
    free = NaturalGradient(BOTH.inputs, BOTH.outputs)
    each = NaturalGradient(BOTH.inputs, BOTH.outputs, PerComponent(0.75, 100.0))
    both = NaturalGradient(BOTH.inputs, BOTH.outputs, PerComponent(0.75, 1.0))
    _, unlimited = changes(free, stack, 1.0)
    _, limited = changes(each, stack, 1.0)
    assert (unlimited > 0.75).any()
    torch.testing.assert_close(limited, unlimited.clamp(max=0.75), rtol=1e-12, atol=0)
    direction, together = changes(both, stack, 1.0)
    share = torch.clamp(1.0 / limited.norm(dim=1), max=1.0)
    assert (share < 1.0).any()
    torch.testing.assert_close(together, limited * share[:, None], rtol=1e-12, atol=0)
    torch.testing.assert_close(direction.norm(dim=1), torch.ones(2, dtype=FLOAT64))


def test_small_steps_are_not_limited():
    stack = normal(2, LAYOUT.parameters)
    expected, _ = changes(NaturalGradient(BOTH.inputs, BOTH.outputs), stack, 1e-6)
    for limit in (PerSample(0.1), PerComponent()):
        found, _ = changes(NaturalGradient(BOTH.inputs, BOTH.outputs, limit), stack, 1e-6)
        assert torch.equal(found, expected)


def test_without_preconditioners_and_limit_the_direction_is_the_gradient():
    stack = normal(3, LAYOUT.parameters)
    x, targets = minibatch(3, 30)
    expected, out = torch.empty_like(stack), torch.empty_like(stack)
    losses = NET.gradient(stack, x, targets, expected)
    plain = NaturalGradient(None, None)
    state = plain.start(LAYOUT.sizes, 3, FLOAT64)
    found, _ = plain.direction(NET, stack, Minibatch(x, targets), state, 0.1, out)
    assert torch.equal(found, losses)
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)


def test_sgd_can_have_the_same_limit_as_natural_gradient():
    stack = normal(2, LAYOUT.parameters)
    gradient, free = changes(NaturalGradient(None, None), stack, 1.0)
    limited, norms = changes(NaturalGradient(None, None, PerComponent(0.5, 100.0)), stack, 1.0)
    torch.testing.assert_close(norms, free.clamp(max=0.5), rtol=1e-12, atol=0)
    cosine = torch.cosine_similarity(gradient[:, :96], limited[:, :96], dim=1)
    torch.testing.assert_close(cosine, torch.ones(2, dtype=FLOAT64))


def descent(options: NaturalGradient, stack: Tensor, first: int, last: int, state: list[Sides]):
    """Some steps of every replica on its own minibatches."""
    stack, out = stack.clone(), torch.empty_like(stack)
    for step in range(first, last):
        x, targets = minibatch(3, 16, key=step)
        part = Minibatch(x[: len(stack)].to(stack), targets[: len(stack)])
        _, state = options.direction(NET, stack, part, state, 0.01, out)
        stack.sub_(out, alpha=0.01)
    return stack, state


def test_replicas_together_descend_as_one_alone():
    options = NaturalGradient(BOTH.inputs, BOTH.outputs, PerSample(0.1))
    start = normal(3, LAYOUT.parameters)
    together, _ = descent(options, start, 0, 20, options.start(LAYOUT.sizes, 3, FLOAT64))
    alone, _ = descent(options, start[:1], 0, 20, options.start(LAYOUT.sizes, 1, FLOAT64))
    torch.testing.assert_close(together[:1], alone, rtol=1e-9, atol=1e-10)


def test_a_checkpoint_continues_with_the_same_bytes():
    start = normal(3, LAYOUT.parameters).float()
    options = NaturalGradient(BOTH.inputs, BOTH.outputs, PerSample(0.1))
    state = options.start(LAYOUT.sizes, 3)
    whole, _ = descent(options, start, 0, 18, state)
    half, state = descent(options, start, 0, 11, state)
    saved = save({name: t.contiguous() for name, t in state_tensors(state).items()})
    resumed, _ = descent(options, half, 11, 18, state_from_tensors(load(saved), len(state)))
    assert torch.equal(whole, resumed)


def test_a_side_without_preconditioner_survives_a_checkpoint():
    state = NaturalGradient(BOTH.inputs, None).start(LAYOUT.sizes, 2)
    again = state_from_tensors(state_tensors(state), len(state))
    assert all(isinstance(sides.inputs, Moment) and sides.outputs is None for sides in again)


def test_inputs_are_left_as_they_were():
    sides, x, delta = warm(BOTH, 12, 9, 5)
    before = x.clone(), delta.clone()
    one_layer(BOTH, sides, x, delta)
    assert torch.equal(x, before[0])
    assert torch.equal(delta, before[1])


def test_limits_must_be_positive():
    for wrong in (lambda: PerSample(0.0), lambda: PerComponent(each=-1.0)):
        with pytest.raises(UserError, match="above 0"):
            wrong()
