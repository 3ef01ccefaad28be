"""Intervals of what a change costs: one relative loss against another.

A ratio of two rates is nearly linear in errors near their means, so its deviation is carried
by each utterance of each seed as ``(a - (A/B) b) / B`` (the delta method). A difference of two
ratios is then a sum of such shares, and its interval that of a rate (``utterances``), with
everything paired by seed and by utterance.
"""

from __future__ import annotations

import numpy as np

from harness.judge.interval import Interval
from harness.judge.statistics import Array
from harness.judge.utterances import Counts, rate_ci, seed_rates


def loss_difference_ci(a: Counts, b: Counts, c: Counts, d: Counts, lengths: Counts) -> Interval:
    """How much more ``a`` loses against ``b`` than ``c`` against ``d``: A / B - C / D.

    Args:
        a: errors of a setting, [S, U]; the others are on the same seeds and utterances.
        b: of the one it loses against.
        c: of the setting of the other loss.
        d: of the one that loses against.
        lengths: reference length per utterance, [U] or [S, U].

    Raises:
        ValueError: shapes do not fit, or nothing was tested.
    """
    for errors in (a, b, c, d):  # what does not fit is said first
        rate_ci(errors, lengths)
    if not (b.sum() and d.sum()):
        return Interval(np.nan)
    first, one = _linearised(a, b, lengths)
    second, other = _linearised(c, d, lengths)
    return rate_ci(first - second + (one - other) * lengths, lengths)


def _linearised(a: Counts, b: Counts, lengths: Counts) -> tuple[Array, float]:
    """What each utterance adds to A / B beyond its mean, [S, U], and A / B itself."""
    rate = float(seed_rates(b, lengths).mean())
    ratio = float(seed_rates(a, lengths).mean()) / rate
    return (np.asarray(a, np.float64) - ratio * np.asarray(b, np.float64)) / rate, ratio
