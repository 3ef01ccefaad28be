"""Local optimizers against PyTorch's own, and against the algebra of what they do."""

import pytest
import torch

from harness.algorithms.averaging import GradientAveraging, ModelAveraging
from harness.algorithms.contract import Fold, LocalWork, Memory
from harness.algorithms.descent import (
    PLAIN,
    QUINTIC,
    Momentum,
    Muon,
    local_steps,
    orthogonal,
)
from tests.harness.algorithms.conftest import LAYOUT, NET, WORKERS, drawn

RATE = 0.05


def test_muon_goes_where_pytorchs_does_as_far_as_its_half_precision_goes():
    """Where singular values are of one size: near zero PyTorch's bfloat16 has no figures left."""
    stack, _ = drawn(1)
    draw = torch.Generator().manual_seed(1)
    gradients, size = torch.zeros_like(stack), 0.2 * 5**0.5
    for weight, _ in LAYOUT.views(gradients):
        u, _, v = torch.linalg.svd(
            torch.randn(weight.shape, dtype=torch.float64, generator=draw), False
        )
        weight.copy_(u @ v)
    directions, state = gradients.clone(), Muon().start(stack)
    for _ in range(2):
        Muon().direct_(directions.copy_(gradients), stack, state, NET)
    layers = (LAYOUT.views(each) for each in (gradients, directions))
    for (gradient, _), (direction, _) in zip(*layers, strict=True):
        weight = torch.zeros_like(gradient[0]).requires_grad_()
        made = torch.optim.Muon([weight], 1.0, 0.0, 0.95, adjust_lr_fn="match_rms_adamw")
        for _ in range(2):
            weight.grad, before = gradient[0].clone(), weight.detach().clone()
            made.step()
        went = before - weight.detach()
        torch.testing.assert_close(direction[0], went, rtol=0, atol=0.1 * size)


@pytest.mark.parametrize("shape", [(2, 4, 7), (2, 7, 4), (1, 5, 5)])
def test_orthogonalised_matrices_have_the_polynomials_singular_values(shape):
    draw = torch.Generator().manual_seed(shape[1])
    matrices = torch.randn(*shape, dtype=torch.float64, generator=draw)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    s = s / s.norm(dim=1, keepdim=True)
    for _ in range(5):
        s = sum(c * s**p for c, p in zip(QUINTIC, (1, 3, 5), strict=True))
    torch.testing.assert_close(orthogonal(matrices, 5), u @ torch.diag_embed(s) @ v)
    assert ((s > 0.5) & (s < 1.5)).all()


@pytest.mark.parametrize("kind", [ModelAveraging, GradientAveraging])
def test_with_one_local_step_momentum_of_zero_is_plain_descent(kind):
    stack, minibatches = drawn(1)
    ends = []
    for descent in (PLAIN, Momentum(0.0)):
        algorithm, out = kind(descent).on(NET), torch.empty_like(stack)
        server = algorithm.start(stack[0])
        algorithm.contribute(LocalWork(NET, stack.clone(), minibatches, out, RATE, Memory()))
        algorithm.fold(server, Fold(out, [0] * WORKERS, RATE))
        ends.append(server.model)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-15)


def test_a_memory_of_other_workers_is_refused():
    stack, minibatches = drawn(1)
    memory = Memory({"optimizer.momentum": torch.zeros(WORKERS + 1, LAYOUT.parameters)})
    with pytest.raises(ValueError, match="3 workers contribute with a memory of"):
        local_steps(Momentum(), NET, stack, minibatches, RATE, memory)


@pytest.mark.parametrize(
    ("restart", "forgets"), [("never", False), ("pass", True), ("round", True)]
)
def test_an_optimizer_forgets_when_it_is_told_to(restart, forgets):
    stack, minibatches = drawn(2)
    fresh, memory = stack.clone(), Memory()
    local_steps(Momentum(), NET, fresh, minibatches[1:], RATE, Memory())
    local_steps(Momentum(), NET, stack.clone(), minibatches[:1], RATE, memory, restart)
    local_steps(Momentum(), NET, stack, minibatches[1:], RATE, memory, restart)
    assert torch.equal(stack, fresh) is forgets
