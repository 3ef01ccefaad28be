# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""A timeline drawn lane by lane: spans of workers and servers, and the contributions of folds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from harness.simulator.timeline import Timeline
from reports.style import COLOURS, INK, MUTED, cycle, draw_arrow, set_lanes, set_legend

KNOWN = {  # colour and hatch of the usual kinds; others follow in the house order
    "fetch": ("#56B4E9", "////"),
    "compute": ("#0072B2", ""),
    "push": ("#E69F00", "\\\\\\\\"),
    "fold": ("#D55E00", ""),
}
LANE = 0.56  # height of a span, in lanes
CYCLES = 3.2  # how many rounds of a worker the default window shows
KEPT = 200  # folds that a report keeps of a timeline: what it draws, and no megabytes


@dataclass(frozen=True)
class Window:
    """The part of a timeline that is drawn.

    Attributes:
        timeline: with spans and contributions that touch the window only.
        start_s: left edge, seconds of virtual time.
        end_s: right edge.
        workers: number of lanes for workers.
        servers: number of lanes for servers.
    """

    timeline: Timeline
    start_s: float
    end_s: float
    workers: int
    servers: int

    def lane(self, worker: int) -> float:
        """Height of a lane: worker 0 on top, servers (-1, -2, …) below the last worker."""
        return float(worker if worker >= 0 else self.workers - 1 - worker)

    def scale(self) -> tuple[float, str]:
        """Factor from seconds to the axis' unit, and the unit."""
        width = self.end_s - self.start_s
        return (1e3, "ms") if width < 2 else (1.0, "s") if width < 600 else (1 / 60, "min")


def window(timeline: Timeline) -> Window:
    """The window of a few rounds from the middle of a timeline with folds."""
    start = float(timeline.folds.time_s[len(timeline.folds) // 2])
    end = start + CYCLES * float(np.median(timeline.lag_s()))
    spans, rows = timeline.spans, timeline.folded()
    fold_s = _fold_times(timeline, rows.fold)
    lanes = spans.worker if len(spans) else rows.worker
    cut = replace(
        timeline,
        spans=spans.where((spans.end_s > start) & (spans.start_s < end)),
        contributions=rows.where((fold_s > start) & (fold_s < end)),
    )
    return Window(cut, start, end, int(lanes.max()) + 1, max(1, -int(lanes.min())))


def beginning(timeline: Timeline) -> Timeline:
    """The first ``KEPT`` folds of a timeline, with their contributions and the spans until then."""
    folds, rows = timeline.folds, timeline.folded()
    if len(folds) <= KEPT:
        return timeline
    until = float(folds.time_s[KEPT - 1])
    end = int(folds.fold[folds.time_s <= until][-1])
    return Timeline(
        folds.where(folds.fold <= end),
        rows.where(rows.fold <= end),
        timeline.spans.where(timeline.spans.end_s <= until),
        timeline.kinds,
    )


def draw_window(axes: Axes, view: Window, average: str = "") -> int:
    """Draw a window of a timeline; returns the number of lanes, for the figure's height.

    Args:
        axes: to draw on.
        view: the window.
        average: label of a lane that marks when the averaged model takes in the new version, at
            every fold; empty for none.
    """
    scale, unit = view.scale()
    axes.set_xlim(0, (view.end_s - view.start_s) * scale)
    _spans(axes, view)
    _arrows(axes, view)
    lanes = view.workers + view.servers
    names = [f"worker {index + 1}" for index in range(view.workers)]
    names += ["server"] if view.servers == 1 else [f"shard {i + 1}" for i in range(view.servers)]
    if average:
        _averages(axes, view, lanes)
        names, lanes = [*names, average], lanes + 1
    set_lanes(axes, names, (lanes - 0.45, -0.6))
    axes.set_xlabel(f"virtual time ({unit}), from {view.start_s:.4g} s after the start")
    return lanes


def _spans(axes: Axes, view: Window) -> None:
    """Bars of every kind, and their legend above the axes."""
    scale, _ = view.scale()
    spans, handles = view.timeline.spans, list[Patch]()
    for index, kind in enumerate(view.timeline.kinds):
        colour, hatch = KNOWN.get(kind, (cycle(COLOURS, index + 2), "xxxx"))
        these = spans.where(spans.kind == index)
        if not len(these):
            continue
        style: dict[str, Any] = {"fc": colour, "hatch": hatch, "ec": "white", "lw": 0.5}
        axes.barh(
            [view.lane(worker) for worker in these.worker.tolist()],
            (these.end_s - these.start_s) * scale,
            LANE,
            (these.start_s - view.start_s) * scale,
            **style,
        )
        handles.append(Patch(label=kind, **style))
    set_legend(axes, handles)


def _arrows(axes: Axes, view: Window) -> None:
    """An arrow from each read to its fold, with the staleness of the contribution at its tip."""
    scale, _ = view.scale()
    rows = view.timeline.contributions
    fold_s = _fold_times(view.timeline, rows.fold)
    server = view.lane(-1)
    for index in range(len(rows)):
        read_x = float(rows.read_time_s[index] - view.start_s) * scale
        fold = float(fold_s[index] - view.start_s) * scale
        if read_x < 0:
            continue
        start = read_x, view.lane(int(rows.worker[index])) + LANE / 2
        draw_arrow(axes, start, (fold, server - LANE / 2), 0.16, color=INK, alpha=0.75, lw=0.7)
    stale = rows.fold - rows.read_version
    for fold, time_s, staleness in zip(rows.fold, fold_s, stale, strict=True):
        axes.text(
            float(time_s - view.start_s) * scale,
            server + LANE / 2 + 0.03,
            f"{int(staleness)}",
            ha="center",
            va="top",
            gid=f"fold-{int(fold)}",
        )


def _averages(axes: Axes, view: Window, lane: int) -> None:
    """A diamond at every fold."""
    scale, _ = view.scale()
    folds = np.unique(view.timeline.contributions.fold)
    x = (_fold_times(view.timeline, folds) - view.start_s) * scale
    axes.axhline(lane, color=MUTED, lw=0.6, zorder=1)
    axes.plot(x, np.full(len(x), lane), "D", mfc="#009E73", mec="#009E73", ms=5.5, ls="")


def _fold_times(timeline: Timeline, folds: np.ndarray) -> np.ndarray:
    """[C] seconds at which each of these folds was complete."""
    return timeline.folds.time_s[folds - timeline.folds.fold[0]]
