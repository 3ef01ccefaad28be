# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Output of searches for break points: the tolerance curve as a table, a page, CSV and a figure."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.judge.break_point import Point, Tolerance
from harness.judge.charge import charge_line
from harness.store import files as atomic
from reports.answer_page import Picture, build_page
from reports.style import COLOURS, INK, MUTED, empty_figure, render_figure, use_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOLERANCE_HEAD = (
    *("value", "rate", "error", "lowest", "highest", "ratio", "ratio_low", "ratio_high"),
    *("broken", "decided", "needs", "seconds_to_target", "runs"),
)

TOLERANCE_HEIGHT_IN = 3.0


def write_tolerance(found: Tolerance, out: Path, provenance: Mapping[str, Any]) -> list[Path]:
    """Write ``index.html``, ``tolerance.csv``, ``tolerance.svg`` and ``.png``, ``results.json``.

    Args:
        found: the search.
        out: the folder, made if it is missing.
        provenance: commit, versions and hashes of the runs, for ``results.json``.

    Raises:
        UserError: the folder cannot be written.
    """
    atomic.writable_folder(out, "report")
    with use_style():
        pictures = {form: render_figure(tolerance_figure(found), form) for form in ("svg", "png")}
    files = {
        "index.html": as_page_of_tolerance(found, pictures["svg"], provenance).encode(),
        "tolerance.csv": as_csv_of_tolerance(found).encode(),
        **{f"tolerance.{form}": content for form, content in pictures.items()},
        "results.json": (
            json.dumps(as_json_of_tolerance(found, provenance), indent=2) + "\n"
        ).encode(),
    }
    for name, content in files.items():
        atomic.write_bytes(out / name, content)
    return [out / name for name in files]


# -- text ------------------------------------------------------------------------------------


def describe_tolerance(found: Tolerance) -> Iterator[str]:
    """The break point, its interval, and the data that would decide, a sentence each."""
    first, margin = found.points[0].value, f"{100.0 * found.margin:.3g}%"
    known = {point.value: point for point in found.points}
    said = f"the error stays within {margin} of that at {first:g} up to {found.tolerated:g}"
    ends = [known[found.tolerated]]
    if math.isinf(found.broken):
        said += ", the most that was tried"
    else:
        said += f", and not at {found.broken:g}"
        ends.append(known[found.broken])
    if all(end.decided for end in ends):
        yield f"{found.what}: {said}"
        return
    yield f"{found.what}: undecided: {_describe_interval(found, margin)}"
    yield f"by the means alone, {said}"
    if len(ends[0].errors) == 1:
        yield "one seed has no interval: not decided"
        return
    for end in ends:
        if not end.decided:
            yield f"undecided at {end.value:g}: needs {end.need}"


def _describe_interval(found: Tolerance, margin: str) -> str:
    """The values between which the break point is with 95% confidence."""
    first, (low, high) = found.points[0].value, found.interval
    within = f"within {margin} of that at {first:g}"
    if low > first and math.isfinite(high):
        return f"the error is surely {within} up to {low:g}, and surely not from {high:g} on (95%)"
    if math.isfinite(high):
        return f"the error is surely not {within} from {high:g} on (95%), and unsure below"
    if low > first:
        return f"the error is surely {within} up to {low:g} (95%), and unsure above"
    return f"at no value that was tried is it sure (95%) whether the error is {within}"


def lines_of_tolerance(found: Tolerance) -> Iterator[str]:
    """The tolerated value and the measured points for a terminal."""
    yield from describe_tolerance(found)
    for row in cells_of_tolerance(found):
        yield "  ".join(
            cell.rjust(width) for cell, width in zip(row, (12, 9, 24, 24, 9), strict=True)
        )
    if charged := _charge(found):
        yield charged


def as_page_of_tolerance(found: Tolerance, drawn: bytes, provenance: Mapping[str, Any]) -> str:
    """The same as one HTML page.

    Args:
        found: the search.
        drawn: the tolerance curve, as SVG.
        provenance: commit, versions, command and hashes of the runs.
    """
    caption = "The error at the end and the simulated seconds to the margin, over all seeds."
    return build_page(
        f"Tolerance of {found.what}",
        [f"{each}." for each in describe_tolerance(found)],
        list(cells_of_tolerance(found)),
        [charged] if (charged := _charge(found)) else [],
        [Picture("Tolerance curve", drawn, caption)],
        provenance,
    )


