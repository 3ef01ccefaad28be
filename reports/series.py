# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Curves, bars and histograms from an exhibit's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from harness.base.errors import UserError
from harness.judge import Exhibit, Row
from harness.judge.paired import against, seeds_of
from reports.style import COLOURS, DASHES, HATCHES, INK, MARKERS, MUTED, cycle

MARKED_POINTS = 12  # markers along a curve; more would hide it
MOST_BANDS = 3  # of more, nobody sees whose colour a field has
MOST_SHARED = 0.5  # of a band that lies in another: of more, two colours make a third
FEW = 40  # points of a curve up to which each seed's value is a dot; of more, each seed is a line
ASIDE_IN = 0.035  # inches from one curve's whiskers to the next one's
ACROSS = 96  # characters of a legend's line


def curves(axes: Axes, exhibit: Exhibit) -> None:
    """One line a label over the columns as x, with its interval as a band or as whiskers.

    ``draw`` may hold ``x_scale`` and ``y_scale`` (matplotlib's names), and ``x_ticks``
    and ``y_ticks`` (the values to mark).
    """
    for index, (label, rows) in enumerate(by_label(exhibit.rows).items()):
        _curve(axes, exhibit, index, label, rows)
    _scales(axes, exhibit)


def differences(axes: Axes, exhibit: Exhibit) -> None:
    """The curves minus the one that ``draw`` names in ``against``, paired by seed."""
    reference = str(exhibit.draw["against"])
    places = {label: place for place, label in enumerate(by_label(exhibit.rows))}
    apart = replace(exhibit, rows=against(exhibit.rows, reference))
    axes.axhline(0.0, color=MUTED, lw=0.8)
    for label, rows in by_label(apart.rows).items():
        _curve(axes, apart, places[label], label, rows)
    scales = {key: value for key, value in exhibit.draw.items() if key.startswith("x_")}
    _scales(axes, replace(exhibit, draw=scales))
    axes.set_ylabel(f"minus {reference}")


def banded(exhibit: Exhibit) -> bool:
    """Whether intervals are drawn as bands: of few curves that do not share one field.

    Else as whiskers, so are those of a curve that goes back, for its band would cross itself;
    other long curves keep their bands, for whiskers would hide them.
    """
    groups = list(by_label(exhibit.rows).values())
    short = max(map(len, groups), default=0) <= MARKED_POINTS
    if len(groups) > MOST_BANDS or any(_turns(_xs(exhibit, rows)) for rows in groups):
        return False
    shares = (_shared(exhibit, one, other) for one, other in combinations(groups, 2))
    return not (short and any(share > MOST_SHARED for share in shares))


def _turns(x: np.ndarray) -> bool:
    """Whether a curve goes both ways."""
    steps = np.diff(x)
    return bool((steps < 0).any() and (steps > 0).any())


def _shared(exhibit: Exhibit, one: list[Row], other: list[Row]) -> float:
    """How much of the narrower interval lies in the wider, on average where both curves run."""
    (x, at), (ends, theirs) = (_xs(exhibit, r) for r in (one, other)), map(_ends, (one, other))
    low, high = (np.interp(x, at, end, math.nan, math.nan) for end in theirs)
    common = np.minimum(ends[1], high) - np.maximum(ends[0], low)
    narrower = np.minimum(ends[1] - ends[0], high - low)
    told = narrower > 0  # NaN is not
    return float((common[told] / narrower[told]).mean()) if told.any() else 0.0


def _scales(axes: Axes, exhibit: Exhibit) -> None:
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if scale := exhibit.draw.get(f"{name}_scale"):
            axes.set(**{f"{name}scale": scale})
            axis.set_major_formatter(plain)  # powers of ten would be set as mathematics
            axis.set_minor_formatter(NullFormatter())
        if scale == "log":  # less than a decade has few powers of ten in it, or none
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        if ticks := exhibit.draw.get(f"{name}_ticks"):
            axis.set_ticks(ticks, [plain(tick) for tick in ticks])
            axis.set_ticks([], minor=True)


def plain(value: float, position: float = 0.0) -> str:
    """A tick's label in digits; the position is matplotlib's and does not matter."""
    del position
    return f"{value:g}"


