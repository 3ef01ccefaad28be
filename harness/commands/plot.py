# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""``--plot``: a simulation on one page.

At the top a Gantt chart of the workers and the server; below, histograms of staleness and lag, and
the speed-up by number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.base.errors import UserError
from harness.commands.timing import Timing, format_value
from harness.simulator import SERVER, Timeline
from harness.simulator.timeline_file import atomic_output
from reports import gantt
from reports.style import COLOURS, DASHES, INK, MARKERS, MUTED, cycle, render_figure, use_style

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_LANES = 12
MOST_ARROWS = 30
BARS = 40
ONE_VALUE = 1e-6
"""Lags with a smaller relative spread differ by rounding only: they are drawn as one bar."""
PAGE_IN = (10.4, 6.9)
MOSAIC = "ggg;slu"  # Gantt, staleness, lag, speed-up


def draw(path: Path, title: str, timings: Sequence[Timing], timeline: Timeline) -> None:
    """Write the page in the format of the file name's suffix.

    Args:
        path: file name, with suffix ``.svg``, ``.png`` or ``.pdf``.
        title: title of the page.
        timings: rows of the table.
        timeline: timeline of the last row; for a long run, a part of it.

    Raises:
        UserError: the file cannot be written, or no time passes in the simulation.
    """
    if not timings[-1].virtual_s > 0.0:
        raise UserError("--plot: no time passes in this simulation, so there is nothing to draw")
    with use_style():
        content = render_figure(page(title, timings, timeline), path.suffix[1:] or "svg")
    with atomic_output(path, "the plot") as draft:
        draft.write_bytes(content)


def page(title: str, timings: Sequence[Timing], timeline: Timeline) -> Figure:
    """The figure with its four plots (arguments as for `draw`)."""
    timing = timings[-1]
    lanes = min(timing.workers, MOST_LANES)
    figure = Figure(figsize=PAGE_IN, layout="constrained")
    FigureCanvasAgg(figure)
    heights = [0.6 + 0.22 * (lanes + 1), 2.9]
    axes = figure.subplot_mosaic(MOSAIC, height_ratios=heights)
    figure.suptitle(f"{title}, {timing.workers:,} workers".replace(", 1 workers", ", 1 worker"))
    _gantt(axes["g"], timeline, timing.workers)
    run = timing.long_run
    staleness, lag_s = (timeline.staleness(), timeline.lag_s()) if run is None else run.single
    _histogram(axes["s"], staleness, "staleness (folds)", whole=True)
    _histogram(axes["l"], *_scale_lags(lag_s))
    _speedup(axes["u"], timings)
    return figure


def few_lanes(timeline: Timeline, lanes: int) -> Timeline:
    """The timeline of the first ``lanes`` workers, and the server's folds of their contributions.

    Raises:
        UserError: none of their contributions has been folded.
    """
    rows, spans = timeline.folded(), timeline.spans
    contributions = rows.where(rows.worker < lanes)
    if len(contributions) == 0:
        raise UserError("--plot: none of the first workers has folded; allowed: more folds")
    fold_s = timeline.folds.time_s[contributions.fold - timeline.folds.fold[0]]
    # a fold may be complete some time after its work, when its weights have been sent
    next_s = np.append(timeline.folds.time_s, np.inf)
    next_s = next_s[np.searchsorted(timeline.folds.time_s, spans.end_s)]
    is_work = spans.kind == timeline.kinds.index("fold")
    ends_s = np.where(is_work, next_s, spans.end_s)
    theirs = (spans.worker <= SERVER) & np.isin(ends_s, fold_s)
    mine = (spans.worker >= 0) & (spans.worker < lanes)
    return replace(timeline, contributions=contributions, spans=spans.where(mine | theirs))


def _gantt(axes: Axes, timeline: Timeline, workers: int) -> None:
    """Draw a few rounds from the middle of the simulation."""
    lanes = min(workers, MOST_LANES)
    part = few_lanes(timeline, lanes)
    gantt.draw_window(axes, _thin_arrows(gantt.window(part, _edges_s(part), "--plot")), {})
    hidden = f"; {lanes} of {workers:,} workers" if lanes < workers else ""
    note = f"arrows: from a read to its fold, with its staleness{hidden}"
    axes.set_title(note, loc="right", fontsize=9, color=MUTED)


