# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Figures by what the exhibit asks for.

An exhibit declares how it is drawn::

    "axes": {"x": "epoch", "y": "frame error (%)"},
    "draw": {"as": "curves"}             curves | bars | histogram
    "draw": {"as": "timeline", "file": "timelines/fig1.parquet"}
    "draw": {"as": "messages", "workers": 4, "messages": […]}
    "draw": {"as": "slots"}              slots | architecture

See ``series``, ``gantt``, ``messages``, ``slots`` and ``architecture`` for each one's other keys.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes

from harness.errors import unknown
from harness.judge import Exhibit
from reports import architecture, gantt, messages, series, slots, style

SERIES: dict[str, Callable[[Axes, Exhibit], None]] = {
    "curves": series.curves,
    "bars": series.bars,
    "histogram": series.histogram,
    "messages": messages.messages,
    "slots": slots.slots,
    "architecture": architecture.architecture,
}
FORMS = ("svg", "png")


def draw(exhibit: Exhibit, out: Path) -> dict[str, bytes]:
    """The figure of ``exhibit`` as files by extension.

    Nothing if it draws nothing, or draws a timeline that is not in ``out``.

    Args:
        exhibit: its ``draw`` says how.
        out: the folder that a timeline's ``file`` is relative to.

    Raises:
        UserError: an unknown way of drawing, or a timeline that cannot be drawn.
    """
    if not exhibit.draw:
        return {}
    kind = exhibit.draw.get("as", "curves")
    if kind == "timeline":
        return _timeline(exhibit, out)
    if kind not in SERIES:
        raise unknown(f"results.json: exhibit {exhibit.id}: draw.as", kind, [*SERIES, "timeline"])
    with style.canvas() as (figure, axes):
        SERIES[kind](axes, exhibit)
        axes.set_xlabel(exhibit.axes.get("x", ""))
        axes.set_ylabel(exhibit.axes.get("y", ""))
        return {form: style.rendered(figure, form) for form in FORMS}


def _timeline(exhibit: Exhibit, out: Path) -> dict[str, bytes]:
    path = out / str(exhibit.draw.get("file", ""))
    if not path.is_file():
        return {}
    with style.canvas() as (figure, axes):
        lanes = gantt.timeline(axes, path, exhibit.draw)
        figure.set_figheight(0.42 * lanes + 0.85)
        return {form: style.rendered(figure, form) for form in FORMS}
