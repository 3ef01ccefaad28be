"""Scores, gains and times of finished runs, one value a seed, and those that the paper printed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.judge.builders import Runs
from harness.judge.interval import Interval
from harness.judge.statistics import Array, rank_correlation_ci, ratio_ci
from harness.rollouts.records import figures_of
from harness.store import Run
from reproductions.paper4_async_rl.experiments import ETAS, REPORTED, cell, hours, timing_name
from reproductions.run_metrics import summary_values

TEST = "aime24"
"""The test whose score before training is printed too, so that a gain can be computed."""
PLACES = {eta: 33.0 if math.isinf(eta) else eta for eta in ETAS}
"""Allowances as places of an axis: without one, the batches that there is room for."""
DECODED = "tokens/s, decoded"


def values(runs: Sequence[Run], key: str) -> Array:
    """A number of each run's summary or, for ``thrown_away/D``, of its record of rollouts, [S]."""
    return summary_values(runs, key, figures_of if key.startswith("thrown_away/") else None)


def scores(runs: Runs, loss: str, eta: float, searched: bool) -> Array:
    """Shares of held-out problems answered rightly after training, [S]."""
    return values(runs[cell(loss, eta, searched)], "score")


def gains(runs: Runs, loss: str, eta: float, searched: bool) -> Array:
    """What training added to the score, [S]."""
    group = runs[cell(loss, eta, searched)]
    return values(group, "score") - values(group, "score_before")


def share_kept(runs: Runs, loss: str, eta: float, searched: bool) -> Interval:
    """Gain of a cell over the gain without an allowance."""
    return ratio_ci(gains(runs, loss, eta, searched), gains(runs, loss, 0.0, searched))


def share_lost(runs: Runs, loss: str, eta: float, searched: bool) -> Interval:
    """Share of the gain without an allowance that a cell loses."""
    base = gains(runs, loss, 0.0, searched)
    return ratio_ci(base - gains(runs, loss, eta, searched), base)


def read_printed_score(loss: str, eta: float, test: str = TEST) -> float:
    """The paper's score (%); without an allowance the losses are one."""
    name = "naive" if eta == 0.0 else loss
    return REPORTED["score"][name][test][ETAS.index(eta)]


def read_printed_loss(loss: str, eta: float) -> float:
    """Share of the gain that the paper's figures lose."""
    base = read_printed_score(loss, 0.0)
    return (base - read_printed_score(loss, eta)) / (base - REPORTED["score"]["start"][TEST])


def order_of_scores(runs: Runs, loss: str, searched: bool) -> Interval:
    """Rank correlation of the score with the allowance."""
    columns = [scores(runs, loss, eta, searched) for eta in ETAS]
    return rank_correlation_ci(list(PLACES.values()), np.stack(columns, axis=1))


def read_printed_order(loss: str) -> float:
    """Rank correlation of the paper's scores with the allowance."""
    printed = np.array([[read_printed_score(loss, eta) for eta in ETAS]])
    return rank_correlation_ci(list(PLACES.values()), printed).estimate


def times_as_fast(runs: Runs, setting: str, other: str) -> Interval:
    """Tokens a second of one simulation over those of another."""
    return ratio_ci(values(runs[setting], DECODED), values(runs[other], DECODED))


def throughput(runs: Runs, eta: float) -> Interval:
    """Tokens a second over those without an allowance."""
    return times_as_fast(runs, timing_name(eta), timing_name(0.0))


def speed_up(runs: Runs, plan: str) -> Interval:
    """Synchronous over asynchronous hours of a plan, with 95% of its draws."""
    group = runs[hours(plan)]  # the same draws for every seed
    names = ("measured_s", "low/4", "seconds/4", "high/4")
    measured, low, middle, high = (float(values(group, name).mean()) for name in names)
    if math.isnan(measured):
        return Interval(math.nan)
    return Interval(measured / middle, measured / high, measured / low)


def read_printed_speed_up(plan: str) -> float:
    """The paper's synchronous over asynchronous hours."""
    printed = REPORTED["hours"][plan]
    return printed["synchronous"] / printed["asynchronous"]
