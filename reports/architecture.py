# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Paper 3's architecture as a drawing: what reads the parameters when, and how old they grow."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from harness.judge import Exhibit, Row
from reports.style import COLOURS, INK, MUTED

BOXES = {
    "parameter server": (0.50, 0.82, 0.30),
    "decoder": (0.20, 0.42, 0.22),
    "trainer": (0.80, 0.42, 0.22),
    "speech": (0.20, 0.06, 0.22),
}
"""Middle and width of each box, in shares of the axes."""
HEIGHT = 0.17


def architecture(axes: Axes, exhibit: Exhibit) -> None:
    """Boxes and arrows; beside the first three arrows, the exhibit's rows of one column.

    ``draw`` holds ``column``: whose lags are written, in columns ``"…, s"`` and
    ``"…, updates"``.
    """
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.06, 0.96)
    for name, (x, y, width) in BOXES.items():
        _box(axes, name, x, y, width)
    labels = list(dict.fromkeys(row.label for row in exhibit.rows))
    lags = [_lag(exhibit.rows, label, str(exhibit.draw.get("column", ""))) for label in labels]
    ways = [
        ((0.42, 0.735), (0.20, 0.505), (0.015, 0.64), "decoder's fetch"),
        ((0.56, 0.735), (0.76, 0.505), (0.405, 0.585), "trainer's fetch"),
        ((0.88, 0.505), (0.64, 0.79), (0.80, 0.66), "push of a gradient"),
    ]
    for index, ((start, end, place, what), lag) in enumerate(zip(ways, lags, strict=False)):
        _arrow(axes, start, end, COLOURS[index])
        axes.text(*place, f"{what}\n{lag}", color=COLOURS[index], fontsize=8.5, va="center")
    _arrow(axes, (0.31, 0.42), (0.69, 0.42), MUTED)
    axes.text(0.5, 0.38, "outer gradients, frame by frame", color=MUTED, ha="center", va="top",
              fontsize=8.5)  # fmt: skip
    _arrow(axes, (0.20, 0.145), (0.20, 0.335), MUTED)
    axes.text(0.5, 0.06, f"each replica; ages for {exhibit.draw.get('column', '')}, at the fold",
              color=MUTED, ha="left", va="center", fontsize=8.5)  # fmt: skip


def _box(axes: Axes, name: str, x: float, y: float, width: float) -> None:
    corner = (x - width / 2, y - HEIGHT / 2)
    style = "round,pad=0.0,rounding_size=0.02"
    axes.add_patch(
        FancyBboxPatch(corner, width, HEIGHT, boxstyle=style, fc="white", ec=INK, lw=1.0)
    )
    axes.text(x, y, name, ha="center", va="center", color=INK)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=colour, lw=1.3)
    )


def _lag(rows: Sequence[Row], label: str, column: str) -> str:
    """The two ages of one path, in words."""
    found = {
        str(row.column).rpartition(", ")[2]: row.measured
        for row in rows
        if row.label == label and str(row.column).startswith(f"{column}, ")
    }
    told = [f"{value:.3g} {unit}" for unit, value in found.items() if value is not None]
    return ", ".join(told)
