"""The stability law on cells that follow it exactly, and on cells with noise."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reproductions.paper3_async_mmi.experiments import CELLS, FITTED
from reproductions.paper3_async_mmi.law import (
    LARGE,
    Law,
    RateBracket,
    _describe_fit,
    _law_of,
    figure,
    fit_law,
    slope,
)

AGES = np.array([20.0, 250, 1100, 260, 240, 1200])
SLOTS = np.array([4, 4, 4, 2, 8, 8])


@pytest.mark.parametrize("wear", [0.0005, 0.004, 0.05])
def test_cells_that_follow_the_law_give_it_back(wear):
    true = Law(130.0, wear)
    rates = [true.rate(a, s) for a, s in zip(AGES, SLOTS, strict=True)]
    found = fit_law(AGES, SLOTS, rates)
    assert found.wear == pytest.approx(wear, rel=0.03)
    assert found.rate(600, 4) == pytest.approx(true.rate(600, 4), rel=0.01)


def test_where_age_dominates_rate_times_stale_frames_is_constant():
    law = Law(1.0, 1e6)
    products = [law.rate(age, slots) * slots * age for age in (100, 1000) for slots in (2, 8)]
    assert products == pytest.approx([products[0]] * 4, rel=1e-4)


def test_the_slope_of_a_power_is_the_power():
    found = slope(AGES, 3.0 * AGES**-1.0)
    assert (found.estimate, found.low, found.high) == pytest.approx((-1, -1, -1))


def test_the_slope_s_interval_holds_it_about_as_often_as_it_says():
    draw = np.random.default_rng(0)
    noisy = (slope(AGES, AGES**-0.7 * np.exp(0.2 * draw.standard_normal(6))) for _ in range(400))
    held = np.mean([s.low <= -0.7 <= s.high for s in noisy])
    assert 0.92 < held < 0.98


def test_rates_twice_as_large_halve_what_is_fresh():
    rates = np.array([Law(100.0, 0.01).rate(a, s) for a, s in zip(AGES, SLOTS, strict=True)])
    once, twice = fit_law(AGES, SLOTS, rates), fit_law(AGES, SLOTS, 2 * rates)
    assert twice.fresh == pytest.approx(once.fresh / 2)
    assert math.isclose(once.wear, twice.wear)


def _cells(law: Law) -> dict:
    """Cells whose brackets have the law's rate in their middle."""
    found = {}
    for number, cell in enumerate(CELLS):
        age = 30.0 * (number + 1)
        rate = law.rate(age, cell.slots)
        found[cell] = RateBracket(rate / 1.1, rate * 1.1, age, cell.slots)
    return found


def test_cells_that_follow_the_law_lie_on_its_curves():
    found = _cells(Law(100.0, 0.01))
    shown = figure(found, dict.fromkeys(CELLS, ()))
    rows = shown.rows
    assert "the widest a factor of 1.21;" in shown.note
    law = {(r.label.removeprefix("law, "), r.column): r.measured for r in rows if "law" in r.label}
    points = [row for row in rows if "law" not in row.label]
    assert len(points) == len(CELLS)
    for row in points:
        assert row.measured == pytest.approx(law[row.label.split(", τ")[0], row.column], rel=0.02)
        assert row.column in {each.age for each in found.values()}
    assert max(row.measured for row in points) == pytest.approx(
        LARGE * max(each.rate for each in found.values())
    )


def test_a_cell_without_both_ends_is_not_drawn_and_one_of_the_fit_leaves_no_law():
    found = _cells(Law(100.0, 0.01))
    lost = FITTED[0]
    found[lost] = RateBracket(math.nan, 1.0, 30.0, lost.slots)
    rows = figure(found, dict.fromkeys(CELLS, ())).rows
    assert len([row for row in rows if "law" not in row.label]) == len(CELLS) - 1
    assert all(row.measured is None for row in rows if "law" in row.label)


def test_the_note_says_how_far_the_law_and_what_it_is_held_beside_are_from_held_out_cells():
    found = _cells(Law(100.0, 0.01))
    alike = {cell: replace(m, stable=1e-4 / 1.1, diverged=1e-4 * 1.1) for cell, m in found.items()}
    told = _describe_fit(_law_of(alike), [alike[cell] for cell in FITTED], alike)
    assert "; one rate for all cells 0%." in told
    assert "the law 0%;" in _describe_fit(_law_of(found), [found[cell] for cell in FITTED], found)
    inverse = {
        cell: replace(
            m, stable=1 / max(1, cell.replicas - 1), diverged=1 / max(1, cell.replicas - 1)
        )
        for cell, m in found.items()
    }
    told = _describe_fit(_law_of(inverse), [inverse[cell] for cell in FITTED], inverse)
    assert "rate × staleness of inner gradients constant 0%;" in told
