# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Figures by what the exhibit asks for.

An exhibit declares how it is drawn::

    "axes": {"x": "epoch", "y": "frame error (%)"},
    "draw": {"as": "curves"}             curves | bars | histogram
    "draw": {"as": "curves", "against": "search"}   differences to one of them, paired by seed
    "draw": {"as": "timeline", "file": "timelines/fig1.parquet"}
    "draw": {"as": "messages", "workers": 4, "messages": […]}
    "draw": {"as": "slots"}              slots | architecture

See ``series``, ``gantt``, ``messages``, ``slots`` and ``architecture`` for each one's other keys.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes

from harness.base.errors import unknown
from harness.judge import Exhibit
from harness.judge.paired import against, seeds_of
from reports import architecture, gantt, messages, numbers, series, slots, style
from reports.reference_terms import PAPER, Words

SERIES: dict[str, Callable[[Axes, Exhibit], None]] = {
    "curves": series.curves,
    "bars": series.bars,
    "histogram": series.histogram,
    "messages": messages.messages,
    "slots": slots.slots,
    "architecture": architecture.architecture,
}
WITH_LEGEND = ("curves", "bars", "histogram")
FORMS = ("svg", "png")


def draw(exhibit: Exhibit, out: Path, said: Words = PAPER) -> dict[str, bytes]:
    """The figure of ``exhibit`` as files by extension.

    Nothing if it draws nothing, or draws a timeline that is not in ``out``.

    Args:
        exhibit: its ``draw`` says how.
        out: the folder that a timeline's ``file`` is relative to.
        said: what its figures are held against.

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
    with style.canvas(panels=1 + paired(exhibit)) as (figure, axes, *below):
        SERIES[kind](axes, exhibit)
        if kind in WITH_LEGEND:
            series.legend(axes, exhibit.rows, said.printed)
        for panel in below:
            series.differences(panel, exhibit)
        (below or [axes])[-1].set_xlabel(exhibit.axes.get("x", ""))
        axes.set_ylabel(exhibit.axes.get("y", ""))
        return {form: style.rendered(figure, form) for form in FORMS}


def paired(exhibit: Exhibit) -> bool:
    """Whether differences seed by seed are drawn below the curves."""
    reference = exhibit.draw.get("against")
    return reference is not None and bool(against(exhibit.rows, str(reference)))


def caption(exhibit: Exhibit) -> str:
    """What bands, whiskers, dots and thin lines are, in words; empty where there are none."""
    kind = exhibit.draw.get("as", "curves")
    if kind not in ("curves", "bars") or not exhibit.draw:
        return ""
    told: list[str] = []
    samples = [row.sample for row in exhibit.rows if row.sample]
    if any(numbers.half_width(row.ci95) for row in exhibit.rows):
        shape = "Bands" if kind == "curves" and series.banded(exhibit) else "Whiskers"
        seeds = {len(sample.values) for sample in samples}
        over = f" over {' or '.join(map(str, sorted(seeds)))} seeds" if seeds else ""
        told.append(f"{shape}: 95% intervals{over}.")
    if any(len(seeds_of(row)) > 1 for row in exhibit.rows):
        longest = max(map(len, series.by_label(exhibit.rows).values()))
        few = kind == "bars" or longest <= series.FEW
        told.append(f"{'Dots' if few else 'Thin lines'}: single seeds.")
    if paired(exhibit):
        told.append(
            f"Below: differences to {exhibit.draw['against']} seed by seed, with their paired 95% "
            "intervals; claims rest on these."
        )
    return " ".join(told)


def _timeline(exhibit: Exhibit, out: Path) -> dict[str, bytes]:
    path = out / str(exhibit.draw.get("file", ""))
    if not path.is_file():
        return {}
    with style.canvas() as (figure, axes, *_):
        lanes = gantt.timeline(axes, path, exhibit.draw)
        figure.set_figheight(0.42 * lanes + 0.85)
        return {form: style.rendered(figure, form) for form in FORMS}
