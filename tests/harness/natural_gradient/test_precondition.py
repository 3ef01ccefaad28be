import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.natural_gradient import Preconditioner
from harness.natural_gradient.estimate import (
    FIRST_CALLS,
    WARMING_PASSES,
    Factor,
    Moment,
    Rows,
    materialise,
    precondition,
)
from tests.harness.natural_gradient.dense import DenseOracle

FLOAT64 = torch.float64


def drawn(*shape: int, key: int = 0, spread: float = 1.0) -> Tensor:
    """Correlated rows: normal draws through a fixed map whose columns differ in size."""
    noise = stream(7, "rows", key, *shape).standard_normal(shape)
    width = shape[-1]
    mix = stream(7, "mix", width).standard_normal((width, width)) / math.sqrt(width)
    mix = mix * np.exp(-spread * np.arange(width) / width)
    return torch.from_numpy(noise @ mix.T + 0.3)


def dense(moment: Moment) -> Tensor:
    """F, ``[R, D, D]``."""
    orthonormal = moment.basis / moment.shrink.sqrt().unsqueeze(2)
    unit = torch.eye(moment.basis.shape[2], dtype=FLOAT64)
    inside = orthonormal.mT @ (moment.energy.unsqueeze(2) * orthonormal)
    return inside + moment.floor[:, None, None] * unit


def shrunk(rows: Rows, factor: Factor) -> Tensor:
    """All columns of ``γ (X - HW)``."""
    x = rows.x
    if rows.appended:
        x = torch.cat([x, torch.ones_like(x[..., :1])], 2)
    return factor.gain[:, None, None] * (x - factor.along @ factor.basis)


