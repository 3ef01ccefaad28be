# matplotlib's keyword arguments have no types:
# pyright: reportUnknownMemberType=false
"""Output of comparisons and of searches for break points: tables, CSV and figures.

A comparison's picture has error and time by workers, a search's the tolerance curve.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.settings import format_seconds
from harness.judge.charge import charge_line
from harness.judge.comparison import Point, Row, Table, Tolerance
from harness.judge.interval import Interval
from harness.store import files as atomic
from reports.style import (
    COLOURS,
    DASHES,
    INK,
    MARKERS,
    MUTED,
    cycle,
    empty_figure,
    render_figure,
    use_style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEAD = (
    *("algorithm", "workers", "rate", "error", "error_low", "error_high"),
    *("test", "test_low", "test_high", "seconds", "target_s", "target_s_low", "target_s_high"),
    *("reached", "diverged", "seeds", "staleness", "trained", "runs"),
)

HEIGHT_IN = 3.0


def write(table: Table, out: Path, provenance: Mapping[str, Any]) -> list[Path]:
    """Write ``table.csv``, ``report.md``, ``comparison.svg`` and ``.png``, ``results.json``.

    Args:
        table: the rows.
        out: the folder, made if it is missing.
        provenance: commit, versions and hashes of the runs, for ``results.json``.

    Raises:
        UserError: the folder cannot be written.
    """
    atomic.writable_folder(out, "report")
    with use_style():
        pictures = {form: render_figure(figure(table), form) for form in ("svg", "png")}
    files = {
        "table.csv": as_csv(table).encode(),
        "report.md": "\n".join([*as_markdown(table), ""]).encode(),
        **{f"comparison.{form}": content for form, content in pictures.items()},
        "results.json": (json.dumps(as_json(table, provenance), indent=2) + "\n").encode(),
    }
    for name, content in files.items():
        atomic.write_bytes(out / name, content)
    return [out / name for name in files]


# -- text ------------------------------------------------------------------------------------


def lines(table: Table) -> Iterator[str]:
    """The table for a terminal."""
    rows = list(_cells(table))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        padded = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row, widths, strict=True))]
        del padded[1]
        yield "  ".join(padded).rstrip()
    yield from _feet(table)


def as_markdown(table: Table) -> Iterator[str]:
    """The table as a page."""
    rows = list(_cells(table))
    yield from ("# Comparison", "", "![error and time by workers](comparison.svg)", "")
    yield f"| {' | '.join(rows[0])} |"
    yield "|" + "---|" * len(rows[0])
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows[1:])
    yield from (f"| {' | '.join(row)} |" for row in escaped)
    for foot in _feet(table):
        yield from ("", foot)


def as_csv(table: Table) -> str:
    """One line a cell, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    for row in table.rows:
        writer.writerow(_record(row).values())
    return text.getvalue()


