"""95% intervals of error rates over seeds and test utterances together.

All seeds are tested on the same utterances, so a rate varies for two reasons:
another seed, and another test set. Both are counted: with per-utterance errors
E[s, u] and lengths L[u], the variance of the mean rate is the variance over
seeds plus the variance over utterances (each linearised as a ratio of sums), and
the degrees of freedom are Satterthwaite's (1946). What seed and utterance do
jointly is counted in both, so the interval errs on the wide side.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.judge.statistics import LEVEL, Array, Interval, fieller, quotient, t_quantile

Counts = npt.NDArray[np.number[Any]]


def rate_ci(errors: Counts, lengths: Counts) -> Interval:
    """Errors over length, pooled over utterances and averaged over seeds.

    Args:
        errors: errors per seed and utterance, [S, U].
        lengths: reference length per utterance (words, frames), [U].

    Raises:
        ValueError: shapes do not fit, or nothing was tested.
    """
    residuals = _checked(errors, lengths)
    mean = float(residuals.sum() / (len(residuals) * lengths.sum()))
    return _interval(mean, residuals, np.asarray(lengths, np.float64))


def rate_difference_ci(a: Counts, b: Counts, lengths: Counts) -> Interval:
    """Rate of ``a`` minus rate of ``b``, paired by seed and by utterance.

    Args:
        a: errors of one setting, [S, U].
        b: errors of the other on the same seeds and utterances, [S, U].
        lengths: reference length per utterance, [U].

    Raises:
        ValueError: shapes do not fit, or nothing was tested.
    """
    return rate_ci(_checked(a, lengths) - _checked(b, lengths, like=a), lengths)


def rate_ratio_ci(a: Counts, b: Counts, lengths: Counts) -> Interval:
    """Rate of ``a`` over rate of ``b``, paired, with Fieller's interval.

    Args:
        a: errors of one setting, [S, U].
        b: errors of the other on the same seeds and utterances, [S, U].
        lengths: reference length per utterance, [U].

    Raises:
        ValueError: shapes do not fit, or nothing was tested.
    """
    x, y = _checked(a, lengths), _checked(b, lengths, like=a)
    scale = len(x) * float(lengths.sum())
    rate_a, rate_b = float(x.sum()) / scale, float(y.sum()) / scale
    if min(x.shape) < 2 or rate_b == 0:
        return Interval(quotient(rate_a, rate_b))
    long = np.asarray(lengths, np.float64)
    seeds, tests = _components(np.stack([x, y]), long)
    degrees = _degrees(x - rate_a / rate_b * y, long)
    return fieller(rate_a, rate_b, seeds + tests, degrees)


def bootstrap_rate_ci(
    errors: Counts, lengths: Counts, rng: np.random.Generator, resamples: int = 2000
) -> Interval:
    """One system's rate with a percentile bootstrap interval over utterances.

    Says nothing about other seeds: for tables of one trained model only.

    Args:
        errors: errors per utterance, [U].
        lengths: reference length per utterance, [U].
        rng: a named stream, so that the interval is the same every time.
        resamples: number of resampled test sets.
    """
    counts = _checked(errors[None], lengths)[0]
    rate = float(counts.sum() / lengths.sum())
    if len(counts) < 2:
        return Interval(rate)
    weights = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), resamples)
    rates = (weights @ counts) / np.maximum(weights @ lengths, 1)
    low, high = np.quantile(rates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(rate, float(low), float(high))


def _checked(errors: Counts, lengths: Counts, like: Counts | None = None) -> Array:
    fits = errors.ndim == 2 and errors.shape[1:] == lengths.shape and errors.size > 0
    if not fits or (like is not None and like.shape != errors.shape):
        raise ValueError(f"errors {errors.shape} and lengths {lengths.shape} do not fit")
    if lengths.sum() <= 0:
        raise ValueError("the test set has no length")
    return np.asarray(errors, np.float64)


def _interval(mean: float, values: Array, lengths: Array) -> Interval:
    if min(values.shape) < 2 or not np.isfinite(values).all():
        return Interval(mean)
    seeds, tests = _components(values[None], lengths)
    half = t_quantile(_degrees(values, lengths)) * math.sqrt(float(seeds[0, 0] + tests[0, 0]))
    return Interval(mean, mean - half, mean + half)


def _components(values: Array, lengths: Array) -> tuple[Array, Array]:
    """Covariances [V, V] of mean rates of values [V, S, U]: over seeds, over utterances."""
    _, S, U = values.shape
    per_seed = values.sum(axis=2) / lengths.sum()
    rates = per_seed.mean(axis=1)
    per_utterance = (values.mean(axis=1) - rates[:, None] * lengths) / lengths.mean()
    return np.cov(per_seed).reshape(len(values), -1) / S, np.cov(per_utterance).reshape(
        len(values), -1
    ) / U


def _degrees(values: Array, lengths: Array) -> float:
    """Satterthwaite's degrees of freedom of the summed variance of values [S, U]."""
    S, U = values.shape
    seeds, tests = (float(part[0, 0]) for part in _components(values[None], lengths))
    parts = seeds**2 / (S - 1) + tests**2 / (U - 1)
    return (seeds + tests) ** 2 / parts if parts else float(S - 1)
