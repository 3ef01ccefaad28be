from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from harness.base.seeds import stream
from harness.judge.paired import matched_pairs

LENGTHS = np.full(200, 10)


def errors(seed, better=0.0):
    """Two systems that find the same utterances hard; the first makes fewer errors."""
    draw = stream(seed, "pairs")
    hard = draw.beta(1, 4, 200)
    return draw.binomial(10, hard * (1 - better)), draw.binomial(10, hard)


def test_statistic_and_p_value_are_scipys():
    a, b = errors(0, 0.2)
    found, oracle = matched_pairs(a, b, LENGTHS, stream(0, "bootstrap")), ttest_rel(a, b)
    assert found.statistic == pytest.approx(oracle.statistic, rel=1e-12)
    assert found.p_value == pytest.approx(oracle.pvalue, rel=1e-10)


def test_the_difference_is_that_of_the_pooled_rates():
    a, b = errors(1, 0.3)
    found = matched_pairs(a, b, LENGTHS, stream(0, "bootstrap")).difference
    assert found.estimate == pytest.approx((a.sum() - b.sum()) / 2000, rel=1e-14)
    assert found.low < found.estimate < found.high < 0


def test_equal_systems_are_told_apart_as_rarely_as_promised():
    seen = [
        matched_pairs(*errors(s), LENGTHS, stream(s, "b"), 1).p_value < 0.05 for s in range(400)
    ]
    assert 0.02 < np.mean(seen) < 0.085


def test_exchanging_the_systems_exchanges_the_sign():
    a, b = errors(2, 0.2)
    one, other = (matched_pairs(*ab, LENGTHS, stream(0, "b")) for ab in ((a, b), (b, a)))
    assert one.p_value == other.p_value
    assert one.statistic == -other.statistic


def test_systems_that_never_differ_prove_nothing():
    a, _ = errors(0)
    found = matched_pairs(a, a, LENGTHS, stream(0, "b"))
    assert found.p_value == 1.0
    assert math.isnan(found.statistic)
    assert found.difference.ci95 == (0.0, 0.0)


def test_one_utterance_proves_nothing():
    one = np.array([3])
    assert matched_pairs(one, one - 2, np.array([9]), stream(0, "b")).p_value == 1.0


def test_a_difference_without_any_spread_is_certain():
    a, _ = errors(0)
    assert matched_pairs(a + 1, a, LENGTHS, stream(0, "b")).p_value == 0.0


def test_unequal_test_sets_cannot_be_paired():
    with pytest.raises(ValueError, match="cannot be paired"):
        matched_pairs(np.ones(3), np.ones(4), np.ones(3), stream(0, "b"))