def as_json(table: Table, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values; numbers that are not finite are null."""
    rows = [{k: _finite_or_none(v) for k, v in _record(row).items()} for row in table.rows]
    head = {"schema": 1, "judged": table.judged, "target": _finite_or_none(table.target)}
    head |= {"target_is": table.reason, "charged": charge_line([r.cell for r in table.rows])}
    return {**head, "rows": rows, "provenance": dict(provenance)}


def _feet(table: Table) -> Iterator[str]:
    """The lines below the table."""
    yield (
        f"error: {table.judged}; target {table.target:.4g} ({table.reason});"
        " seconds are simulated; 95% intervals over seeds"
    )
    if charged := charge_line([row.cell for row in table.rows]):
        yield charged
    known = [row for row in table.rows if row.seconds and not math.isnan(row.trained)]
    shares: dict[str, list[str]] = {}
    for row in sorted(known, key=lambda row: row.trained):
        shares.setdefault(f"{row.trained:.1%}", []).append(_label(row))
    if shares.keys() - {"100.0%"}:
        told = [f"{share} ({'; '.join(labels)})" for share, labels in shares.items()]
        told = list(shares) if len(shares) == 1 else told
        yield f"share of the requested examples trained: {', '.join(told)}"
    if skews := [each for each in dict.fromkeys(map(_skew, table.rows)) if each]:
        yield f"workers' data differ: {'; '.join(skews)}"


def _skew(row: Row) -> str:
    """How much the data of several workers differ; empty where they do not."""
    skew, workers = row.skew, row.cell.workers
    if not skew or workers == 1:
        return ""
    told = f"{skew['smallest_share']:g} to {skew['largest_share']:g} examples each of {workers}"
    if "label_skew" not in skew:
        return told
    return f"{told}, classes {skew['label_skew']:.2f} from those of all (total variation)"


def _label(row: Row) -> str:
    return f"{row.cell.method}, {row.cell.workers} worker{'' if row.cell.workers == 1 else 's'}"


def _cells(table: Table) -> Iterator[list[str]]:
    test = any(row.test for row in table.rows)
    yield [
        *("algorithm", "workers", "rate", "error", *(["test"] if test else [])),
        *("seconds", "to target", "staleness"),
    ]
    for row in table.rows:
        yield [
            *(row.cell.method, str(row.cell.workers), _rate(row)),
            *(_error(row.error, row), *([_error(row.test, row)] if test else [])),
            *("-" if row.seconds is None else format_seconds(row.seconds.estimate), _target(row)),
            f"{row.staleness:.1f}",
        ]


def _rate(row: Row) -> str:
    return f"{row.cell.rate:.3g}{'*' if row.cell.edge else ''}"


def _error(found: Interval | None, row: Row) -> str:
    lost = f" ({row.diverged} of {len(row.cell.runs)} diverged)" if row.diverged else ""
    if found is None:
        return f"-{lost}"
    half = (found.high - found.low) / 2
    within = f" ± {half:.2g}" if math.isfinite(half) else ""
    return f"{found.estimate:.4g}{within}{lost}"


def _target(row: Row) -> str:
    if row.target_s is None:
        return f"never ({row.reached} of {len(row.cell.runs)})"
    half = (row.target_s.high - row.target_s.low) / 2
    within = f" ± {format_seconds(half)}" if math.isfinite(half) else ""
    return f"{format_seconds(row.target_s.estimate)}{within}"


def _record(row: Row) -> dict[str, Any]:
    cell = row.cell
    values = (
        *(
            cell.method,
            cell.workers,
            cell.rate,
            *_estimate_and_bounds(row.error),
            *_estimate_and_bounds(row.test),
        ),
        *((row.seconds.estimate if row.seconds else math.nan), *_estimate_and_bounds(row.target_s)),
        *(row.reached, row.diverged, len(cell.runs), row.staleness, row.trained),
        " ".join(run.hash[:12] for run in cell.runs),
    )
    return dict(zip(HEAD, values, strict=True))


def _estimate_and_bounds(found: Interval | None) -> tuple[float, float, float]:
    if found is None:
        return math.nan, math.nan, math.nan
    return found.estimate, found.low, found.high


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- picture ---------------------------------------------------------------------------------


def figure(table: Table) -> Figure:
    """Two panels over workers: the final error, and simulated seconds to the target."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    drawn = empty_figure(HEIGHT_IN)
    errors, times = drawn.subplots(1, 2)
    ends = _panel(errors, table, lambda row: row.error)
    seconds = _panel(times, table, lambda row: row.target_s)
    errors.axhline(table.target, color=MUTED, linewidth=0.8, linestyle=":")
    errors.set_ylim(0.0, 1.5 * max([*ends, table.target]))
    errors.set_ylabel(f"{table.judged.replace('_', ' ')} at the end")
    times.set_ylabel(f"simulated time to {table.target:.3g} (s)")
    if seconds and min(seconds) > 0.0:  # intervals that reach below are cut by the frame
        times.set_yscale("log")
        times.set_ylim(min(seconds) / 3.0, max(seconds) * 3.0)
        times.yaxis.set_major_formatter(FuncFormatter(_format_tick))
        times.yaxis.set_minor_formatter(NullFormatter())
    errors.legend(loc="upper left")
    return drawn


def _format_tick(seconds: float, _: float) -> str:
    return f"{seconds:g}"


def _panel(axes: Axes, table: Table, value: Callable[[Row], Interval | None]) -> list[float]:
    """Draw a line a method; returns the estimates."""
    from matplotlib.ticker import NullFormatter

    methods = list(dict.fromkeys(row.cell.method for row in table.rows))
    drawn: list[float] = []
    for place, method in enumerate(methods):
        found = [(row.cell.workers, value(row)) for row in table.rows if row.cell.method == method]
        points = [(workers, each) for workers, each in found if each is not None]
        beside = 1.0 + 0.03 * (place - (len(methods) - 1) / 2)  # so that intervals do not hide
        axes.errorbar(
            [workers * beside for workers, _ in points],
            [each.estimate for _, each in points],
            yerr=_bars([each for _, each in points]),
            label=method,
            color=cycle(COLOURS, place),
            linestyle=cycle(DASHES, place),
            marker=cycle(MARKERS, place),
            elinewidth=0.7,
            capsize=1.5,
        )
        drawn += [each.estimate for _, each in points]
    counts = sorted({row.cell.workers for row in table.rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers")
    return drawn


def _bars(found: Sequence[Interval]) -> list[list[float]]:
    """Half intervals below and above; none where a single seed gives no interval."""
    below = [e.estimate - e.low if math.isfinite(e.low) else 0.0 for e in found]
    above = [e.high - e.estimate if math.isfinite(e.high) else 0.0 for e in found]
    return [below, above]


TOLERANCE_HEAD = (
    *("value", "rate", "error", "lowest", "highest", "ratio", "ratio_low", "ratio_high"),
    *("broken", "decided", "seconds_to_target", "runs"),
)

TOLERANCE_HEIGHT_IN = 3.0


def write_tolerance(found: Tolerance, out: Path, provenance: Mapping[str, Any]) -> list[Path]:
    """Write ``tolerance.csv``, ``report.md``, ``tolerance.svg`` and ``.png``, ``results.json``.

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
        "tolerance.csv": as_csv_of_tolerance(found).encode(),
        "report.md": "\n".join([*as_markdown_of_tolerance(found), ""]).encode(),
        **{f"tolerance.{form}": content for form, content in pictures.items()},
        "results.json": (
            json.dumps(as_json_of_tolerance(found, provenance), indent=2) + "\n"
        ).encode(),
    }
    for name, content in files.items():
        atomic.write_bytes(out / name, content)
    return [out / name for name in files]


# -- text ------------------------------------------------------------------------------------


def describe_tolerance(found: Tolerance) -> str:
    """The tolerated value, in one line."""
    first, margin = found.points[0], f"{found.margin:.3g}"
    known = {point.value: point for point in found.points}
    said = f"{found.what}: an error {margin} (relative) above that of {first.value:g} is tolerated"
    said += f" up to {found.tolerated:g}{_format_undecided(known[found.tolerated])}"
    if math.isinf(found.broken):
        return f"{said}, the most that was tried"
    return f"{said}, broken at {found.broken:g}{_format_undecided(known[found.broken])}"


def lines_of_tolerance(found: Tolerance) -> Iterator[str]:
    """The tolerated value and the measured points for a terminal."""
    yield describe_tolerance(found)
    for row in _cells_of_point(found):
        yield "  ".join(
            cell.rjust(width) for cell, width in zip(row, (12, 9, 24, 20, 9), strict=True)
        )
    if charged := _charge(found):
        yield charged


def as_markdown_of_tolerance(found: Tolerance) -> Iterator[str]:
    """The same as a page."""
    rows = list(_cells_of_point(found))
    yield from (
        "# Tolerance",
        "",
        describe_tolerance(found) + ".",
        "",
        "![tolerance curve](tolerance.svg)",
        "",
    )
    yield f"| {' | '.join(rows[0])} |"
    yield "|" + "---|" * len(rows[0])
    yield from (f"| {' | '.join(row)} |" for row in rows[1:])
    if charged := _charge(found):
        yield from ("", charged)


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
    edges |= {"charged": _charge(found)}
    return {**head, **edges, "points": points, "provenance": dict(provenance)}


def _charge(found: Tolerance) -> str:
    return charge_line([point.cell for point in found.points])


def _cells_of_point(found: Tolerance) -> Iterator[list[str]]:
    yield [found.what, "rate", "error (seeds)", "ratio, 95%", ""]
    for point in found.points:
        low, high = min(point.errors), max(point.errors)
        ratio = "diverged" if point.ratio is None else f"{point.ratio.estimate:.3f}"
        if point.ratio is not None and math.isfinite(point.ratio.high - point.ratio.low):
            ratio += f" [{point.ratio.low:.3f}, {point.ratio.high:.3f}]"
        errors = f"{_mean(point):.4g} ({low:.4g} to {high:.4g})"
        state = "broken" if point.broken else "tolerated"
        yield [f"{point.value:g}", f"{point.cell.rate:.3g}", errors, ratio, state]


def _format_undecided(point: Point) -> str:
    if point.decided:
        return ""
    alone = len(point.errors) == 1
    return " (one seed has no interval: not decided)" if alone else " (seeds do not decide)"


def _mean(point: Point) -> float:
    return sum(point.errors) / len(point.errors)


def _record_of_point(found: Tolerance, point: Point) -> dict[str, Any]:
    ratio = point.ratio
    three = (math.nan,) * 3 if ratio is None else (ratio.estimate, ratio.low, ratio.high)
    seconds = found.seconds(point)
    values = (
        *(point.value, point.cell.rate, _mean(point), min(point.errors), max(point.errors)),
        *(*three, point.broken, point.decided, sum(seconds) / len(seconds)),
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
