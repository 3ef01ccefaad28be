# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Output of searches for break points: the tolerance curve as sentences, a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.base.settings import format_count
from harness.judge.break_point import Point, Tolerance
from reports import style
from reports.answers import Answer, Picture, charge_line, interval_columns
from reports.sentences import ALONE, EDGE, describe_gaps, format_rate, format_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def answer_of(search: Tolerance) -> Answer:
    """The answer of a search for a break point."""
    cells = [(f"{search.what} {point.value:g}", point.cell) for point in search.points]
    charged = charge_line([cell for _, cell in cells])
    return Answer(
        title=f"Tolerance of {search.what}",
        sentences=[*describe_tolerance(search), *describe_gaps(cells)],
        table=[*_cells(search)],
        notes=[*_feet(search)],
        details=[charged],
        data={
            **{"what": search.what, "margin": search.margin, "target": search.target},
            **{"tolerated": search.tolerated, "broken": search.broken},
            **{"interval": search.interval, "charged": charged},
        },
        name="points",
        records=[_record_of_point(search, point) for point in search.points],
        runs={name: [run.hash for run in cell.runs] for name, cell in cells},
        pictures=lambda: [*draw(search)],
    )


# -- text ------------------------------------------------------------------------------------


def describe_tolerance(search: Tolerance) -> Iterator[str]:
    """The break point, how sure it is, and the data that would decide, a sentence each."""
    reference, margin = search.points[0].value, f"{100.0 * search.margin:.3g}%"
    points = {point.value: point for point in search.points}
    ends = [points[value] for value in (search.tolerated, search.broken) if value in points]
    beyond = f", and at {search.broken:g} it does not" if len(ends) == 2 else ", the most tried"
    within = f"the error stays within {margin} of that at {reference:g}"
    yield f"{search.what}: up to {search.tolerated:g} {within}{beyond}."
    if all(end.decided for end in ends):
        yield f"Sure (95%, {format_count(len(ends[0].errors), 'seed')})."
        return
    if len(ends[0].errors) == 1:
        yield ALONE
        return
    low, high = search.interval
    sure = [f"it does up to {low:g}"] if low > reference else []
    sure += [f"it does not at {high:g}"] if math.isfinite(high) else []
    seeds = format_count(len(ends[0].errors), "seed")
    yield (
        f"Sure (95%, {seeds}) is only that {' and '.join(sure)}."
        if sure
        else (f"Not sure (95%, {seeds}) at any value.")
    )
    for end in ends:
        if not end.decided:
            yield f"To be sure at {end.value:g} takes {end.need}."


def _cells(search: Tolerance) -> Iterator[list[str]]:
    """The table's head and rows as text."""
    yield [search.what, "rate", "error (seeds)", "ratio (95%)", ""]
    for point in search.points:
        low, high = min(point.errors), max(point.errors)
        is_done = all(run.status == "done" for run in point.cell.runs)
        ratio = "not finite" if is_done else "diverged"
        if point.ratio:
            ratio = format_ratio(point.ratio)
        errors = f"{_mean(point):.3g} ({low:.3g} to {high:.3g})"
        state = ("broken" if point.broken else "tolerated") + ("" if point.decided else "?")
        yield [f"{point.value:g}", format_rate(point.cell), errors, ratio, state]


def _feet(search: Tolerance) -> Iterator[str]:
    """What the columns of the table mean."""
    limit = f"{1.0 + search.margin:g}"
    yield f"ratio: to the error at {search.points[0].value:g}; above {limit} it is broken"
    if any(point.cell.edge for point in search.points):
        yield EDGE
    if not all(point.decided for point in search.points):
        yield f"?: not sure, since {limit} lies in the ratio's interval"


def _mean(point: Point) -> float:
    return sum(point.errors) / len(point.errors)


def _record_of_point(search: Tolerance, point: Point) -> dict[str, Any]:
    seconds = search.seconds(point)
    return {
        **{"value": point.value, "rate": point.cell.rate, "error": _mean(point)},
        **{"lowest": min(point.errors), "highest": max(point.errors)},
        **interval_columns("ratio", point.ratio),
        **{"broken": point.broken, "decided": point.decided},
        "needs": "" if point.need is None else str(point.need),
        "seconds_to_target": sum(seconds) / len(seconds),
        "runs": " ".join(run.hash[:12] for run in point.cell.runs),
    }


# -- picture ---------------------------------------------------------------------------------


def draw(search: Tolerance) -> Iterator[Picture]:
    """Two figures over the varied quantity: the error, and simulated seconds to the target."""
    points = sorted(search.points, key=lambda point: point.value)
    label, target = search.points[0].cell.judged.replace("_", " "), search.target
    errors = _draw(search, f"{label} at the end", {p.value: p.errors for p in points}, target)
    yield Picture("tolerance", "Tolerance curve", errors)
    times = {point.value: search.seconds(point) for point in points}
    seconds = _draw(search, f"simulated seconds to {label} {target:.3g}", times)
    yield Picture("time", "Simulated time to the margin", seconds)


def _draw(
    search: Tolerance, title: str, values: Mapping[float, Sequence[float]], margin: float = math.nan
) -> Figure:
    """Mean over seeds, their band, and where quality breaks."""
    canvas = style.empty_figure(style.HEIGHT_IN, style.COLUMN_IN)
    axes = canvas.subplots()
    rows = {value: seeds for value, seeds in values.items() if all(map(math.isfinite, seeds))}
    band = ([min(seeds) for seeds in rows.values()], [max(seeds) for seeds in rows.values()])
    means = [sum(seeds) / len(seeds) for seeds in rows.values()]
    look: dict[str, Any] = {"color": style.COLOURS[0], "label": "mean, lowest and highest seed"}
    axes.fill_between([*rows], *band, color=style.COLOURS[0], alpha=0.25, linewidth=0.0)
    axes.plot([*rows], means, marker="o", **look)
    if missing := [value for value in values if value not in rows]:
        look = {"color": style.INK, "label": "not with every seed", "clip_on": False}
        axes.plot(missing, [0.0] * len(missing), "x", transform=axes.get_xaxis_transform(), **look)
    if math.isfinite(margin):
        axes.axhline(margin, color=style.INK, linewidth=0.8, linestyle=":", label="margin")
    if math.isfinite(search.broken):
        look = {"color": style.MUTED, "alpha": 0.25, "lw": 0.0, "label": "from tolerated to broken"}
        axes.axvspan(search.tolerated, search.broken, **look)
    if min(values) > 0.0:
        axes.set_xscale("log", base=2)
        axes.set_xticks([*values], [f"{tick:g}" for tick in values])
        axes.minorticks_off()
    axes.set_xlabel(search.axis)
    style.set_y_title(axes, title)
    style.set_legend(axes, axes.get_legend_handles_labels()[0])
    return canvas
