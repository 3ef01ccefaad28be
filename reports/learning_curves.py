# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""The figures of a comparison: its learning curves over simulated seconds, and over passes.

Every algorithm has a panel, in which each number of workers has the same colour, dashes and marker.
Bands reach from the lowest to the highest seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.base.settings import format_count
from harness.judge.comparison import Row, Table
from harness.judge.direction import as_error
from reports.answers import Picture
from reports.style import COLUMN_IN, INK, LINE_IN, empty_figure, look_of, set_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN, XAXIS_IN = 1.9, 0.4

ACROSS = 3
"""Entries of a legend's line."""

ROOM = 0.08
"""Room above and below the curves, as a share of their height."""

LOGARITHMIC = 5.0
"""Ratio of the longest to the shortest run from which on seconds have a logarithmic axis."""

MARKED = 8
"""Markers on a curve, about."""


def draw_curves(table: Table, caption: str) -> list[Picture]:
    """The metric on development data over simulated seconds, and over passes."""
    return [
        Picture("curves", "Learning curves over time", curves_figure(table, timed=True), caption),
        Picture("passes", "Learning curves over passes", curves_figure(table), caption),
    ]


def curves_figure(table: Table, *, timed: bool = False) -> Figure:
    """The metric on development data over passes, or over simulated seconds."""
    from matplotlib.lines import Line2D  # when needed: it takes a third of a second

    groups = table.methods
    legend_in = LINE_IN * -(-len(table.counts) // ACROSS)
    canvas = empty_figure(PANEL_IN * len(groups) + XAXIS_IN + legend_in, COLUMN_IN)
    panels = list(canvas.subplots(len(groups), sharey=True, sharex=True, squeeze=False)[:, 0])
    ends = [row.seconds.estimate for row in table.rows if row.seconds]
    is_log = timed and bool(ends) and max(ends) > LOGARITHMIC * min(ends) > 0.0
    for (method, rows), axes in zip(groups.items(), panels, strict=True):
        for row in rows:
            _draw_curve(axes, table, row, timed=timed, skips_start=is_log)
        axes.set_title(method, loc="left")
        axes.set_ylabel(f"{table.metric} (development)")
        if table.target is not None:
            axes.axhline(table.target, color=INK, linewidth=0.8, linestyle=":")
        if is_log:
            set_log_scale(axes.xaxis)
    _limit(panels[0], table)
    panels[-1].set_xlabel("simulated time (s)" if timed else "passes over the training data")
    names = [format_count(count, "worker") for count in table.counts]
    handles = [Line2D([], [], label=name, **look_of(place)) for place, name in enumerate(names)]
    canvas.legend(handles=handles, loc="outside upper left", ncols=min(len(names), ACROSS))
    return canvas


def _draw_curve(axes: Axes, table: Table, row: Row, *, timed: bool, skips_start: bool) -> None:
    """Mean and range of a row's seeds at each evaluation that all of them have.

    A logarithmic axis of seconds has no place for the evaluation before training.
    """
    runs = [run for run in row.cell.runs if run.status == "done"]
    if not runs:
        return
    curves = [run.curve(run.deployed(table.judged)) for run in runs]
    least = min(len(epochs) for epochs, _, _ in curves)
    epochs, values, times = (np.array([curve[i][:least] for curve in curves]) for i in range(3))
    x = (times if timed else epochs).mean(0)
    rows = x > 0.0 if skips_start else np.ones(least, np.bool_)
    low, mean, high = (curve[rows] for curve in (values.min(0), values.mean(0), values.max(0)))
    look = look_of(table.counts.index(row.cell.workers))
    axes.fill_between(x[rows], low, high, color=look["color"], alpha=0.16, lw=0)
    axes.plot(x[rows], mean, markevery=max(1, least // MARKED), **look)


def _limit(axes: Axes, table: Table) -> None:
    """Limits of the metric's axis: from the values before training to the best ones.

    A curve that gets much worse than before training is cut by the frame.
    """
    values: list[float] = [] if table.target is None else [table.target]
    for row in table.rows:
        values += [] if row.start is None else [row.start]
        for run in row.cell.runs:
            if run.status == "done":
                curve = run.curve(run.deployed(table.judged))[1]
                errors = as_error(run, 1.0) * curve[np.isfinite(curve)]
                values += [as_error(run, float(error)) for error in np.sort(errors)[:1]]
    if values:
        low, high = min(values), max(values)
        room = ROOM * (high - low) or 1.0
        bottom = low - room if low < 0.0 or low - room > 0.0 else 0.0
        axes.set_ylim(bottom, high + room)