def as_csv_of_tolerance(found: Tolerance) -> str:
    """One line a point, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TOLERANCE_HEAD)
    writer.writerows(_record_of_point(found, point).values() for point in found.points)
    return text.getvalue()


def as_json_of_tolerance(found: Tolerance, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values; numbers that are not finite are null."""
    points = [
        {k: _finite_or_none(v) for k, v in _record_of_point(found, p).items()} for p in found.points
    ]
    head = {"schema": 1, "what": found.what, "margin": found.margin, "target": found.target}
    edges = {"tolerated": found.tolerated, "broken": _finite_or_none(found.broken)}
    edges |= {"interval": [_finite_or_none(end) for end in found.interval]}
    edges |= {"charged": _charge(found)}
    return {**head, **edges, "points": points, "provenance": dict(provenance)}


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _charge(found: Tolerance) -> str:
    return charge_line([point.cell for point in found.points])


def cells_of_tolerance(found: Tolerance) -> Iterator[list[str]]:
    """The table's head and rows as text."""
    yield [found.what, "rate", "error (seeds)", "ratio, 95%", ""]
    for point in found.points:
        low, high = min(point.errors), max(point.errors)
        ratio = "diverged" if point.ratio is None else f"{point.ratio.estimate:.3f}"
        if point.ratio is not None and math.isfinite(point.ratio.high - point.ratio.low):
            ratio += f" [{point.ratio.low:.3f}, {point.ratio.high:.3f}]"
        errors = f"{_mean(point):.4g} ({low:.4g} to {high:.4g})"
        state = ("broken" if point.broken else "tolerated") + ("" if point.decided else "?")
        yield [f"{point.value:g}", f"{point.cell.rate:.3g}", errors, ratio, state]


def _mean(point: Point) -> float:
    return sum(point.errors) / len(point.errors)


def _record_of_point(found: Tolerance, point: Point) -> dict[str, Any]:
    ratio = point.ratio
    three = (math.nan,) * 3 if ratio is None else (ratio.estimate, ratio.low, ratio.high)
    seconds = found.seconds(point)
    values = (
        *(point.value, point.cell.rate, _mean(point), min(point.errors), max(point.errors)),
        *(*three, point.broken, point.decided, "" if point.need is None else str(point.need)),
        sum(seconds) / len(seconds),
        " ".join(run.hash[:12] for run in point.cell.runs),
    )
    return dict(zip(TOLERANCE_HEAD, values, strict=True))


# -- picture ---------------------------------------------------------------------------------


def tolerance_figure(found: Tolerance) -> Figure:
    """Two panels over the varied quantity: the error, and simulated seconds to the target."""
    drawn = empty_figure(TOLERANCE_HEIGHT_IN)
    errors, times = drawn.subplots(1, 2)
    ordered = sorted(found.points, key=lambda point: point.value)
    _curve(errors, found, [(p.value, p.errors) for p in ordered])
    _curve(times, found, [(p.value, found.seconds(p)) for p in ordered])
    label = found.points[0].cell.judged.replace("_", " ")
    errors.axhline(found.target, color=MUTED, linewidth=0.8, linestyle=":", label="margin")
    ends = [error for p in ordered for error in p.errors if math.isfinite(error)]
    errors.set_ylim(0.0, 1.6 * max([*ends, found.target]))  # room for the legend
    errors.set_ylabel(f"{label} at the end")
    times.set_ylim(bottom=0.0)
    times.set_ylabel(f"simulated time to {found.target:.3g} (s)")
    errors.legend(loc="upper left")
    return drawn


def _curve(axes: Axes, found: Tolerance, points: Sequence[tuple[float, Sequence[float]]]) -> None:
    """Mean over seeds, their band, and where quality breaks."""
    there = [(v, each) for v, each in points if all(math.isfinite(e) for e in each)]
    values = [value for value, _ in there]
    means = [sum(each) / len(each) for _, each in there]
    band = ([min(each) for _, each in there], [max(each) for _, each in there])
    axes.fill_between(values, *band, color=COLOURS[0], alpha=0.25, linewidth=0.0, label="seeds")
    axes.plot(values, means, color=COLOURS[0], marker="o", label="mean")
    end = found.broken if math.isfinite(found.broken) else found.tolerated
    axes.axvspan(found.tolerated, end, color=MUTED, alpha=0.25, linewidth=0.0)
    if math.isfinite(found.broken):
        axes.axvline(found.broken, color=INK, linewidth=0.8, linestyle="--", label="broken")
    if all(value > 0.0 for value, _ in points):
        axes.set_xscale("log", base=2)
        ticks = sorted({value for value, _ in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(found.axis)
