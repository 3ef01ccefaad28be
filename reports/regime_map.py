# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""The regime map: what parallelism costs, against what each paper has far more of.

One panel a paper, with the ratio of errors, the band of its claim, and the paper's own point.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from harness.judge.results import Claim, Exhibit, Results, Row
from reports import style
from reports.style import COLOURS, INK, MARKERS


class Panel(NamedTuple):
    """A paper's number, its exhibit and claim, what the ratio is of, and the series to draw."""

    paper: int
    exhibit: str
    claim: str
    ratio: str
    series: str


PANELS = (
    Panel(1, "p1.regime", "p1.one-pass-close", "one pass over many", "clean"),
    Panel(2, "p2.scaling", "p2.small-loss", "16 GPUs over one", "all sets"),
    Panel(3, "p3.scaling", "p3.replicas-as-good", "50 replicas over one", "fifty"),
)
HEIGHT_IN = 3.1


def draw_map(results: Mapping[str, Results]) -> bytes | None:
    """The map as PNG; None if a panel has no exhibit.

    Args:
        results: of each paper's largest scale, by paper.
    """
    exhibits = {entry.id: entry for of in results.values() for entry in of.exhibits}
    claims = {entry.id: entry for of in results.values() for entry in of.claims}
    if not all(panel.exhibit in exhibits for panel in PANELS):
        return None
    with style.use_style():
        figure = style.empty_figure(HEIGHT_IN)
        for axes, panel in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
            _draw_panel(axes, panel, exhibits[panel.exhibit], claims[panel.claim])
        return style.render_figure(figure, "png")


def _draw_panel(axes: Any, panel: Panel, exhibit: Exhibit, claim: Claim) -> None:
    series: dict[str, list[Row]] = {}
    for row in exhibit.rows:
        if panel.series in row.label:
            series.setdefault(row.label.partition(",")[0], []).append(row)
    style.set_log_scale(axes.xaxis)
    for index, (label, rows) in enumerate(series.items()):
        _draw_series(axes, index, label if len(series) > 1 else "runs, 95% interval", rows)
    axes.set_ylim(_limits(exhibit, panel))
    _draw_band(axes, claim)
    style.set_y_title(axes, f"Paper {panel.paper}: {panel.ratio}")
    axes.set_xlabel(textwrap.fill(exhibit.axes["x"], 30))
    axes.legend(loc="upper right", fontsize="small", handlelength=1.4)


def _draw_series(axes: Any, index: int, label: str, rows: list[Row]) -> None:
    runs = sorted(
        (float(row.column), row.measured, *(row.ci95 or (None, None)))
        for row in rows
        if row.measured is not None
    )
    if runs:
        x, y, low, high = np.array(runs, float).T
        reach = np.nan_to_num(np.abs(np.stack([low, high]) - y))
        look = {"color": COLOURS[index], "fmt": MARKERS[index], "capsize": 2.5, "elinewidth": 1.0}
        axes.errorbar(x, y, reach, label=label, ls=":" if len(runs) > 1 else "", lw=0.8, **look)
    for row in rows:
        if row.paper is not None:
            axes.plot(
                float(row.column), row.paper, "D", mfc="white", mec=INK, mew=1.3, ms=6.5, ls="",
                zorder=5, label="the paper",
            )  # fmt: skip


def _draw_band(axes: Any, claim: Claim) -> None:
    """The band of the claim, within the limits of the axis."""
    low, high = axes.get_ylim()
    bottom, top = claim.parts[0].band or (None, None)
    axes.axhspan(
        low if bottom is None else max(low, bottom), high if top is None else min(high, top),
        color=COLOURS[4], alpha=0.13, lw=0, label="costs nothing, as claimed",
    )  # fmt: skip


def _limits(exhibit: Exhibit, panel: Panel) -> tuple[float, float]:
    """Ends of the y axis: ratios that were measured or printed, and 1."""
    rows = [row for row in exhibit.rows if panel.series in row.label]
    values = [1.0, *(ratio for row in rows for ratio in (row.measured, row.paper) if ratio)]
    room = 0.12 * (max(values) - min(values)) + 0.02
    return min(values) - room, max(values) + 2 * room