SHAPES = [
    (rank, width, count, period, alpha)
    for (rank, width), count, (period, alpha) in itertools.product(
        [(1, 2), (3, 8), (4, 17), (9, 10), (20, 12), (8, 40)], [1, 9, 64], [(1, 4.0), (4, 0.5)]
    )
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sixty_calls_follow_the_dense_method(shape):
    rank, width, count, period, alpha = shape
    options = Preconditioner(rank=rank, period=period, alpha=alpha)
    oracle, moment = DenseOracle(options, width), options.start(1, width, FLOAT64)
    for step in range(60):
        x = drawn(1, count, width, key=step)
        expected = oracle(x[0].numpy())
        moment, factor = precondition(moment, Rows(x), options)
        found = shrunk(Rows(x), factor)[0].numpy()
        assert np.linalg.norm(found - expected) <= 5e-5 * np.linalg.norm(expected)
        f = oracle.f
        assert np.linalg.norm(dense(moment)[0].numpy() - f) <= 5e-5 * np.linalg.norm(f)


def after(calls: int, options: Preconditioner, width: int = 12, count: int = 30) -> Moment:
    moment = options.start(2, width, FLOAT64)
    for step in range(calls):
        moment, _ = precondition(moment, Rows(drawn(2, count, width, key=step)), options)
    return moment


@pytest.mark.parametrize("rank", [1, 5, 11])
def test_r_stays_orthonormal_and_woodbury_holds(rank):
    options = Preconditioner(rank=rank)
    moment = after(50, options)
    orthonormal = moment.basis / moment.shrink.sqrt().unsqueeze(2)
    unit = torch.eye(rank, dtype=FLOAT64)
    # Z squares the spread of F, so its rounding does too.
    spread = float((moment.energy.amax(1) / moment.energy.amin(1)).max())
    assert (orthonormal @ orthonormal.mT - unit).abs().max() < 1e-14 + 1e-16 * spread**2
    beta = moment.floor * (1 + options.alpha) + options.alpha * moment.energy.sum(1) / 12
    g = dense(moment)
    g += options.alpha / 12 * g.diagonal(dim1=1, dim2=2).sum(1)[:, None, None] * torch.eye(12)
    left = (torch.eye(12) - moment.basis.mT @ moment.basis) @ g / beta[:, None, None]
    assert (left - torch.eye(12)).abs().max() < 1e-13


def test_norm_is_kept_gain_is_at_least_one_and_no_row_turns_back():
    options = Preconditioner(rank=5, alpha=1.0)
    moment = options.start(2, 12, FLOAT64)
    for step in range(20):
        rows = Rows(drawn(2, 30, 12, key=step))
        moment, factor = precondition(moment, rows, options)
        hat = shrunk(rows, factor)
        ratio = hat.norm(dim=(1, 2)) / rows.x.norm(dim=(1, 2))
        assert (ratio - 1).abs().max() < 4e-15
        assert (factor.gain >= 1).all()
        assert ((rows.x * hat).sum(2) >= 0).all()
        squares = materialise(rows, factor).square().sum(2)
        torch.testing.assert_close(factor.squares, squares, rtol=1e-13, atol=0)


def test_a_repeated_minibatch_leads_to_its_exact_inverse():
    width, count = 8, 1024
    options = Preconditioner(rank=width - 1, alpha=0.0)
    draw = stream(3, "repeated").standard_normal((count, width))
    q, _ = np.linalg.qr(draw)
    turn, _ = np.linalg.qr(stream(3, "turn").standard_normal((width, width)))
    x = torch.from_numpy(q @ np.diag(np.geomspace(1, math.sqrt(28), width)) @ turn)[None]
    moment = options.start(1, width, FLOAT64)
    for _ in range(100):
        moment, factor = precondition(moment, Rows(x), options)
    exact = torch.linalg.solve(x.mT @ x / count, x.mT).mT
    exact *= x.norm() / exact.norm()
    assert (shrunk(Rows(x), factor) - exact).norm() <= 2e-7 * exact.norm()


def test_a_scale_given_by_name_is_the_scale_of_the_rows():
    options = Preconditioner(rank=5)
    one, two = options.start(1, 12, FLOAT64), options.start(1, 12, FLOAT64)
    for step in range(15):
        x = drawn(1, 30, 12, key=step)
        one, first = precondition(one, Rows(x), options, scale=1024.0)
        two, second = precondition(two, Rows(1024.0 * x), options)
        torch.testing.assert_close(first.gain, second.gain, rtol=1e-12, atol=0)
    torch.testing.assert_close(dense(one), dense(two), rtol=1e-11, atol=0)


def test_zero_rows_are_finite_and_the_estimate_recovers():
    options = Preconditioner(rank=5)
    moment = options.start(1, 12, FLOAT64)
    for _ in range(5):
        moment, factor = precondition(moment, Rows(torch.zeros(1, 30, 12, dtype=FLOAT64)), options)
        assert (shrunk(Rows(torch.zeros(1, 30, 12)), factor) == 0).all()
        assert (factor.gain == 1).all()
    fresh = options.start(1, 12, FLOAT64)
    for step in range(400):
        x = drawn(1, 30, 12, key=step)
        moment, factor = precondition(moment, Rows(x), options)
        fresh, expected = precondition(fresh, Rows(x), options)
    torch.testing.assert_close(
        shrunk(Rows(x), factor), shrunk(Rows(x), expected), rtol=0.02, atol=0.02
    )


def test_replicas_together_equal_each_alone():
    options = Preconditioner(rank=5, period=2)
    together = options.start(4, 13, FLOAT64)
    alone = [options.start(1, 13, FLOAT64) for _ in range(4)]
    # One replica's rows are of rank 1 and one's are zero at first: their repairs must not
    # touch the others.
    for step in range(15):
        x = drawn(4, 6, 12, key=step)
        x[1] = x[1, :1]
        x[2] *= step > 4
        together, all_of_them = precondition(together, Rows(x, appended=True), options)
        hat = shrunk(Rows(x, appended=True), all_of_them)
        for r in range(4):
            rows = Rows(x[r : r + 1], appended=True)
            alone[r], factor = precondition(alone[r], rows, options)
            torch.testing.assert_close(hat[r], shrunk(rows, factor)[0], rtol=1e-9, atol=1e-9)


def test_an_appended_one_equals_a_column_of_ones():
    options = Preconditioner(rank=5)
    short, long = options.start(1, 12, FLOAT64), options.start(1, 12, FLOAT64)
    for step in range(15):
        x = drawn(1, 30, 11, key=step)
        wide = Rows(torch.cat([x, torch.ones(1, 30, 1, dtype=FLOAT64)], 2))
        short, first = precondition(short, Rows(x, appended=True), options)
        long, second = precondition(long, wide, options)
        torch.testing.assert_close(shrunk(Rows(x, True), first), shrunk(wide, second))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 7), (3, 2), (40, 7), (64, 30)], ids=str)
