"""T* of fetch sweeps on curves whose T* is known."""

import math

import numpy as np
import pytest

from reproductions.paper3_async_mmi.quantities import (
    COSTS_NOTHING,
    Sweep,
    log_tolerances,
    shape,
    shape_told,
    tolerance_ratio,
    tolerances,
)

INTERVALS = np.array([0.0, 0.005, 0.01, 0.02, 0.04, 0.08])


def sweep(star: float, power: float, noise: float = 0.0, seeds: int = 4, seed: int = 0) -> Sweep:
    """Gains of about 3, other ones for each seed."""
    draw = np.random.default_rng(seed)
    whole = 3.0 + draw.uniform(-1, 1, (seeds, 1))
    left = (1 - COSTS_NOTHING) ** ((INTERVALS / star) ** power)
    return Sweep(INTERVALS, whole * left * (1 + noise * draw.standard_normal((seeds, 6))))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("power", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("star", [0.008, 0.02, 0.05])
def test_without_noise_t_star_is_found_to_a_step_of_the_search(star, power):
    others = sweep(2 * star, power, seed=1)
    found = np.exp2(log_tolerances([sweep(star, power), others]))
    assert found == pytest.approx([star, 2 * star], rel=0.03)


def test_what_is_lost_at_t_star_is_what_counts_as_nothing():
    exact = sweep(0.02, 1.0)
    assert exact.gains[:, 3] == pytest.approx((1 - COSTS_NOTHING) * exact.gains[:, 0])


@pytest.mark.nightly
def test_intervals_hold_the_true_value_about_as_often_as_they_say():
    hits = [
        t.low <= math.log2(0.02) <= t.high
        for seed in range(40)
        for t in tolerances([sweep(0.02, 1.0, 0.03, seed=seed)])
    ]
    assert 0.85 <= np.mean(hits) <= 1.0


def test_a_ratio_is_found_with_its_interval():
    halved = tolerance_ratio(sweep(0.01, 1.0, 0.01, 6), sweep(0.02, 1.0, 0.01, 6, seed=9), ())
    assert halved.low < -1 < halved.high
    assert halved.low > math.log2(0.3)
    assert halved.high < math.log2(0.8)


def test_a_sweep_that_costs_nothing_or_everything_has_no_t_star():
    nothing = Sweep(INTERVALS, np.ones((3, 6)))
    everything = Sweep(INTERVALS, np.tile([1.0, 0, 0, 0, 0, 0], (3, 1)))
    assert np.isnan(log_tolerances([nothing])).all()
    assert np.isnan(log_tolerances([everything])).all()
    unknown = tolerance_ratio(nothing, sweep(0.02, 1.0, seeds=3), ())
    assert (unknown.low, unknown.high) == (-math.inf, math.inf) or math.isnan(unknown.estimate)


def test_a_sweep_that_gained_nothing_leaves_the_others_as_they_are():
    dead, alive = Sweep(INTERVALS, np.zeros((4, 6))), sweep(0.02, 2.0)
    assert np.isnan(log_tolerances([dead])).all()
    assert log_tolerances([alive, dead])[0] == log_tolerances([alive])[0]
    assert shape([alive, dead]) == pytest.approx(2.0, rel=0.05)
    assert shape_told([dead]) == "none"


def test_a_cliff_is_told_as_the_end_of_what_is_tried():
    cliff = Sweep(INTERVALS, np.tile([1.0, 1.0, 1.0, 0.99, 0.0, 0.0], (3, 1)))
    assert shape_told([cliff]) == "6 or more"
    assert shape_told([sweep(0.02, 2.0)]) == "2"


def test_where_losses_set_in_alike_a_shape_for_all_sweeps_bounds_a_ratio_more_tightly():
    alike = sweep(0.01, 2.0, 0.03, 8), sweep(0.02, 2.0, 0.03, 8, seed=9)
    shared, alone = tolerance_ratio(*alike), tolerance_ratio(*alike, shared=False)
    assert shared.high - shared.low < alone.high - alone.low
    unlike = sweep(0.01, 4.0, seeds=8), sweep(0.02, 1.0, seeds=8)
    assert tolerance_ratio(*unlike, shared=False).estimate == pytest.approx(-1.0, abs=0.1)
    assert abs(tolerance_ratio(*unlike).estimate + 1.0) > 0.2, "one shape does not suit both"


def test_one_seed_bounds_nothing():
    found = tolerances([sweep(0.02, 1.0, seeds=1)])[0]
    assert 2**found.estimate == pytest.approx(0.02, rel=0.03)
    assert not math.isfinite(found.high)
