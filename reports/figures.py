# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Figures of exhibits.

An exhibit declares how it is drawn::

    "axes": {"x": "epoch", "y": "frame error (%)"},
    "draw": {"as": "curves"}
    "draw": {"as": "curves", "against": "search"}   differences to one of them, paired by seed
    "draw": {"as": "timeline", "file": "timelines/fig1.parquet"}
    "draw": {"as": "messages", "workers": 4, "messages": […]}
    "draw": {"as": "slots"}              slots | architecture
    "draw": {"as": "points", "strips": {"y": [3.2, 2.9, 3.5]}}   the paper's value and its band
    "draw": {"as": "dots"}               ours over the paper's (`join_tables`)

A timeline's ``average`` labels the lane of its averages. Drawn here are an exhibit's rows as
curves, messages between workers, slots of a minibatch (from which utterance each is filled), and
the architecture of paper 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.transforms import ScaledTranslation

from harness.base.errors import UserError, name_error
from harness.judge.paired import seeds_of, subtract_reference
from harness.judge.results import Exhibit, Row
from harness.simulator.timeline_file import load_timeline
from reports import extrapolation, gantt, numbers, style
from reports.reference_terms import PAPER, Words
from reports.style import COLOURS, DASHES, INK, MUTED, cycle

MARKED_POINTS = 12  # markers along a curve; more would hide it

MOST_BANDS = 3  # of more, the colours of overlapping bands cannot be told apart

LAW = "law, "  # begins the label of a curve that has the colour of what the law describes

MOST_TABLES = 3  # of a paper that are printed; more are drawn as one figure

FEW = 40  # points of a curve up to which each seed's value is a dot; of more, each seed is a line

PLACES = "places"  # of a report's labels, among what a figure is drawn from

ASIDE_IN = 0.035  # inches from one curve to the next one with points at the same place


def curves(axes: Axes, exhibit: Exhibit) -> None:
    """One line a label over the columns as x, with its interval as a band or as whiskers.

    ``draw`` may hold ``x_scale`` and ``y_scale`` (``"log"``), and ``x_ticks`` and ``y_ticks`` (the
    values to mark), and ``x_labels`` and ``y_labels`` (of the marks, if not their values).
    """
    for label, rows in group_by_label(exhibit.rows).items():
        _curve(axes, exhibit, label, rows)
    _scales(axes, exhibit)


def differences(axes: Axes, exhibit: Exhibit) -> None:
    """The curves minus the one that ``draw`` names in ``against``, paired by seed."""
    reference = str(exhibit.draw["against"])
    apart = replace(exhibit, rows=subtract_reference(exhibit.rows, reference))
    axes.axhline(0.0, color=MUTED, lw=0.8)
    for label, rows in group_by_label(apart.rows).items():
        _curve(axes, apart, label, rows)
    scales = {key: value for key, value in exhibit.draw.items() if key.startswith("x_")}
    _scales(axes, replace(exhibit, draw=scales))
    style.set_y_title(axes, title_of_differences(exhibit))


def title_of_differences(exhibit: Exhibit) -> str:
    """Name and unit of the differences; those of percentages are points.

    Example:
        >>> draw = {"against": "10 replicas"}
        >>> title_of_differences(Exhibit("a", "figure", "", axes={"y": "error (%)"}, draw=draw))
        'minus 10 replicas (points)'
    """
    unit = exhibit.axes.get("y", "").rpartition("(")[2] if "(" in exhibit.axes.get("y", "") else ""
    unit = unit.removesuffix(")").replace("%", "points")
    return f"minus {exhibit.draw['against']}" + (f" ({unit})" if unit else "")


def has_bands(exhibit: Exhibit) -> bool:
    """Whether intervals are drawn as bands: of few curves with more than a few points.

    Otherwise as whiskers. A curve that goes back has whiskers, since its band would cross itself.
    """
    groups = list(group_by_label(exhibit.rows).values())
    longest = max(map(len, groups), default=0)
    return len(groups) <= MOST_BANDS < longest and not any(
        _has_turns(_xs(exhibit, g)) for g in groups
    )


