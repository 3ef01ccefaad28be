# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""The figure of a comparison: its learning curves.

Every algorithm has a row of panels, in which each number of workers has the same colour, dashes and
marker. Bands reach from the lowest to the highest seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.base.settings import format_count
from harness.judge.comparison import Row, Table
from harness.judge.direction import as_error
from reports.style import INK, empty_figure, look_of, set_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN, LEGEND_IN = 2.1, 0.5

ROOM = 0.08
"""Room above and below the curves, as a share of their height."""

LOGARITHMIC = 5.0
"""Ratio of the longest to the shortest run from which on seconds have a logarithmic axis."""

MARKED = 8
"""Markers on a curve, about."""


def curves_figure(table: Table) -> Figure:
    """The metric on development data over passes, and over simulated seconds."""
    groups = table.methods
    canvas = empty_figure(PANEL_IN * len(groups) + LEGEND_IN)
    panels = canvas.subplots(len(groups), 2, sharey=True, sharex="col", squeeze=False)
    ends = [row.seconds.estimate for row in table.rows if row.seconds]
    is_log = bool(ends) and max(ends) > LOGARITHMIC * min(ends) > 0.0
    for (method, rows), (passes, seconds) in zip(groups.items(), panels, strict=True):
        for row in rows:
            _draw_curve(passes, seconds, table, row, _look(table, row), skips_start=is_log)
        passes.set_title(method, loc="left")
    for passes, seconds in panels:
        passes.set_ylabel(f"{table.metric} (development)")
        if table.target is not None:
            for axes in (passes, seconds):
                axes.axhline(table.target, color=INK, linewidth=0.8, linestyle=":")
        if is_log:
            set_log_scale(seconds.xaxis)
    _limit(panels[0][0], table)
    panels[-1][0].set_xlabel("passes over the training data")
    panels[-1][1].set_xlabel("simulated time (s)")
    _legend(canvas, table, list(panels[:, 0]))
    return canvas


def _draw_curve(
    passes: Axes,
    seconds: Axes,
    table: Table,
    row: Row,
    look: Mapping[str, Any],
    *,
    skips_start: bool,
) -> None:
    """Mean and range of a row's seeds at each evaluation that all of them have.

    A logarithmic axis of seconds has no place for the evaluation before training.
    """
    runs = [run for run in row.cell.runs if run.status == "done"]
    if not runs:
        return
    curves = [run.curve(run.deployed(table.judged)) for run in runs]
    least = min(len(epochs) for epochs, _, _ in curves)
    epochs, values, times = (np.array([curve[i][:least] for curve in curves]) for i in range(3))
    times = times.mean(0)
    shown_s = times > 0.0 if skips_start else np.ones(least, np.bool_)
    for axes, x, rows in ((passes, epochs.mean(0), slice(None)), (seconds, times, shown_s)):
        low, mean, high = (curve[rows] for curve in (values.min(0), values.mean(0), values.max(0)))
        axes.fill_between(x[rows], low, high, color=look["color"], alpha=0.16, lw=0)
        axes.plot(x[rows], mean, markevery=max(1, least // MARKED), **look)


def _look(table: Table, row: Row) -> dict[str, Any]:
    """Colour, dashes and marker of a number of workers."""
    place = table.counts.index(row.cell.workers)
    return {**look_of(place), "label": format_count(row.cell.workers, "worker")}


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


def _legend(canvas: Figure, table: Table, panels: Sequence[Axes]) -> None:
    """One legend above all panels, with a line for each number of workers."""
    handles: dict[str, Any] = {}
    for axes in panels:
        artists, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, artists, strict=True))
    order = [format_count(count, "worker") for count in table.counts]
    lines = [handles[name] for name in order if name in handles]
    if lines:
        canvas.legend(handles=lines, loc="outside upper left", ncols=min(len(lines), 6))
