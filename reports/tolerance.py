# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Output of searches for break points: the tolerance curve as sentences, a table and a figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.base.settings import format_count
from harness.judge.break_point import Point, Tolerance
from reports.answers import Answer, Picture, charge_line
from reports.sentences import ALONE, describe_gaps, format_range, format_times
from reports.style import COLOURS, INK, MUTED, empty_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT_IN = 3.0


def answer_of(search: Tolerance) -> Answer:
    """The answer of a search for a break point."""
    cells = [(f"{search.what} {point.value:g}", point.cell) for point in search.points]
    charged = charge_line([cell for _, cell in cells])
    caption = "The error at the end and the simulated seconds to the margin, over all seeds."
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
        picture=lambda: Picture("tolerance", "Tolerance curve", draw(search), caption),
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
            times = format_times(point.ratio.estimate, point.ratio.width)
            ratio = f"{times}{format_range(point.ratio, format_times)}"
        errors = f"{_mean(point):.3g} ({low:.3g} to {high:.3g})"
        state = ("broken" if point.broken else "tolerated") + ("" if point.decided else "?")
        yield [f"{point.value:g}", f"{point.cell.rate:.3g}", errors, ratio, state]


def _feet(search: Tolerance) -> Iterator[str]:
    """What the columns of the table mean."""
    limit = f"{1.0 + search.margin:g}"
    yield f"ratio: to the error at {search.points[0].value:g}; above {limit} it is broken"
    if not all(point.decided for point in search.points):
        yield f"?: not sure, since {limit} lies in the ratio's interval"


def _mean(point: Point) -> float:
    return sum(point.errors) / len(point.errors)


def _record_of_point(search: Tolerance, point: Point) -> dict[str, Any]:
    ratio = point.ratio
    three = (math.nan,) * 3 if ratio is None else (ratio.estimate, ratio.low, ratio.high)
    seconds = search.seconds(point)
    return {
        **{"value": point.value, "rate": point.cell.rate, "error": _mean(point)},
        **{"lowest": min(point.errors), "highest": max(point.errors)},
        **dict(zip(("ratio", "ratio_low", "ratio_high"), three, strict=True)),
        **{"broken": point.broken, "decided": point.decided},
        "needs": "" if point.need is None else str(point.need),
        "seconds_to_target": sum(seconds) / len(seconds),
        "runs": " ".join(run.hash[:12] for run in point.cell.runs),
    }


# -- picture ---------------------------------------------------------------------------------


def draw(search: Tolerance) -> Figure:
    """Two panels over the varied quantity: the error, and simulated seconds to the target."""
    canvas = empty_figure(HEIGHT_IN)
    errors, times = canvas.subplots(1, 2)
    ordered = sorted(search.points, key=lambda point: point.value)
    _curve(errors, search, [(p.value, p.errors) for p in ordered])
    _curve(times, search, [(p.value, search.seconds(p)) for p in ordered])
    label = search.points[0].cell.judged.replace("_", " ")
    errors.axhline(search.target, color=MUTED, linewidth=0.8, linestyle=":", label="margin")
    ends = [error for p in ordered for error in p.errors if math.isfinite(error)]
    errors.set_ylim(0.0, 1.6 * max([*ends, search.target]))  # room for the legend
    errors.set_ylabel(f"{label} at the end")
    times.set_ylim(bottom=0.0)
    times.set_ylabel(f"simulated time to {search.target:.3g} (s)")
    errors.legend(loc="upper left")
    return canvas


def _curve(axes: Axes, search: Tolerance, points: Sequence[tuple[float, Sequence[float]]]) -> None:
    """Mean over seeds, their band, and where quality breaks."""
    rows = [(v, errors) for v, errors in points if all(math.isfinite(e) for e in errors)]
    values = [value for value, _ in rows]
    means = [sum(errors) / len(errors) for _, errors in rows]
    band = ([min(errors) for _, errors in rows], [max(errors) for _, errors in rows])
    axes.fill_between(values, *band, color=COLOURS[0], alpha=0.25, linewidth=0.0, label="seeds")
    axes.plot(values, means, color=COLOURS[0], marker="o", label="mean")
    end = search.broken if math.isfinite(search.broken) else search.tolerated
    axes.axvspan(search.tolerated, end, color=MUTED, alpha=0.25, linewidth=0.0)
    if math.isfinite(search.broken):
        axes.axvline(search.broken, color=INK, linewidth=0.8, linestyle="--", label="broken")
    if all(value > 0.0 for value, _ in points):
        axes.set_xscale("log", base=2)
        ticks = sorted({value for value, _ in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(search.axis)
