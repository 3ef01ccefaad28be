import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.statistics import (
    bounded_difference_ci,
    interval_of,
    mean_ci,
    paired_difference_ci,
    rank_correlation_ci,
    ratio_ci,
)
from harness.judge.utterances import rate_ci, rate_difference_ci, rate_ratio_ci

RNG = np.random.default_rng(3)
A, B = RNG.integers(0, 9, (4, 50)), RNG.integers(2, 12, (4, 50))
SHARED, OWN = RNG.integers(8, 15, 50), RNG.integers(8, 15, (4, 50))
EVERY = {
    "mean": mean_ci([1.0, 2.0, 4.0]),
    "difference": paired_difference_ci([1.0, 2.0, 4.0], [0.5, 2.5, 3.0]),
    "ratio": ratio_ci([1.0, 1.1, 1.3], [2.0, 2.1, 2.2]),
    "bounds": bounded_difference_ci(([1.0, 2.0], [1.5, 3.0]), ([0.0, 0.5], [0.1, 1.0])),
    "rank": rank_correlation_ci([1, 2, 3], [[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]]),
    "rate, one test set": rate_ci(A, SHARED),
    "rate, a corpus a seed": rate_ci(A, OWN),
    "difference of rates": rate_difference_ci(A, B, SHARED),
    "ratio of rates": rate_ratio_ci(A, B, SHARED),
    "ratio of rates, a corpus a seed": rate_ratio_ci(A, B, OWN),
}


@pytest.mark.parametrize("name", EVERY)
def test_an_interval_can_be_computed_again_from_its_values(name):
    found = EVERY[name]
    assert found.sample is not None
    assert interval_of(found.sample) == found


@pytest.mark.parametrize("name", [name for name in EVERY if name != "rank"])
@pytest.mark.parametrize(("factor", "shift"), [(100.0, 0.0), (-1.0, 0.0), (-1.0, 1.0), (1.0, -1.0)])
def test_so_can_its_multiples_and_what_is_added(name, factor, shift):
    found = factor * EVERY[name] - (-shift)
    assert found.sample is not None
    again = interval_of(found.sample)
    assert again.estimate == pytest.approx(found.estimate, rel=1e-9, abs=1e-12)
    assert again.ci95 == pytest.approx(found.ci95, rel=1e-9, abs=1e-12)


@given(st.lists(st.integers(1, 30), min_size=3, max_size=8))
def test_where_each_seed_has_its_own_corpus_the_interval_is_that_of_the_seeds_rates(errors):
    wrong = np.array(errors)[:, None] * np.ones((1, 5), np.int64)
    lengths = np.full(wrong.shape, 40)
    assert rate_ci(wrong, lengths) == mean_ci([e / 40 for e in errors])


def test_utterances_that_a_corpus_lacks_count_for_nothing():
    errors, lengths = np.array([[1, 2, 0], [3, 1, 1]]), np.array([[5, 6, 0], [7, 5, 4]])
    assert rate_ci(errors, lengths) == mean_ci([3 / 11, 5 / 16])


def test_corpora_that_differ_widen_the_interval_that_one_test_set_hides():
    # settings differ by one error in ten; corpora differ far more
    hard = np.array([[1], [5], [9]]) * np.ones((1, 40), np.int64)
    lengths = np.full(40, 20)
    nested = rate_ci(hard, np.tile(lengths, (3, 1)))
    paired = rate_difference_ci(hard + 1, hard, np.tile(lengths, (3, 1)))
    assert nested.high - nested.low > 0.5
    assert paired.high - paired.low == pytest.approx(0.0, abs=1e-12)
