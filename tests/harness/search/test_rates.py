from __future__ import annotations

import math

import pytest

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import GradientAveraging
from harness.search.search import MOST_TRIES, linearly_scaled, swept


@pytest.mark.parametrize("best", [-6, -1, 0, 1, 5])
def test_the_best_rate_of_a_bowl_is_found_from_far_away(best):
    found = swept(1.0, lambda rate: (math.log2(rate) - best) ** 2)
    assert found.rate == 2.0**best
    assert found.inside


def test_a_guess_that_diverges_leads_downwards():
    found = swept(1.0, lambda rate: math.inf if rate > 0.1 else 1.0 / rate)
    assert found.rate == 2.0**-4


def test_a_guess_next_to_the_best_costs_three_tries():
    assert len(swept(0.5, lambda rate: abs(math.log2(rate) + 1)).tried) == 3


def test_where_nothing_trains_the_search_ends_and_says_so():
    found = swept(1.0, lambda rate: math.inf)
    assert len(found.tried) == MOST_TRIES
    assert not found.inside


def test_only_a_mean_of_gradients_earns_a_larger_rate():
    assert linearly_scaled(0.1, GradientAveraging(), 2, 8) == pytest.approx(0.4)
    assert linearly_scaled(0.1, AsyncSgd(), 2, 8) == 0.1
