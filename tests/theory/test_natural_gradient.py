"""What the natural gradient is for, on problems whose answer is known in closed form."""

import pytest
import torch
from torch import Tensor

from harness.base.seeds import stream
from harness.natural_gradient import NaturalGradient, Preconditioner
from harness.natural_gradient.estimate import Rows, materialise
from harness.natural_gradient.layer import Sides

FLOAT64 = torch.float64


def normal(*shape: int, key: int = 0) -> Tensor:
    return torch.from_numpy(stream(21, "theory", key, *shape).standard_normal(shape))


def regression(spread: float) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs ``[1, N, 6]`` of unequal, correlated columns, a linear map's targets, the map."""
    x = normal(1, 1024, 6) * torch.logspace(0, -spread, 6, dtype=FLOAT64)
    x = x @ torch.linalg.qr(normal(6, 6, key=1))[0] + 0.2
    truth = normal(1, 4, 7, key=2)
    return x, x @ truth[:, :, :6].mT + truth[:, :, 6].unsqueeze(1), truth


def direction_of(
    options: NaturalGradient, x: Tensor, delta: Tensor, sides: Sides, rate: float
) -> tuple[Tensor, Sides]:
    """``[weight, bias]`` of a layer's direction, ``[1, n, m + 1]``, and its next state."""
    rows, ends = Rows(x, appended=True), Rows(delta)
    after, inputs, outputs, scale = options.precondition(rows, ends, sides, rate)
    ones = 1.0 - inputs.along @ inputs.basis[:, :, -1:]
    columns = torch.cat([materialise(rows, inputs), ones], 2)
    return scale * materialise(ends, outputs).mT @ columns, after


def converged_direction(x: Tensor, y: Tensor, theta: Tensor) -> Tensor:
    """The direction at ``theta [1, n, m + 1]`` once the inputs' estimate has settled."""
    options = NaturalGradient(Preconditioner(rank=x.shape[2], alpha=0.0), None)
    n, m = theta.shape[1], x.shape[2]
    (state,) = options.start((m, n), 1, FLOAT64)
    residual = x @ theta[:, :, :m].mT + theta[:, :, m].unsqueeze(1) - y
    for _ in range(150):
        direction, state = direction_of(options, x, residual, state, 1.0)
    return direction


def test_with_full_rank_least_squares_is_solved_in_newtons_one_step():
    x, y, truth = regression(spread=0.6)
    direction = converged_direction(x, y, torch.zeros_like(truth))
    rate = (direction * -truth).sum() / direction.square().sum()
    assert (-rate * direction - truth).norm() < 1e-6 * truth.norm()


def test_the_fitted_function_moves_alike_in_other_coordinates_of_the_inputs():
    x, y, truth = regression(spread=0.3)
    turn = torch.eye(6, dtype=FLOAT64) + 0.2 * normal(6, 6, key=5)
    wide = torch.ones_like(x[..., :1])
    moves = []
    for seen in (x, x @ turn):
        direction = converged_direction(seen, y, torch.zeros_like(truth))
        move = torch.cat([seen, wide], 2) @ direction.mT
        moves.append(move / move.norm())
    assert (moves[0] - moves[1]).norm() < 1e-6


def steps_to_fit(options: NaturalGradient, rate: float) -> int:
    """Minibatches until the squared error is a hundredth of the first; 1000 if never."""
    (state,) = options.start((30, 4), 1, FLOAT64)
    weight, bias = torch.zeros(1, 4, 30, dtype=FLOAT64), torch.zeros(1, 4, dtype=FLOAT64)
    sizes = torch.logspace(0, -1.5, 30, dtype=FLOAT64)
    truth = normal(1, 4, 30, key=3) / sizes
    first = None
    for step in range(1000):
        x = normal(1, 128, 30, key=100 + step % 50) * sizes
        residual = x @ (weight - truth).mT + bias.unsqueeze(1)
        error = float(residual.square().mean())
        first = error if first is None else first
        if error < 0.01 * first:
            return step
        if not error < 1e6 * first:
            break
        step, state = direction_of(options, x, residual / 128, state, rate)
        weight, bias = weight - rate * step[..., :-1], bias - rate * step[..., -1]
    return 1000


@pytest.mark.nightly
def test_unequal_inputs_cost_fewer_steps_than_sgd_at_its_best_rate():
    inputs = Preconditioner(rank=10, alpha=1.0)
    # Both ladders reach from too slow to divergence.
    sgd = [steps_to_fit(NaturalGradient(None, None), rate) for rate in (0.5, 1.0, 1.4, 2.0)]
    natural = [steps_to_fit(NaturalGradient(inputs, None), rate) for rate in (1.0, 2.0, 4.0, 8.0)]
    assert sgd[-1] == natural[-1] == 1000
    assert min(natural) < 0.5 * min(sgd) < 500
