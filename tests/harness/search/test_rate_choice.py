"""Learning rates chosen with several seeds, on synthetic curves whose best rate is known."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.search.rates import (
    MOST_TRAININGS,
    TUNING_SEEDS,
    choose_rung,
    search_rate,
)
from harness.search.search import MOST_TRIES, solve


def searched(error, guess=1.0):
    """The choice, and the number of trainings, where the error is a function of rung and seed."""
    asked: list[tuple[float, int]] = []

    def train(wanted):
        asked.append(wanted)
        return error(round(math.log2(wanted[0] / guess)), TUNING_SEEDS.index(wanted[1]))

    found = solve(search_rate(guess), train)
    assert max(Counter(asked).values()) == 1
    assert {rate: len(each) for rate, each in found.tried.items()} == Counter(r for r, _ in asked)
    return found, len(asked)


@pytest.mark.parametrize("best", [-6, -1, 0, 3])
def test_without_noise_the_best_rate_is_chosen_and_each_neighbour_is_trained_with_both_seeds(best):
    found, _ = searched(lambda rung, seed: (rung - best) ** 2 + 10.0 * seed)
    assert found.rate == found.best == 2.0**best
    assert found.inside
    assert all(len(found.tried[2.0 ** (best + side)]) == 2 for side in (-1, 0, 1))


def test_the_smaller_of_rates_that_seeds_cannot_tell_apart_is_chosen():
    errors = {-2: (0.5, 0.5), -1: (0.31, 0.29), 0: (0.30, 0.295), 1: (0.28, 0.30), 2: (0.6, 0.6)}
    found, count = searched(lambda rung, seed: errors[rung][seed])
    assert (found.best, found.rate, found.inside) == (2.0, 0.5, True)
    assert count == 10
    assert found.tried == {2.0**rung: each for rung, each in errors.items()}


def test_a_rate_that_is_best_with_the_first_seed_and_diverges_with_the_second_is_not_chosen():
    found, _ = searched(lambda rung, seed: math.inf if rung > 1 - seed else 1.0 - 0.1 * rung)
    assert found.rate == found.best == 1.0
    assert found.tried[2.0][1] == math.inf


def test_a_rate_that_diverged_is_not_trained_with_another_seed():
    found, count = searched(lambda rung, seed: math.inf if rung else 1.0)
    assert found.tried == {0.5: (math.inf,), 1.0: (1.0, 1.0), 2.0: (math.inf,)}
    assert count == 4


def test_where_nothing_trains_or_nothing_matters_the_end_of_the_ladder_is_said():
    for error, most in ((math.inf, MOST_TRIES), (0.3, MOST_TRAININGS)):
        found, count = searched(lambda rung, seed, error=error: error)
        assert not found.inside
        assert found.rate == min(found.tried)
        assert count <= most


@given(seed=st.integers(0, 2**32 - 1), guess=st.integers(-5, 5), noise=st.floats(0.0, 0.3))
def test_any_curve_is_searched_within_the_bounds_and_the_choice_is_no_worse_on_all_seeds(
    seed, guess, noise
):
    draws = np.random.default_rng(seed).normal(scale=noise, size=(64, len(TUNING_SEEDS)))

    def error(rung, which):
        return (
            math.inf if rung + guess > 4 else 0.05 * (rung + guess) ** 2 + draws[rung + 32, which]
        )

    found, count = searched(error)
    assert 4 <= count <= MOST_TRAININGS
    complete = {rate: each for rate, each in found.tried.items() if len(each) == len(TUNING_SEEDS)}
    means = {rate: sum(each) for rate, each in complete.items()}
    assert found.best == min(means, key=lambda rate: (means[rate], rate))
    assert found.rate <= found.best
    pairs = zip(found.tried[found.rate], found.tried[found.best], strict=True)
    assert any(mine <= best for mine, best in pairs)
    if found.inside:  # the next smaller rate is worse with every seed
        below = zip(found.tried[found.rate / 2], found.tried[found.best], strict=False)
        assert all(mine > best for mine, best in below)


def test_of_two_seeds_the_tie_is_one_standard_error_of_the_paired_difference():
    generator = np.random.default_rng(0)
    for below, best in generator.normal(size=(500, 2, 2)):
        if below.mean() < best.mean():
            continue
        tied = choose_rung({-1: [*below], 0: [*best]}) == (0, -1)
        difference = below - best
        error = difference.std(ddof=1) / math.sqrt(2)
        assert tied == (difference.mean() <= error)