def _has_turns(x: np.ndarray) -> bool:
    """Whether a curve goes both ways."""
    steps = np.diff(x)
    return bool((steps < 0).any() and (steps > 0).any())


def _scales(axes: Axes, exhibit: Exhibit) -> None:
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if exhibit.draw.get(f"{name}_scale") == "log":
            style.set_log_scale(axis)
        if ticks := exhibit.draw.get(f"{name}_ticks"):
            labels = exhibit.draw.get(f"{name}_labels")
            axis.set_ticks(ticks, labels or [style.format_tick(tick) for tick in ticks])
            axis.set_ticks([], minor=True)


def points(axes: Axes, exhibit: Exhibit) -> None:
    """A point a row, and the paper's values as lines within ``strips``: axis -> value and band.

    Scales and ticks are those of `curves`.
    """
    for index, (label, rows) in enumerate(group_by_label(exhibit.rows).items()):
        look: dict[str, Any] = {**style.look_of(index), "linestyle": "", "ms": 3.5, "alpha": 0.7}
        axes.plot(_xs(exhibit, rows), _numbers([row.measured for row in rows]), label=label, **look)
    _scales(axes, exhibit)
    lines: dict[str, Any] = {"x": axes.axvline, "y": axes.axhline}
    bands: dict[str, Any] = {"x": axes.axvspan, "y": axes.axhspan}
    for axis, (value, low, high) in exhibit.draw.get("strips", {}).items():
        bands[axis](low, high, color=MUTED, alpha=0.16, lw=0, zorder=0)
        lines[axis](value, color=INK, lw=1.0, ls="--", zorder=1)


def group_by_label(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows grouped by label, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.label, []).append(row)
    return groups


def place_labels(exhibits: Iterable[Exhibit]) -> dict[str, int]:
    """The place of each label's colour: the same one in every figure of a report."""
    places: dict[str, int] = {}
    for exhibit in exhibits:
        labels = dict.fromkeys(row.label.removeprefix(LAW) for row in exhibit.rows)
        taken = {places[label] for label in labels if label in places}
        free = (place for place in count() if place not in taken)
        places |= {label: next(free) for label in labels if label not in places}
    return places


def _choose_places(exhibit: Exhibit, places: Mapping[str, int]) -> dict[str, int]:
    """The report's places, or the figure's own where two of its labels would look alike."""
    figure_places = place_labels([exhibit])
    shared = {label: places.get(label, -1) for label in figure_places}
    looks = {place % len(COLOURS) for place in shared.values() if place >= 0}
    return shared if len(looks) == len(figure_places) else figure_places


def _curve(axes: Axes, exhibit: Exhibit, label: str, rows: list[Row]) -> None:
    x, y = _xs(exhibit, rows), _numbers([row.measured for row in rows])
    places = exhibit.draw.get(PLACES) or place_labels([exhibit])
    index = places[label.removeprefix(LAW)]
    look = style.look_of(index)
    if label.startswith(LAW):
        look |= {"mfc": "white", "linestyle": ":"}
    colour, (low, high) = look["color"], _ends(rows)
    step = math.ceil(len(rows) / MARKED_POINTS)
    drawn, aside_in = list[Artist](), 0.0
    if has_bands(exhibit):
        axes.fill_between(x, low, high, color=colour, alpha=0.16, lw=0)
    else:
        whiskers: dict[str, Any] = {"elinewidth": 0.9, "capsize": 2.0, "alpha": 0.7, "ls": ""}
        bounded = np.isfinite(low) | np.isfinite(high)  # of others a cap alone would be drawn
        reach = np.nan_to_num([y - low, high - y]).clip(0)[:, bounded]
        drawn += axes.errorbar(
            x[bounded], y[bounded], reach, color=colour, **whiskers
        ).get_children()
        groups = group_by_label(exhibit.rows).items()
        beside = [name for name, others in groups if {*x} & {*_xs(exhibit, others)}]
        aside_in = ASIDE_IN * (beside.index(label) - (len(beside) - 1) / 2)
    seed: dict[str, Any] = (
        {"marker": ".", "ms": 2.6, "ls": ""} if len(rows) <= FEW else {"lw": 0.35}
    )
    for series in map(list, zip(*map(seeds_of, rows), strict=False)):
        drawn += axes.plot(x, series, color=colour, alpha=0.55, **seed)
    # markers are not all at one x, where they would hide each other
    drawn += axes.plot(x, y, label=label, markevery=(index % step, step), **look)
    printed = _numbers([row.paper for row in rows])
    axes.plot(x, printed, "D", mfc="white", mec=colour, mew=1.4, ms=6.5, zorder=4, ls="")
    aside = ScaledTranslation(aside_in, 0, axes.figure.dpi_scale_trans)
    for artist in drawn:  # moved when their own places have counted for the axes
        artist.set_transform(axes.transData + aside)


