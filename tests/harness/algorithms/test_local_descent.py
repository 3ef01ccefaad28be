import pytest
import torch

from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.contract import LocalWork, Memory
from harness.algorithms.descent import PLAIN, local_steps
from harness.natural_gradient import NaturalGradient, PerComponent, PerSample, Preconditioner
from harness.networks.contract import Minibatch
from tests.harness.algorithms.conftest import LAYOUT, NET, WORKERS, drawn

NG = NaturalGradient(Preconditioner(2), Preconditioner(2))


def contributed(algorithm, memory: Memory, minibatches, stack) -> torch.Tensor:
    out = torch.empty_like(stack)
    algorithm.contribute(LocalWork(NET, stack.clone(), minibatches, out, 0.3, memory))
    memory.new_pass = False
    return out


def test_plain_descent_steps_along_the_mean_gradient():
    stack, minibatches = drawn(2)
    theta, slope = stack.clone(), torch.empty_like(stack)
    total = torch.zeros(WORKERS, dtype=torch.float64)
    for minibatch in minibatches:
        total += NET.gradient(theta, *minibatch, slope)
        theta = theta - 0.3 * slope / 6
    moved = stack.clone()
    losses = local_steps(PLAIN, NET, moved, minibatches, 0.3, Memory())
    torch.testing.assert_close(moved, theta, rtol=0, atol=1e-14)
    torch.testing.assert_close(losses, total, rtol=1e-14, atol=0)


@pytest.mark.parametrize("limit", [PerSample(0.01), PerComponent(0.02, 0.03)])
def test_plain_and_natural_gradient_are_held_to_the_same_limit(limit):
    stack, minibatches = drawn(1)
    for sides in (None, Preconditioner(2)):
        descent, free = NaturalGradient(sides, sides, limit), NaturalGradient(sides, sides)
        held, loose = stack.clone(), stack.clone()
        local_steps(descent, NET, held, minibatches, 3.0, Memory())
        local_steps(free, NET, loose, minibatches, 3.0, Memory())
        moved, would = (held - stack).norm(dim=1), (loose - stack).norm(dim=1)
        assert bool((moved < 0.9 * would).all())
        if isinstance(limit, PerComponent):
            torch.testing.assert_close(moved, torch.full_like(moved, 0.02 * 2**0.5))


@pytest.mark.parametrize("make", [ModelAveraging, GradientAveraging])
def test_two_rounds_with_memory_are_one_long_descent(make):
    stack, minibatches = drawn(6)
    memory = Memory()
    algorithm = make(NG)
    if make is GradientAveraging:
        contributed(algorithm, memory, minibatches[:4], stack)
        late = contributed(algorithm, memory, minibatches[4:], stack)
        state = NG.start(LAYOUT.sizes, WORKERS, torch.float64)
        sums = torch.zeros_like(stack)
        for i, minibatch in enumerate(minibatches):
            out = torch.empty_like(stack)
            _, state = NG.direction(NET, stack, minibatch, state, 0.05, out)
            sums += out if i >= 4 else 0.0
        torch.testing.assert_close(late, sums / 12, rtol=1e-12, atol=1e-14)
    else:
        half = contributed(algorithm, memory, minibatches[:3], stack)
        late = contributed(algorithm, memory, minibatches[3:], half)
        assert torch.equal(late, contributed(algorithm, Memory(), minibatches, stack))


@pytest.mark.parametrize(
    ("restart", "forgets_in_round", "forgets_at_pass"),
    [("never", False, False), ("pass", False, True), ("round", True, True)],
)
def test_estimates_are_forgotten_when_the_setting_says(restart, forgets_in_round, forgets_at_pass):
    stack, minibatches = drawn(6)
    fresh = contributed(ModelAveraging(NG), Memory(), minibatches[3:], stack)
    for new_pass, forgets in ((False, forgets_in_round), (True, forgets_at_pass)):
        algorithm, memory = ModelAveraging(NG, restart), Memory()
        contributed(algorithm, memory, minibatches[:3], stack)
        memory.new_pass = new_pass
        again = contributed(algorithm, memory, minibatches[3:], stack)
        assert torch.equal(again, fresh) is forgets


def test_a_memory_of_other_workers_is_refused():
    stack, minibatches = drawn(1)
    memory, algorithm = Memory(), ModelAveraging(NG)
    contributed(algorithm, memory, minibatches, stack)
    fewer = [Minibatch(m.x[:2], m.targets[:2]) for m in minibatches]
    with pytest.raises(ValueError, match="2 workers contribute with a memory of"):
        contributed(algorithm, memory, fewer, stack[:2])


def test_a_worker_is_not_moved_by_what_the_others_see():
    stack, minibatches = drawn(4)
    algorithm = ModelAveraging(NG)
    together = contributed(algorithm, Memory(), minibatches, stack)
    for worker in range(WORKERS):
        own = slice(worker, worker + 1)
        alone = [Minibatch(m.x[own], m.targets[own]) for m in minibatches]
        torch.testing.assert_close(
            contributed(algorithm, Memory(), alone, stack[own]), together[own], rtol=1e-11, atol=0
        )
