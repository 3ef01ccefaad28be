import math

import numpy as np
import pytest

from reproductions.paper2_ng_averaging.law import Cell, Law, fit, pseudo_values, slope

TRUE = Law(0.15, 0.9, 0.45)


def cells(law: Law, noise: float = 0.0) -> list[Cell]:
    draw = np.random.default_rng(0)
    grid = [(n, d / n) for n in (8.0, 32.0) for d in (640.0, 1280.0, 2560.0)]
    return [Cell(n, r, law.ratio(n, r) + noise * draw.standard_normal()) for n, r in grid]


def test_the_law_that_made_the_ratios_is_found_and_predicts_a_cell_held_out():
    found = fit(cells(TRUE))
    assert (found.size, found.by_workers, found.by_averages) == pytest.approx(
        (0.15, 0.9, 0.45), rel=1e-4
    )
    assert found.ratio(16.0, 640.0) == pytest.approx(TRUE.ratio(16.0, 640.0), abs=1e-6)


def test_noise_of_the_size_of_a_seeds_moves_the_prediction_little():
    found = fit(cells(TRUE, 0.01))
    assert found.ratio(16.0, 320.0) == pytest.approx(TRUE.ratio(16.0, 320.0), abs=0.02)


def test_where_nothing_is_lost_nothing_is_predicted():
    flat = [cell._replace(ratio=1.0 - 0.01 * (-1) ** i) for i, cell in enumerate(cells(TRUE))]
    assert fit(flat).ratio(16.0, 8900.0) == pytest.approx(1.0, abs=0.005)


def test_the_slope_is_the_power_of_a_power_law():
    data = [1.0, 2.0, 4.0]
    assert slope(data, [3.0 * d**-0.3 for d in data]) == pytest.approx(0.3)


def test_beyond_the_most_that_pay_the_error_rises_again():
    """Against the minimum found by trying every number of workers."""
    law, averages, by_data = Law(0.15, 0.9, 0.45), 160.0, 0.3
    tried = np.geomspace(1.0, 1e4, 20001)
    error = [n**-by_data * law.ratio(n, averages) for n in tried]
    assert law.most_that_pay(averages, by_data) == pytest.approx(tried[np.argmin(error)], rel=1e-3)
    assert law.most_that_pay(averages, 1.0) == math.inf


def test_the_jackknife_of_a_mean_is_the_sample_itself():
    sample = [3.0, 1.0, 4.0, 1.5]
    found = pseudo_values(lambda seeds: float(np.mean([sample[s] for s in seeds])), 4)
    assert found == pytest.approx(sample)
