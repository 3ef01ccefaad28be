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
from reports.style import COLOURS, MARKERS


class Panel(NamedTuple):
    """An exhibit of a paper, its claim, the panel's title, and the series to draw."""

    exhibit: str
    claim: str
    title: str
    series: str


PANELS = (
    Panel("p1.regime", "p1.one-pass-close", "Paper 1: one pass over many", "clean"),
    Panel("p2.scaling", "p2.small-loss", "Paper 2: 16 GPUs over one", "all sets"),
    Panel("p3.scaling", "p3.replicas-as-good", "Paper 3: 50 replicas over one", "fifty"),
)


def draw_map(results: Mapping[str, Results]) -> bytes | None:
    """The map as PNG, with the panels of which something was run; None if there is none.

    Args:
        results: of each paper's largest scale, by paper.
    """
    exhibits = {entry.id: entry for of in results.values() for entry in of.exhibits}
    claims = {entry.id: entry for of in results.values() for entry in of.claims}
    run = {id_ for id_, entry in exhibits.items() if any(row.measured for row in entry.rows)}
    panels = [panel for panel in PANELS if panel.exhibit in run]
    if not panels:
        return None
    with style.use_style():
        figure = style.empty_figure(3.4)
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, panel, exhibits[panel.exhibit], claims[panel.claim])
        return style.render_figure(figure, "png")


def _draw_panel(axes: Any, panel: Panel, exhibit: Exhibit, claim: Claim) -> None:
    series: dict[str, list[Row]] = {}
    for row in exhibit.rows:
        if panel.series in row.label:
            series.setdefault(row.label.partition(",")[0], []).append(row)
    style.set_log_scale(axes.xaxis)
    axes.tick_params(axis="x", rotation=40)
    for index, (label, rows) in enumerate(series.items()):
        _draw_series(axes, index, label if len(series) > 1 else "runs, 95% interval", rows)
    axes.margins(0.08, 0.15)
    limits, band = axes.get_ylim(), claim.parts[0].band or (None, None)
    ends = (limit if end is None else end for limit, end in zip(limits, band, strict=True))
    axes.axhspan(*ends, color=COLOURS[4], alpha=0.13, lw=0, label="costs nothing, as claimed")
    axes.set_ylim(limits)
    style.set_y_title(axes, panel.title)
    axes.set_xlabel(textwrap.fill(exhibit.axes["x"], 30))
    axes.legend(loc="best", fontsize="small", handlelength=1.4)


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
            axes.plot(float(row.column), row.paper, "D", label="the paper", **style.PRINTED)
