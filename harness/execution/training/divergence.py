"""Where a run diverged, in one line: its stage, fold, last criterion and rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.store.files import MetricRow

STAGES = {
    "mmi": "MMI",
    "bmmi": "boosted MMI",
    "smbr": "minimum Bayes risk",
    "numerator": "training without a denominator",
}
"""Sequence training by its criterion."""


@dataclass(frozen=True)
class Moment:
    """When a run diverged: folds and passes done, and seconds since it began."""

    fold: int
    passes: float
    time_s: float


def where(
    stage: str,
    moment: Moment,
    rows: Sequence[MetricRow],
    metric: str,
    rate: float,
    unit: str = "nats a frame",
) -> str:
    """Which stage, when, the last criterion that was a number, and the rate.

    Args:
        stage: as a person calls it.
        moment: of the divergence.
        rows: everything the run has logged.
        metric: ``"dev_loss"`` or ``"held_out_criterion"``; of several models the first is told.
        rate: in force.
        unit: of the criterion.

    Example:
        >>> row = {"name": "dev_loss/iterate", "value": 3.5, "fold": 40, "epoch": 0.1}
        >>> where("AsyncSgd", Moment(1200, 0.25, 61.04), [row], "dev_loss", 0.02)
        'in AsyncSgd at fold 1,200 (pass 0.25, 61.0 s): loss 3.5 nats a frame at fold 40, rate 0.02'
    """
    at = f"in {stage} at fold {moment.fold:,} (pass {moment.passes:.3g}, {moment.time_s:,.1f} s)"
    return f"{at}: {metric.rpartition('_')[2]} {_last(rows, metric, unit)}, rate {rate:.3g}"


def _last(rows: Sequence[MetricRow], metric: str, unit: str) -> str:
    """The last number of a metric, and the first, from which it came, if that is another."""
    known = [r for r in rows if r["name"].partition("/")[0] == metric and math.isfinite(r["value"])]
    if not known:
        return "never a number"
    first = known[0]
    last = [row for row in known if row["name"] == first["name"]][-1]
    told = f"{_signed(last['value'])} {unit} at fold {int(last['fold']):,}"
    return told + (f" ({_signed(first['value'])} at first)" if first is not last else "")


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else ''}{abs(value):.3g}"