def test_no_rows_make_a_nan(shape, scale, dtype):
    count, width = shape
    options = Preconditioner(rank=8)
    moment = options.start(2, width, dtype)
    low_rank = drawn(2, count, width, key=1)[:, :, :1] * torch.ones(width)
    rows = [drawn(2, count, width), low_rank, torch.zeros(2, count, width), drawn(2, count, width)]
    sizes = [scale, scale, scale, 1.0, scale]
    for x, size in itertools.product(rows, sizes):
        given = Rows((x.double() * size).to(dtype))
        moment, factor = precondition(moment, given, options)
        assert factor.gain.isfinite().all()
        assert (factor.gain >= 1).all()
        assert materialise(given, factor).isfinite().all()
        for name, tensor in moment.tensors().items():
            assert tensor.isfinite().all(), name


def test_scales_that_jump_leave_r_orthonormal():
    options = Preconditioner(rank=4)
    moment = options.start(1, 9)
    for step, size in enumerate([1.0, 1e25, 1e-25, 1.0, 1e12, 1.0] * 3):
        x = drawn(1, 20, 9, key=step).float() * size
        moment, _ = precondition(moment, Rows(x), options)
        r = moment.basis.double() / moment.shrink.sqrt().unsqueeze(2)
        assert (r @ r.mT - torch.eye(4)).abs().max() < 2e-3


def test_a_minibatch_that_is_not_finite_changes_nothing():
    options = Preconditioner(rank=5)
    moment = after(12, options)
    x = drawn(2, 30, 12, key=40)
    x[0, 3, 2] = math.nan
    next_moment, factor = precondition(moment, Rows(x), options)
    assert factor.gain.isfinite().all()
    assert torch.equal(next_moment.basis[0], moment.basis[0])
    assert not torch.equal(next_moment.basis[1], moment.basis[1])
    assert next_moment.floor.isfinite().all()


def test_float32_follows_float64():
    options = Preconditioner(rank=10, period=4)
    single, double = options.start(1, 60), options.start(1, 60, FLOAT64)
    for step in range(60):
        x = drawn(1, 50, 60, key=step, spread=4.0)
        single, first = precondition(single, Rows(x.float()), options)
        double, second = precondition(double, Rows(x), options)
        found, expected = shrunk(Rows(x.float()), first), shrunk(Rows(x), second)
        assert (found - expected).norm() < 1e-3 * expected.norm()
    r = single.basis.double() / single.shrink.sqrt().unsqueeze(2)
    assert (r @ r.mT - torch.eye(10)).abs().max() < 1e-4


def test_estimates_change_in_ten_calls_and_then_once_a_period():
    options = Preconditioner(rank=3, period=4)
    moment, changed = options.start(1, 9, FLOAT64), []
    for call in range(24):
        before = moment.basis
        moment, _ = precondition(moment, Rows(drawn(1, 20, 9, key=call)), options)
        if not torch.equal(before, moment.basis):
            changed.append(call)
    assert changed == [*range(FIRST_CALLS), 13, 17, 21]
    assert WARMING_PASSES == 3


def test_a_saved_estimate_goes_on_as_if_never_saved():
    options = Preconditioner(rank=5, period=4)
    moment = after(13, options)
    again = Moment.from_tensors(moment.tensors())
    for step in range(13, 20):
        rows = Rows(drawn(2, 30, 12, key=step))
        moment, first = precondition(moment, rows, options)
        again, second = precondition(again, rows, options)
        assert torch.equal(first.gain, second.gain)
        assert torch.equal(moment.basis, again.basis)
    assert again.calls == moment.calls == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rank", 0),
        ("period", 0),
        ("alpha", -1.0),
        ("history", 0.0),
        ("epsilon", 0.0),
        ("delta", 2.0),
    ],
)
def test_options_out_of_range_are_named(name, value):
    with pytest.raises(UserError, match=name):
        Preconditioner(**{name: value})