def _xs(exhibit: Exhibit, rows: list[Row]) -> np.ndarray:
    try:
        return np.array([float(row.column) for row in rows])
    except ValueError as error:
        where = f"results.json: exhibit {exhibit.id}: column of a curve"
        raise UserError(f"{where}: {error}; allowed: numbers") from None


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], float)


def _ends(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    bounds = [row.ci95 or (None, None) for row in rows]
    return _numbers([low for low, _ in bounds]), _numbers([high for _, high in bounds])


def legend(axes: Axes, rows: Sequence[Row], printed: str) -> None:
    """The legend above the axes; ``printed`` labels the marks of the paper's own figures."""
    handles, _ = axes.get_legend_handles_labels()
    if any(row.paper is not None for row in rows):
        paper = Line2D([], [], label=printed, marker="D", ls="")
        paper.set(mfc="white", mec=MUTED, mew=1.2, ms=6)
        handles = [*handles, paper]
    if handles:
        style.set_legend(axes, handles)


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

    ``draw`` holds ``column``: its lags are written, from columns ``"…, s"`` and
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
        ((0.42, 0.735), (0.20, 0.505), (0.0, 0.67), "decoder's fetch"),
        ((0.56, 0.735), (0.76, 0.505), (0.375, 0.58), "trainer's fetch"),
        ((0.88, 0.505), (0.64, 0.79), (0.8, 0.7), "gradient's push"),
    ]
    for index, ((start, end, place, way), lag) in enumerate(zip(ways, lags, strict=False)):
        _arrow_to_box(axes, start, end, COLOURS[index])
        axes.text(*place, f"{way}\n{lag}", color=COLOURS[index], va="center")
    _arrow_to_box(axes, (0.31, 0.42), (0.69, 0.42), MUTED)
    axes.text(0.5, 0.38, "outer gradients,\nframe by frame", color=MUTED, ha="center", va="top")
    _arrow_to_box(axes, (0.20, 0.145), (0.20, 0.335), MUTED)
    axes.text(0.5, 0.06, f"each replica; ages for {exhibit.draw.get('column', '')}, at the fold",
              color=MUTED, ha="left", va="center")  # fmt: skip


