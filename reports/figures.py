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

See ``series`` and ``gantt`` for the other keys of theirs. Drawn here are messages between workers,
slots of a minibatch (from which utterance each is filled), and the architecture of paper 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from harness.base.errors import UserError, unknown
from harness.judge import Exhibit, Row
from harness.judge.paired import against, seeds_of
from reports import gantt, numbers, series, style
from reports.reference_terms import PAPER, Words
from reports.series import by_label
from reports.style import COLOURS, DASHES, INK, MUTED, cycle

BOXES = {
    "parameter server": (0.50, 0.82, 0.30),
    "decoder": (0.20, 0.42, 0.22),
    "trainer": (0.80, 0.42, 0.22),
    "speech": (0.20, 0.06, 0.22),
}
"""Middle and width of each box, in shares of the axes."""

BOX_HEIGHT = 0.17


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
        _arrow_to_box(axes, start, end, COLOURS[index])
        axes.text(*place, f"{what}\n{lag}", color=COLOURS[index], fontsize=8.5, va="center")
    _arrow_to_box(axes, (0.31, 0.42), (0.69, 0.42), MUTED)
    axes.text(0.5, 0.38, "outer gradients, frame by frame", color=MUTED, ha="center", va="top",
              fontsize=8.5)  # fmt: skip
    _arrow_to_box(axes, (0.20, 0.145), (0.20, 0.335), MUTED)
    axes.text(0.5, 0.06, f"each replica; ages for {exhibit.draw.get('column', '')}, at the fold",
              color=MUTED, ha="left", va="center", fontsize=8.5)  # fmt: skip


def _box(axes: Axes, name: str, x: float, y: float, width: float) -> None:
    corner = (x - width / 2, y - BOX_HEIGHT / 2)
    style = "round,pad=0.0,rounding_size=0.02"
    axes.add_patch(
        FancyBboxPatch(corner, width, BOX_HEIGHT, boxstyle=style, fc="white", ec=INK, lw=1.0)
    )
    axes.text(x, y, name, ha="center", va="center", color=INK)


def _arrow_to_box(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str
) -> None:
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


LABEL = {True: "added by its receiver", False: "takes the place of the receiver's part"}


def messages(axes: Axes, exhibit: Exhibit) -> None:
    """Draw the messages of ``exhibit.draw``.

    ``workers`` is how many lanes there are; ``messages`` is a list of
    ``{"from", "to", "sent_s", "arrived_s", "part", "adds"}``: two worker numbers from 0,
    seconds, what is sent in words, and whether it is added or replaces. All messages between
    two workers are told apart by their times.

    Raises:
        UserError: there are no messages.
    """
    rows: list[dict[str, Any]] = exhibit.draw.get("messages", [])
    if not rows:
        raise UserError(f"results.json: exhibit {exhibit.id}: draw.messages: empty")
    workers = int(exhibit.draw["workers"])
    scale, unit = (1e3, "ms") if max(row["arrived_s"] for row in rows) < 2 else (1.0, "s")
    for row in rows:
        _arrow_of_message(axes, row, scale)
    for lane in range(workers):
        axes.axhline(lane, color=MUTED, lw=0.8, zorder=1)
    axes.set_yticks(range(workers), [f"worker {lane + 1}" for lane in range(workers)])
    axes.set_ylim(workers - 0.6, -0.6)
    axes.set_xlim(0, 1.02 * scale * max(row["arrived_s"] for row in rows))
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.legend(
        handles=[
            Line2D([], [], color=COLOURS[not adds], ls=DASHES[not adds], label=label)
            for adds, label in LABEL.items()
            if any(row["adds"] == adds for row in rows)
        ],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=2,
        borderpad=0,
    )
    exhibit.axes.setdefault("x", f"time since the all-reduce began ({unit})")


def _arrow_of_message(axes: Axes, row: dict[str, Any], scale: float) -> None:
    adds = bool(row["adds"])
    start = (row["sent_s"] * scale, row["from"])
    end = (row["arrived_s"] * scale, row["to"])
    axes.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={
            "arrowstyle": "-|>,head_width=0.18,head_length=0.36",
            "color": COLOURS[not adds],
            "ls": DASHES[not adds],
            "lw": 1.2,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
    axes.text(
        start[0] + 0.14 * (end[0] - start[0]),
        start[1] + 0.14 * (end[1] - start[1]),
        row["part"],
        fontsize=8,
        color=INK,
        ha="center",
        va="center",
        bbox={"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none"},
    )


SLOT_HEIGHT = 0.72


def slots(axes: Axes, exhibit: Exhibit) -> None:
    """A lane for each label, from the top; a bar for each run of columns with one figure.

    A row is one frame: its label is the slot, its column the minibatch, its figure the
    utterance.
    """
    lanes = by_label(exhibit.rows)
    for lane, rows in enumerate(lanes.values()):
        spans: dict[int, list[float]] = {}
        for row in rows:
            spans.setdefault(int(row.measured or 0), []).append(float(row.column))
        for utterance, steps in spans.items():
            left, width = min(steps), max(steps) - min(steps) + 1
            colour = cycle(COLOURS[:6], utterance)
            axes.barh(lane, width, SLOT_HEIGHT, left, color=colour, alpha=0.35, ec="white", lw=1.0)
            if width >= 2:
                axes.text(left + width / 2, lane, str(utterance), ha="center", va="center",
                          fontsize=7.5)  # fmt: skip
    axes.set_yticks(range(len(lanes)), [label.removeprefix("slot ") for label in lanes])
    axes.invert_yaxis()
    axes.grid(visible=False)


SERIES: dict[str, Callable[[Axes, Exhibit], None]] = {
    "curves": series.curves,
    "bars": series.bars,
    "histogram": series.histogram,
    "messages": messages,
    "slots": slots,
    "architecture": architecture,
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