def bars(axes: Axes, exhibit: Exhibit) -> None:
    """Groups of bars over the columns, one bar a label, with interval whiskers."""
    groups = list(dict.fromkeys(row.column for row in exhibit.rows))
    labelled = by_label(exhibit.rows)
    width = 0.8 / len(labelled) if labelled else 0.8
    for index, (label, rows) in enumerate(labelled.items()):
        offset = (index - (len(labelled) - 1) / 2) * width
        x = np.array([groups.index(row.column) for row in rows]) + offset
        low, high = _ends(rows)
        y = _numbers([row.measured for row in rows])
        error = np.nan_to_num(np.clip([y - low, high - y], 0, None))
        axes.bar(
            x,
            np.nan_to_num(y),
            width * 0.92,
            yerr=error,
            label=label,
            color=cycle(COLOURS, index),
            edgecolor="white",
            hatch=cycle(HATCHES, index),
            error_kw={"ecolor": INK, "elinewidth": 0.9, "capsize": 2.5},
        )
        _seeds(axes, x, rows, INK)
        printed = _numbers([row.paper for row in rows])
        axes.plot(x, printed, "D", mfc="white", mec=INK, mew=1.1, ms=5.5, zorder=4)
    axes.set_xticks(range(len(groups)), [str(group) for group in groups])
    axes.grid(visible=False, axis="x")


def histogram(axes: Axes, exhibit: Exhibit) -> None:
    """Filled steps: a row's column is the middle of its bin, its figure the count."""
    for index, (label, rows) in enumerate(by_label(exhibit.rows).items()):
        x, y = _xs(exhibit, rows), _numbers([row.measured for row in rows])
        colour = cycle(COLOURS, index)
        axes.fill_between(x, np.nan_to_num(y), step="mid", color=colour, alpha=0.25, lw=0)
        axes.step(x, y, where="mid", color=colour, ls=cycle(DASHES, index), label=label)
    axes.set_ylim(bottom=0)


def by_label(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows grouped by label, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.label, []).append(row)
    return groups


def _curve(axes: Axes, exhibit: Exhibit, index: int, label: str, rows: list[Row]) -> None:
    x, y = _xs(exhibit, rows), _numbers([row.measured for row in rows])
    colour, marker = cycle(COLOURS, index), cycle(MARKERS, index)
    low, high = _ends(rows)
    step = math.ceil(len(rows) / MARKED_POINTS)
    if banded(exhibit):
        axes.fill_between(x, low, high, color=colour, alpha=0.16, lw=0)
    else:
        whiskers: dict[str, Any] = {"elinewidth": 0.9, "capsize": 2.0, "alpha": 0.7, "ls": ""}
        aside = ScaledTranslation(index * ASIDE_IN, 0, axes.figure.dpi_scale_trans)
        whiskers["transform"] = axes.transData + aside  # or they would lie on each other
        known = np.isfinite(low) | np.isfinite(high)  # of others a cap alone would be drawn
        reach = np.nan_to_num([y - low, high - y]).clip(0)[:, known]
        axes.errorbar(x[known], y[known], reach, color=colour, **whiskers)
        ends = np.array([[*x, *x], [*low, *high]]).T  # what is moved aside does not count by itself
        axes.update_datalim(ends[np.isfinite(ends).all(axis=1)])
    _seeds(axes, x, rows, colour)
    axes.plot(
        x,
        y,
        label=label,
        color=colour,
        ls=cycle(DASHES, index),
        marker=marker,
        markevery=(index % step, step),  # not all at one x, where they would hide each other
    )
    printed = _numbers([row.paper for row in rows])
    axes.plot(x, printed, "D", mfc="white", mec=colour, mew=1.4, ms=6.5, zorder=4, ls="")


def _seeds(axes: Axes, x: np.ndarray, rows: list[Row], colour: str) -> None:
    """What each seed gave: dots of few points, thin lines of many."""
    values = [seeds_of(row) for row in rows]
    seeds = min(map(len, values), default=0)
    look: dict[str, Any] = (
        {"marker": ".", "ms": 2.6, "ls": ""} if len(rows) <= FEW else {"lw": 0.35}
    )
    for seed in range(seeds):
        axes.plot(x, [each[seed] for each in values], color=colour, alpha=0.55, **look)


def _xs(exhibit: Exhibit, rows: list[Row]) -> np.ndarray:
    try:
        return np.array([float(row.column) for row in rows])
    except (TypeError, ValueError):
        wrong = next(row.column for row in rows if not _is_number(row.column))
        raise UserError(
            f"results.json: exhibit {exhibit.id}: column {wrong!r} of a curve; allowed: numbers"
        ) from None


def _is_number(column: object) -> bool:
    try:
        float(column)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], float)


def _ends(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    bounds = [row.ci95 or (None, None) for row in rows]
    return _numbers([low for low, _ in bounds]), _numbers([high for _, high in bounds])


def legend(axes: Axes, rows: Sequence[Row], printed: str) -> None:
    """What is drawn how, above the axes; ``printed`` names the marks of figures not ours."""
    handles, _ = axes.get_legend_handles_labels()
    if any(row.paper is not None for row in rows):
        paper = Line2D([], [], label=printed, marker="D", ls="")
        paper.set(mfc="white", mec=MUTED, mew=1.2, ms=6)
        handles = [*handles, paper]
    if handles:
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(len(handles), ACROSS // (longest + 8)))
        axes.legend(  # above the axes, where no data are
            handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderpad=0
        )
