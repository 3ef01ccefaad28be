import math

import numpy as np
import pytest

from harness.judge.utterances import rate_ratio_ci
from reproductions.paper2_ng_averaging.errors import loss_difference_ci


def settings(rng, S=30, U=300, rates=(0.16, 0.14, 0.12, 0.11)):
    """Errors of four settings that share what is hard about a seed and an utterance."""
    lengths = rng.integers(3, 20, U)
    hard = rng.gamma(2, 0.5, U) * rng.normal(1, 0.1, (S, 1))
    return [rng.poisson(rate * hard * lengths) for rate in rates], lengths


def estimate(errors):
    a, b, c, d = (e.sum() for e in errors)
    return a / b - c / d


def test_the_estimate_is_the_difference_of_the_two_ratios():
    errors, lengths = settings(np.random.default_rng(0))
    found = loss_difference_ci(*errors, lengths)
    assert found.estimate == pytest.approx(estimate(errors), rel=1e-12)
    assert found.low < found.estimate < found.high


def test_at_least_nineteen_in_twenty_intervals_hold_the_true_difference():
    truth, held = 0.16 / 0.14 - 0.12 / 0.11, 0
    for draw in range(120):
        errors, lengths = settings(np.random.default_rng([1, draw]), S=3, U=150)
        found = loss_difference_ci(*errors, lengths)
        held += found.low <= truth <= found.high
    assert held >= 0.95 * 120


def test_the_width_shrinks_with_the_square_root_of_the_utterances():
    errors, lengths = settings(np.random.default_rng(5), U=1600)
    whole = loss_difference_ci(*errors, lengths)
    quarter = loss_difference_ci(*(e[:, ::4] for e in errors), lengths[::4])
    ratio = (quarter.high - quarter.low) / (whole.high - whole.low)
    assert ratio == pytest.approx(2.0, rel=0.2)


def test_against_a_setting_that_loses_nothing_it_is_the_interval_of_one_ratio():
    (a, b, c, _), lengths = settings(np.random.default_rng(2))
    found, one = loss_difference_ci(a, b, c, c, lengths), rate_ratio_ci(a, b, lengths)
    assert found.ci95 == pytest.approx((one.low - 1, one.high - 1), abs=0.002)


def test_what_both_pairs_share_cancels():
    (a, b, *_), lengths = settings(np.random.default_rng(3))
    assert loss_difference_ci(a, b, a, b, lengths).ci95 == pytest.approx((0, 0), abs=1e-12)


def test_without_errors_to_compare_with_nothing_is_known():
    (a, b, c, d), lengths = settings(np.random.default_rng(4))
    assert loss_difference_ci(a, 0 * b, c, d, lengths).ci95 == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="do not fit"):
        loss_difference_ci(a[:, :-1], b, c, d, lengths)