def _edges_s(part: Timeline) -> dict[str, float]:
    """Window of a few rounds after the middle fold, which it contains; or the last rounds."""
    rows, times_s = part.folded(), part.folds.time_s
    folds_s = times_s[rows.fold - part.folds.fold[0]]
    width_s = gantt.CYCLES * float(np.median(part.lag_s()))
    middle_s = float(folds_s[len(folds_s) // 2])
    end_s = min(middle_s + 0.9 * width_s, float(times_s[-1]))
    return {
        "start_s": min(end_s - width_s, np.nextafter(middle_s, -np.inf)),
        "end_s": np.nextafter(end_s, np.inf),
    }


def _thin_arrows(view: gantt.Window) -> gantt.Window:
    """Drop arrows that are too close to each other for their numbers to be legible."""
    rows, folds = view.timeline.contributions, view.timeline.folds
    when_s = folds.time_s[rows.fold - folds.fold[0]]
    keep, last_s = np.zeros(len(rows), dtype=bool), -np.inf
    for place, time_s in enumerate(when_s.tolist()):
        if time_s - last_s >= (view.end_s - view.start_s) / MOST_ARROWS:
            keep[place], last_s = True, time_s
    return replace(view, timeline=replace(view.timeline, contributions=rows.where(keep)))


def _scale_lags(lag_s: Floats) -> tuple[Floats, str]:
    """Lags in a unit that suits their median, and the axis label with the unit."""
    middle = float(np.median(lag_s))
    scales = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    scale, unit = next((s for s in scales if middle >= 2.0 * s[0]), scales[-1])
    return lag_s / scale, f"lag ({unit})"


def _histogram(axes: Axes, values: Floats | Ints, label: str, whole: bool = False) -> None:
    """Draw the share of contributions by value, and mark mean and 95th percentile."""
    edges = _edges(values, whole)
    share = np.histogram(values, edges)[0] / len(values)
    width = np.diff(edges)
    axes.bar(edges[:-1], share, width, align="edge", color=COLOURS[0], ec="white", lw=0.4)
    for value, dash, name in (
        (float(np.mean(values)), "-", "mean"),
        (float(np.percentile(values, 95)), (0, (4, 1.6)), "95th percentile"),
    ):
        axes.axvline(value, color=INK, ls=dash, lw=1.2, label=f"{name} {_short(value)}")
    outside = 1.0 - float(share.sum())
    axes.set_xlabel(label + (f"; {outside:.1%} lie outside" if outside > 5e-4 else ""))
    axes.set_ylabel("share of contributions")
    axes.grid(visible=False, axis="x")
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _legend(axes)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.4g}"


def _edges(values: Floats | Ints, whole: bool) -> Floats:
    """Edges of about `BARS` equal bars at most; with ``whole``, each spans whole numbers."""
    low, high = (float(edge) for edge in np.percentile(values, [0.5, 99.5]))
    if whole:
        spare = 2.5 if high - low < 4.0 else 0.5  # so that a single value does not fill the plot
        low, high = max(np.floor(low) - spare, -0.5), np.ceil(high) + spare
        width = np.ceil((high - low) / BARS)
    elif high - low <= ONE_VALUE * abs(high):
        width = 0.01 * abs(high) or 1.0
        low, high = low - 2.5 * width, low + 2.5 * width
    else:
        width = (high - low) / BARS
    bars = int(np.ceil((high - low) / width - 1e-9))
    return np.asarray(low + width * np.arange(bars + 1), np.float64)


def _speedup(axes: Axes, timings: Sequence[Timing]) -> None:
    """Draw the speed-up over one worker, and the ideal line of workers that never wait."""
    if timings[-1].swept:
        _plot_sweep(axes, timings)
        return
    ordered = sorted(timings, key=lambda timing: timing.workers)
    counts = [timing.workers for timing in ordered]
    axes.plot(counts, counts, color=MUTED, ls=(0, (5, 2)), lw=1.0, label="as many times one")
    gains = [timing.speedup for timing in ordered]
    axes.plot(counts, gains, marker="o", color=COLOURS[0], label="simulated")
    if counts[-1] / counts[0] >= 16:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    else:
        axes.set_xticks(counts)
        axes.set_ylim(bottom=0.0)
    axes.set_xlabel("workers")
    axes.set_ylabel("speed-up over one worker (times)")
    _legend(axes)


def _plot_sweep(axes: Axes, timings: Sequence[Timing]) -> None:
    """Draw throughput by combination of swept values, a line for each worker count."""
    values = [", ".join(map(format_value, timing.swept.values())) for timing in timings]
    names = list(dict.fromkeys(values))
    for number, count in enumerate(dict.fromkeys(timing.workers for timing in timings)):
        mine = [place for place, timing in enumerate(timings) if timing.workers == count]
        places = [names.index(values[place]) for place in mine]
        look = {"marker": cycle(MARKERS, number), "color": cycle(COLOURS, number)}
        rates = [timings[place].throughput_per_s for place in mine]
        axes.plot(places, rates, ls=cycle(DASHES, number), label=f"{count:,} workers", **look)
    step = 1 + len(names) // 10
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=30, ha="right")
    axes.set_xlabel(", ".join(timings[-1].swept))
    axes.set_ylabel("minibatches a second (1/s)")
    axes.set_ylim(bottom=0.0)
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Draw the legend above the axes, where it hides no data."""
    spacing: dict[str, Any] = {"borderpad": 0, "handlelength": 1.8, "columnspacing": 1.0}
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, **spacing)
