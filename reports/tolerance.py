# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""A search for a break point on paper: a table, the same as CSV, and the tolerance curve."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from harness.judge.charge import charge_line
from harness.judge.comparison import Point, Tolerance
from harness.store import files as atomic
from reports.style import COLOURS, INK, MUTED, WIDTH_IN, rendered, styled

HEAD = (
    *("value", "rate", "error", "lowest", "highest", "ratio", "ratio_low", "ratio_high"),
    *("broken", "decided", "seconds_to_target", "runs"),
)
HEIGHT_IN = 3.0


def write(found: Tolerance, out: Path, provenance: Mapping[str, Any]) -> list[Path]:
    """Write ``tolerance.csv``, ``report.md``, ``tolerance.svg`` and ``.png``, ``results.json``.

    Args:
        found: the search.
        out: the folder, made if it is missing.
        provenance: where the runs come from.

    Raises:
        UserError: the folder cannot be written.
    """
    atomic.writable_folder(out, "report")
    with styled():
        pictures = {form: rendered(figure(found), form) for form in ("svg", "png")}
    files = {
        "tolerance.csv": as_csv(found).encode(),
        "report.md": "\n".join([*as_markdown(found), ""]).encode(),
        **{f"tolerance.{form}": content for form, content in pictures.items()},
        "results.json": (json.dumps(as_json(found, provenance), indent=2) + "\n").encode(),
    }
    for name, content in files.items():
        atomic.write_bytes(out / name, content)
    return [out / name for name in files]


# -- text ------------------------------------------------------------------------------------


def told(found: Tolerance) -> str:
    """The answer, in one line."""
    first, margin = found.points[0], f"{found.margin:.3g}"
    known = {point.value: point for point in found.points}
    said = f"{found.what}: an error {margin} (relative) above that of {first.value:g} is tolerated"
    said += f" up to {found.tolerated:g}{_sure(known[found.tolerated])}"
    if math.isinf(found.broken):
        return f"{said}, the most that was tried"
    return f"{said}, broken at {found.broken:g}{_sure(known[found.broken])}"


def lines(found: Tolerance) -> Iterator[str]:
    """The answer and the points for a terminal."""
    yield told(found)
    for row in _cells(found):
        yield "  ".join(
            cell.rjust(width) for cell, width in zip(row, (12, 9, 24, 20, 9), strict=True)
        )
    if charged := _charge(found):
        yield charged


def as_markdown(found: Tolerance) -> Iterator[str]:
    """The same as a page."""
    rows = list(_cells(found))
    yield from ("# Tolerance", "", told(found) + ".", "", "![tolerance curve](tolerance.svg)", "")
    yield f"| {' | '.join(rows[0])} |"
    yield "|" + "---|" * len(rows[0])
    yield from (f"| {' | '.join(row)} |" for row in rows[1:])
    if charged := _charge(found):
        yield from ("", charged)


def as_csv(found: Tolerance) -> str:
    """One line a point, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    writer.writerows(_record(found, point).values() for point in found.points)
    return text.getvalue()


def as_json(found: Tolerance, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """For programs; what is not finite is null."""
    points = [{k: _finite(v) for k, v in _record(found, p).items()} for p in found.points]
    head = {"schema": 1, "what": found.what, "margin": found.margin, "target": found.target}
    edges = {"tolerated": found.tolerated, "broken": _finite(found.broken)}
    edges |= {"charged": _charge(found)}
    return {**head, **edges, "points": points, "provenance": dict(provenance)}


def _charge(found: Tolerance) -> str:
    return charge_line([point.cell for point in found.points])


def _cells(found: Tolerance) -> Iterator[list[str]]:
    yield [found.what, "rate", "error (seeds)", "ratio, 95%", ""]
    for point in found.points:
        low, high = min(point.errors), max(point.errors)
        ratio = "diverged" if point.ratio is None else f"{point.ratio.estimate:.3f}"
        if point.ratio is not None and math.isfinite(point.ratio.high - point.ratio.low):
            ratio += f" [{point.ratio.low:.3f}, {point.ratio.high:.3f}]"
        errors = f"{_mean(point):.4g} ({low:.4g} to {high:.4g})"
        state = "broken" if point.broken else "tolerated"
        yield [f"{point.value:g}", f"{point.cell.rate:.3g}", errors, ratio, state]


def _sure(point: Point) -> str:
    if point.decided:
        return ""
    alone = len(point.errors) == 1
    return " (one seed has no interval: not decided)" if alone else " (seeds do not decide)"


def _mean(point: Point) -> float:
    return sum(point.errors) / len(point.errors)


def _record(found: Tolerance, point: Point) -> dict[str, Any]:
    ratio = point.ratio
    three = (math.nan,) * 3 if ratio is None else (ratio.estimate, ratio.low, ratio.high)
    seconds = found.seconds(point)
    values = (
        *(point.value, point.cell.rate, _mean(point), min(point.errors), max(point.errors)),
        *(*three, point.broken, point.decided, sum(seconds) / len(seconds)),
        " ".join(run.hash[:12] for run in point.cell.runs),
    )
    return dict(zip(HEAD, values, strict=True))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- picture ---------------------------------------------------------------------------------


def figure(found: Tolerance) -> Figure:
    """Two panels over what was turned up: the error, and simulated seconds to the target."""
    drawn = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    FigureCanvasAgg(drawn)
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
