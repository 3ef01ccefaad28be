import pytest
import torch
from torch import Tensor

from harness.algorithms.descent import descend
from harness.natural_gradient import (
    NaturalGradient,
    PerComponent,
    PerSample,
    Preconditioner,
    batched_layers,
)
from harness.natural_gradient.batched_layers import FEW, join, may_join, part, step_
from harness.natural_gradient.estimate import Rows, materialise, precondition
from harness.natural_gradient.layer import state_tensors
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
from tests.harness.natural_gradient.invariants import invariants

FLOAT64, CPU = torch.float64, torch.device("cpu")
LAYOUT = Layout((9, 12, 12, 12, 7))
NET = Dnn(LAYOUT)
OPTIONS = NaturalGradient(Preconditioner(3, 2), Preconditioner(4, 2), PerSample(0.02))
REPLICAS, FRAMES = 3, 4


def drawn(steps: int) -> tuple[Tensor, list[Minibatch]]:
    draw = torch.Generator().manual_seed(5)
    stack = 0.3 * torch.randn(REPLICAS, LAYOUT.parameters, dtype=FLOAT64, generator=draw)
    x = torch.randn(steps, REPLICAS, FRAMES, 9, dtype=FLOAT64, generator=draw)
    y = torch.randint(0, 7, (steps, REPLICAS, FRAMES), generator=draw)
    return stack, [Minibatch(*each) for each in zip(x, y, strict=True)]


@pytest.mark.parametrize("limit", [None, PerSample(0.02)], ids=str)
@pytest.mark.parametrize("rate", [0.3, torch.tensor([0.3, 0.1, 0.0], dtype=FLOAT64)], ids=str)
def test_layers_step_together_as_one_after_another(limit, rate):
    options = NaturalGradient(OPTIONS.inputs, OPTIONS.outputs, limit)
    stack, minibatches = drawn(15)
    state = options.start(LAYOUT.sizes, REPLICAS, FLOAT64)
    joint, moved, room = join(state), stack.clone(), torch.empty_like(stack)
    for minibatch in minibatches:
        losses, state = options.descend_(NET, stack, minibatch, state, rate, room)
        found, joint = step_(options, NET, moved, minibatch, joint, rate)
        torch.testing.assert_close(found, losses, rtol=1e-11, atol=0)
    torch.testing.assert_close(moved, stack, rtol=1e-10, atol=1e-11)
    assert [sides.inputs.calls for sides in part(joint)] == [15] * len(state)
    for found, expected in zip(invariants(part(joint)), invariants(state), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_a_joined_state_comes_apart_as_it_was():
    stack, minibatches = drawn(3)
    _, state = descend(
        OPTIONS, NET, stack, minibatches, 0.3, OPTIONS.start(LAYOUT.sizes, REPLICAS, FLOAT64)
    )
    again = state_tensors(part(join(state)))
    for name, tensor in state_tensors(state).items():
        assert torch.equal(again[name], tensor), name


def test_a_round_of_few_rows_joins_the_layers(monkeypatch):
    """Joined or not, a round ends at the same parameters."""
    ends = list[Tensor]()
    for joins in (True, False):
        stack, minibatches = drawn(6)
        monkeypatch.setattr("harness.algorithms.descent.may_join", lambda *_, j=joins: j)
        descend(
            OPTIONS, NET, stack, minibatches, 0.3, OPTIONS.start(LAYOUT.sizes, REPLICAS, FLOAT64)
        )
        ends.append(stack)
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-11)
    assert not torch.equal(ends[0], drawn(6)[0])


def test_what_may_be_joined():
    sizes = LAYOUT.sizes
    assert may_join(OPTIONS, sizes, REPLICAS, FRAMES, CPU)
    assert not may_join(OPTIONS, sizes, FEW // 12, FRAMES, CPU), "rows are many"
    assert not may_join(OPTIONS, sizes, 1, 1000, CPU), "projecting is cheaper"
    assert not may_join(OPTIONS, (9, 1, 7), 1, FRAMES, CPU), "a width of one has no directions"
    both = OPTIONS.inputs, OPTIONS.outputs
    assert not may_join(NaturalGradient(*both, PerComponent()), sizes, 1, FRAMES, CPU)
    assert not may_join(NaturalGradient(None, both[1], None), sizes, 1, FRAMES, CPU)


def test_a_side_without_an_estimate_cannot_be_joined():
    plain = NaturalGradient(None, OPTIONS.outputs)
    with pytest.raises(ValueError, match="layer 0 has a side without an estimate"):
        join(plain.start(LAYOUT.sizes, 1))


def test_sides_alike_and_sides_unlike_are_preconditioned_as_each_alone(monkeypatch):
    """Two of a width, one of another, one with a one appended, one on another scale."""
    draw = torch.Generator().manual_seed(3)
    kinds = [(12, False, 1.0), (12, False, 1.0), (9, False, 1.0), (11, True, 1.0), (12, False, 4.0)]
    options = Preconditioner(4, 2)
    moments = [options.start(1, m + one, FLOAT64) for m, one, _ in kinds]
    alone, counted = list(moments), list[int]()
    monkeypatch.setattr(
        batched_layers,
        "precondition",
        lambda *a: (counted.append(len(a[1].x)), precondition(*a))[1],
    )
    for _ in range(15):
        rows = [
            Rows(torch.randn(1, FRAMES, m, generator=draw, dtype=FLOAT64), one)
            for m, one, _ in kinds
        ]
        scales = [scale for *_, scale in kinds]
        done = batched_layers.precondition_all(
            [*map(batched_layers.Call, moments, rows, scales)], options
        )
        moments = [moment for moment, _ in done]
        for i, (_, factor) in enumerate(done):
            alone[i], expected = precondition(alone[i], rows[i], options, scales[i])
            for found, one in zip(factor[2:], expected[2:], strict=True):
                torch.testing.assert_close(found, one, rtol=1e-10, atol=1e-12)
            found, one = (materialise(rows[i], each) for each in (factor, expected))
            torch.testing.assert_close(found, one, rtol=1e-10, atol=1e-12)
    assert sorted(counted[:4]) == [1, 1, 1, 2]