def _box(axes: Axes, name: str, x: float, y: float, width: float) -> None:
    corner = (x - width / 2, y - BOX_HEIGHT / 2)
    shape = "round,pad=0.0,rounding_size=0.02"
    axes.add_patch(
        FancyBboxPatch(corner, width, BOX_HEIGHT, boxstyle=shape, fc="white", ec=INK, lw=1.0)
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
    ages = {
        str(row.column).rpartition(", ")[2]: row.measured
        for row in rows
        if row.label == label and str(row.column).startswith(f"{column}, ")
    }
    texts = [f"{value:.3g} {unit}" for unit, value in ages.items() if value is not None]
    return "\n".join(texts)


LABEL = {True: "added by its receiver", False: "takes the place of the receiver's part"}


def messages(axes: Axes, exhibit: Exhibit) -> None:
    """Draw the messages of ``exhibit.draw``.

    ``workers`` is the number of lanes; ``messages`` is a list of
    ``{"from", "to", "sent_s", "arrived_s", "part", "adds"}``: two worker numbers from 0,
    seconds, what is sent in words, and whether it is added or replaces. All messages between
    two workers are told apart by their times.
    """
    rows: list[dict[str, Any]] = exhibit.draw.get("messages", [])
    workers = int(exhibit.draw["workers"])
    scale, unit = (1e3, "ms") if max(row["arrived_s"] for row in rows) < 2 else (1.0, "s")
    for row in rows:
        _arrow_of_message(axes, row, scale)
    for lane in range(workers):
        axes.axhline(lane, color=MUTED, lw=0.8, zorder=1)
    names = [f"worker {lane + 1}" for lane in range(workers)]
    style.set_lanes(axes, names, (workers - 0.6, -0.6))
    axes.set_xlim(0, 1.02 * scale * max(row["arrived_s"] for row in rows))
    handles = [
        Line2D([], [], color=COLOURS[not adds], ls=DASHES[not adds], label=label)
        for adds, label in LABEL.items()
        if any(row["adds"] == adds for row in rows)
    ]
    style.set_legend(axes, handles)
    exhibit.axes.setdefault("x", f"time since the all-reduce began ({unit})")


def _arrow_of_message(axes: Axes, row: dict[str, Any], scale: float) -> None:
    adds = bool(row["adds"])
    start = (row["sent_s"] * scale, row["from"])
    end = (row["arrived_s"] * scale, row["to"])
    look = {"color": COLOURS[not adds], "ls": DASHES[not adds], "lw": 1.2}
    style.draw_arrow(axes, start, end, 0.18, **look)
    x, y = (a + 0.14 * (b - a) for a, b in zip(start, end, strict=True))
    box = {"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none"}
    axes.text(x, y, row["part"], color=INK, ha="center", va="center", bbox=box)


SLOT_HEIGHT = 0.72


def slots(axes: Axes, exhibit: Exhibit) -> None:
    """A lane for each label, from the top; a bar for each run of columns with one figure.

    A row is one frame: its label is the slot, its column the minibatch, its figure the
    utterance.
    """
    lanes = group_by_label(exhibit.rows)
    for lane, rows in enumerate(lanes.values()):
        spans: dict[int, list[float]] = {}
        for row in rows:
            spans.setdefault(int(row.measured or 0), []).append(float(row.column))
        for utterance, steps in spans.items():
            begin, width = min(steps), max(steps) - min(steps) + 1
            colour = cycle(COLOURS[:6], utterance)
            axes.barh(lane, width, SLOT_HEIGHT, begin, color=colour, alpha=0.35, ec="white", lw=1.0)
            if width >= 2:
                axes.text(begin + width / 2, lane, str(utterance), ha="center", va="center")
    axes.set_yticks(range(len(lanes)), [label.removeprefix("slot ") for label in lanes])
    axes.invert_yaxis()
    axes.grid(visible=False)


def dots(axes: Axes, exhibit: Exhibit) -> None:
    """A line for each figure that the paper prints, from the top: ours over it."""
    rows = [*exhibit.rows]
    printed, place = _numbers([row.paper for row in rows]), np.arange(len(rows))
    ratio = _numbers([row.measured for row in rows]) / printed
    reach = np.nan_to_num(np.abs(np.stack(_ends(rows)) / printed - ratio))
    axes.errorbar(ratio, place, xerr=reach, fmt="o", ms=3, color=COLOURS[0], elinewidth=0.9)
    axes.axvline(1.0, color=INK, lw=0.8)
    style.set_log_scale(axes.xaxis)
    axes.set_yticks(place, [f"{row.label}, {row.column}" for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)


def join_tables(exhibits: Sequence[Exhibit]) -> Exhibit | None:
    """One figure of a paper's tables, ours over the paper's; None of few, which are printed."""
    tables = [e for e in exhibits if e.kind == "table" and e.paper_label.startswith("Table")]
    if len(tables) <= MOST_TABLES:
        return None
    rows = [
        replace(row, label=f"{table.paper_label.removeprefix('Table ')}: {row.label}")
        for table in tables
        for row in table.rows
        if row.paper and row.measured is not None
    ]
    first, *_, last = (table.paper_label.removeprefix("Table ") for table in tables)
    draw, axes = {"as": "dots"}, {"x": "ours over the paper's"}
    title = "Every figure that the paper prints: ours over it, with its 95% interval"
    files, label = ("figures/tables.svg",), f"Tables {first} to {last}"
    return Exhibit("tables", "figure", title, tuple(rows), files, "", axes, draw, label)


SERIES: dict[str, Callable[[Axes, Exhibit], None]] = {
    "curves": curves,
    "points": points,
    "messages": messages,
    "slots": slots,
    "architecture": architecture,
    "dots": dots,
}

WITH_LEGEND = ("curves", "points")

FORMS = ("svg", "png")


def draw(
    exhibit: Exhibit, out: Path, said: Words = PAPER, places: Mapping[str, int] | None = None
) -> dict[str, bytes]:
    """The figure of ``exhibit`` as files by extension.

    Empty if its ``draw`` is, if nothing of a curve over scale was run, or if its timeline is not in
    ``out``.

    Args:
        exhibit: with the form in its ``draw``.
        out: the folder that a timeline's ``file`` is relative to.
        said: terms for the reference of its figures.
        places: of the labels' colours in the report.

    Raises:
        UserError: an unknown way of drawing, or a timeline that cannot be drawn.
    """
    if not exhibit.draw or (exhibit.curve and all(row.measured is None for row in exhibit.rows)):
        return {}
    kind = exhibit.draw.get("as", "curves")
    if kind == "timeline":
        return _timeline(exhibit, out)
    if exhibit.curve is not None:
        return dict(extrapolation.draw_curve(exhibit, said.printed))
    if kind not in SERIES:
        raise name_error(
            f"results.json: exhibit {exhibit.id}: draw.as", kind, [*SERIES, "timeline"]
        )
    shown = {**exhibit.draw, PLACES: _choose_places(exhibit, places or {})}
    exhibit = replace(exhibit, draw=shown)
    with style.canvas(panels=1 + has_differences(exhibit)) as (figure, axes, *below):
        SERIES[kind](axes, exhibit)
        if kind == "dots":
            figure.set_figheight(0.15 * len(exhibit.rows) + 0.6)
        style.set_y_title(axes, exhibit.axes.get("y", ""))
        if kind in WITH_LEGEND:
            legend(axes, exhibit.rows, said.printed)
        for panel in below:
            differences(panel, exhibit)
        (below or [axes])[-1].set_xlabel(exhibit.axes.get("x", ""))
        return {form: style.render_figure(figure, form) for form in FORMS}


def has_differences(exhibit: Exhibit) -> bool:
    """Whether differences seed by seed are drawn below the curves."""
    reference = exhibit.draw.get("against")
    return reference is not None and bool(subtract_reference(exhibit.rows, str(reference)))


def caption(exhibit: Exhibit) -> str:
    """Explanation of bands, whiskers, dots and thin lines; empty where there are none."""
    if not exhibit.draw or exhibit.draw.get("as", "curves") != "curves":
        return ""
    lines: list[str] = []
    samples = [row.sample for row in exhibit.rows if row.sample]
    if any(numbers.half_width(row.ci95) for row in exhibit.rows):
        shape = "Bands" if has_bands(exhibit) else "Whiskers"
        seeds = {len(sample.values) for sample in samples}
        over = f" over {' or '.join(map(str, sorted(seeds)))} seeds" if seeds else ""
        lines.append(f"{shape}: 95% intervals{over}.")
    if any(len(seeds_of(row)) > 1 for row in exhibit.rows):
        longest = max(map(len, group_by_label(exhibit.rows).values()))
        lines.append(f"{'Dots' if longest <= FEW else 'Thin lines'}: single seeds.")
    if has_differences(exhibit):
        lines.append(
            f"Below: differences to {exhibit.draw['against']} seed by seed, with 95% intervals."
        )
    return " ".join(lines)


def _timeline(exhibit: Exhibit, out: Path) -> dict[str, bytes]:
    path = out / str(exhibit.draw.get("file", ""))
    if not path.is_file():
        return {}
    timeline = load_timeline(path)
    if not len(timeline.folds):
        raise UserError(f"{path}: no folds; allowed: a timeline of a run that folded")
    with style.canvas() as (figure, axes, *_):
        view = gantt.window(timeline)
        lanes = gantt.draw_window(axes, view, str(exhibit.draw.get("average", "")))
        figure.set_figheight(figure.get_figheight() - style.HEIGHT_IN + 0.42 * lanes + 0.85)
        return {form: style.render_figure(figure, form) for form in FORMS}
