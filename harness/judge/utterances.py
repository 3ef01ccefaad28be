"""95% intervals of error rates over seeds, test utterances and corpora.

Where each seed has a corpus and test utterances of its own, one rate per seed reflects everything
that varies: seed, corpus and utterances. The interval is then Student's over these rates.

Where all seeds are tested on the same utterances (a recorded corpus), a rate varies for two
reasons: another seed, and another test set. Both are counted: with per-utterance errors
E[s, u] and lengths L[u], the variance of the mean rate is the variance over
seeds plus the variance over utterances (each linearised as a ratio of sums), and
the degrees of freedom are Satterthwaite's (1946). The interaction of seed and utterance
is counted in both, so the interval errs on the wide side. It does not cover other corpora.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from harness.judge.interval import Interval, Matrix, Sample, Statistic
from harness.judge.statistics import Array, interval_of

Counts = npt.NDArray[np.number[Any]]


def rate_ci(errors: Counts, lengths: Counts) -> Interval:
    """Errors over length, pooled over utterances and averaged over seeds.

    Args:
        errors: errors per seed and utterance, [S, U].
        lengths: reference length per utterance (words, frames), [U]; or [S, U] where each seed
            has test utterances of its own (0 for those that it lacks).

    Raises:
        ValueError: shapes do not fit, or nothing was tested.
    """
    return _interval("mean", lengths, errors)


def rate_difference_ci(a: Counts, b: Counts, lengths: Counts) -> Interval:
    """Rate of ``a`` minus rate of ``b``, paired by seed and by utterance.

    Args:
        a: errors of one setting, [S, U].
        b: errors of the other on the same seeds and utterances, [S, U].
        lengths: reference length per utterance, [U] or [S, U].

    Raises:
        ValueError: shapes do not fit, or nothing was tested.
    """
    return rate_ci(_check_counts(a, lengths) - _check_counts(b, lengths, like=a), lengths)


def rate_ratio_ci(a: Counts, b: Counts, lengths: Counts) -> Interval:
    """Rate of ``a`` over rate of ``b``, with Fieller's interval; see `rate_difference_ci`."""
    return _interval("ratio", lengths, a, b)


def seed_rates(errors: Counts, lengths: Counts) -> Array:
    """Errors over length of each seed, [S].

    Args:
        errors: [S, U].
        lengths: [U] or [S, U].
    """
    return _check_counts(errors, lengths).sum(axis=1) / np.asarray(lengths, np.float64).sum(axis=-1)


def _interval(statistic: Statistic, lengths: Counts, *columns: Counts) -> Interval:
    """Interval of a statistic of the error rates of one setting per column [S, U]."""
    checked = [_check_counts(column, lengths, like=columns[0]) for column in columns]
    rates = np.stack([seed_rates(column, lengths) for column in checked], axis=1)
    values = tuple(tuple(map(float, row)) for row in rates)
    if lengths.ndim == 2:
        return interval_of(Sample(statistic, values))
    tests = _utterance_covariance(np.stack(checked), np.asarray(lengths, np.float64))
    return interval_of(Sample(statistic, values, tests, len(lengths)))


def _utterance_covariance(errors: Array, lengths: Array) -> Matrix:
    """Covariance [K, K] over utterances of the mean rates of errors [K, S, U]."""
    K, _, U = errors.shape
    if U < 2:
        return ((0.0,) * K,) * K
    mean = errors.mean(axis=1)
    rates = mean.sum(axis=1) / lengths.sum()
    residuals = (mean - rates[:, None] * lengths) / lengths.mean()
    with np.errstate(invalid="ignore"):  # what is not finite has no interval
        covariance = np.cov(residuals).reshape(K, K) / U
    return tuple(tuple(map(float, row)) for row in covariance)


def _check_counts(errors: Counts, lengths: Counts, like: Counts | None = None) -> Array:
    fits = errors.ndim == 2 and errors.size > 0
    fits = fits and lengths.shape in (errors.shape, errors.shape[1:])
    if not fits or (like is not None and like.shape != errors.shape):
        raise ValueError(f"errors {errors.shape} and lengths {lengths.shape} do not fit")
    if not (lengths.sum(axis=-1) > 0).all():
        raise ValueError("the test set has no length")
    return np.asarray(errors, np.float64)
