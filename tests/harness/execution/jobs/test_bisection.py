"""Where something ends, where it is known."""

from __future__ import annotations

import math

import pytest

from harness.execution.jobs.bisection import bisected

GRID = (0.001, 0.01, 0.1, 1.0)


@pytest.mark.parametrize("edge", [0.0011, 0.002, 0.05, 0.9])
@pytest.mark.parametrize(("tried", "wide"), [((0.001, 1.0), 1000.0), (GRID, 10.0)])
def test_what_lies_between_is_found_to_the_last_halving(edge, tried, wide):
    asked = []
    low, high = bisected(tried, 5, lambda value: asked.append(value) or value <= edge)
    assert low <= edge < high
    assert high / low == pytest.approx(wide ** (1 / 32))
    assert len(asked) == len(set(asked))
    assert len(asked) <= 5 + 2 + (tried == GRID)


@pytest.mark.parametrize("tried", [(0.001, 1.0), GRID])
def test_beyond_the_ends_nothing_is_known(tried):
    assert bisected(tried, 3, lambda value: True) == (1.0, math.inf)
    assert bisected(tried, 3, lambda value: False) == (0.0, 0.001)


def test_a_grid_is_searched_before_anything_between():
    asked = []
    low, high = bisected(GRID, 0, lambda value: asked.append(value) or value < 0.05)
    assert (low, high) == (0.01, 0.1)
    assert set(asked) <= set(GRID)
