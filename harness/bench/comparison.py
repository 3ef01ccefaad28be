"""Comparison of benchmark measurements with the baseline, and its table: pure functions.

A row of the table has benchmark, quantity, present value, baseline, change and verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

LEAST_TOLERANCE = 0.3
"""Smallest tolerance of a ratio: the change of most ratios between a busy machine and a very busy
one, since two pieces of work depend differently on the caches."""

REPEATS, UNREPEATED = 3, 0.5
"""Smallest number of runs for a measured spread, and the smallest tolerance with fewer runs."""

SPREADS = 2.0
"""Tolerance of a ratio, in multiples of the spread measured in repeated runs."""

ELSEWHERE = 1.0
"""Smallest tolerance on another processor than the baseline's: two pieces of work slow down
differently there, so only a doubled ratio is detected."""

Verdict = Literal["ok", "faster", "SLOWER", "DIFFERENT", "GONE", "skipped", "new"]

FAILING: tuple[Verdict, ...] = ("SLOWER", "DIFFERENT", "GONE")

Count = int | float | str


@dataclass(frozen=True)
class Measurement:
    """Measurement of one benchmark in one run.

    Args:
        ratios: ratios by name; see ``harness.bench``.
        counts: exact values by name.
    """

    ratios: Mapping[str, float] = field(default_factory=dict[str, float])
    counts: Mapping[str, Count] = field(default_factory=dict[str, Count])


@dataclass(frozen=True)
class Bound:
    """A ratio of the baseline, and the relative loss that a run may have against it."""

    value: float
    tolerance: float


@dataclass(frozen=True)
class BaselineEntry:
    """Expected ratios and counts of one benchmark."""

    ratios: Mapping[str, Bound] = field(default_factory=dict[str, Bound])
    counts: Mapping[str, Count] = field(default_factory=dict[str, Count])


@dataclass(frozen=True)
class Row:
    """Comparison of one quantity.

    Args:
        benchmark: pytest name of the benchmark.
        quantity: name of the ratio or count; empty for the whole benchmark.
        now: measured value; None if it was not measured.
        baseline: expected value; None without one.
        loss: relative loss against the baseline (0.1: 10% more time); None for counts.
        tolerance: the largest loss that passes; None for counts.
        verdict: verdict; those in ``FAILING`` fail.
    """

    benchmark: str
    quantity: str
    now: Count | None
    baseline: Count | None
    loss: float | None
    tolerance: float | None
    verdict: Verdict

    @property
    def fails(self) -> bool:
        """Whether the comparison fails by this row."""
        return self.verdict in FAILING


def read(extra_info: Mapping[str, Any]) -> Measurement:
    """The compared quantities in a benchmark's ``extra_info``."""
    ratios = {name: float(value) for name, value in extra_info.items() if is_ratio(name)}
    return Measurement(ratios, dict(extra_info.get("counts", {})))


def is_ratio(name: str) -> bool:
    """Whether a quantity of this name is compared."""
    return more_is_better(name) or name == "ratio" or name.endswith("_ratio")


def more_is_better(name: str) -> bool:
    """Whether a ratio of this name is a speed, not a cost."""
    return name.startswith("times_")


def loss(name: str, now: float, baseline: float) -> float:
    """Relative loss of a ratio against the baseline; negative for a gain."""
    return (baseline / now if more_is_better(name) else now / baseline) - 1.0


def compare(
    now: Mapping[str, Measurement],
    baseline: Mapping[str, BaselineEntry],
    skipped: Iterable[str] = (),
    least: float = 0.0,
) -> list[Row]:
    """Compare every quantity of a run with the baseline's, by benchmark.

    Args:
        now: measurements by benchmark.
        baseline: expected values by benchmark.
        skipped: benchmarks that were skipped because they cannot run here.
        least: smallest tolerance of a ratio, if larger than the baseline's.
    """
    rows: list[Row] = []
    for name in sorted({*now, *baseline}):
        if name in now:
            rows += _rows(name, now[name], baseline.get(name, BaselineEntry()), least)
        else:
            verdict = "skipped" if name in skipped else "GONE"
            rows.append(Row(name, "", None, None, None, None, verdict))
    return rows


def _rows(name: str, now: Measurement, then: BaselineEntry, least: float) -> list[Row]:
    ratios = [
        _ratio_row(name, quantity, now.ratios.get(quantity), then.ratios.get(quantity), least)
        for quantity in sorted({*now.ratios, *then.ratios})
    ]
    counts = [
        _count_row(name, quantity, now.counts.get(quantity), then.counts.get(quantity))
        for quantity in sorted({*now.counts, *then.counts})
    ]
    return ratios + counts


def _ratio_row(
    name: str, quantity: str, now: float | None, then: Bound | None, least: float
) -> Row:
    if now is None or then is None:
        known = None if then is None else then.value
        return Row(name, quantity, now, known, None, None, "GONE" if now is None else "new")
    lost, tolerance = loss(quantity, now, then.value), max(then.tolerance, least)
    verdict: Verdict = "SLOWER" if not lost <= tolerance else "ok"  # nan is slower
    # The inverse of a loss by the tolerance: a ratio of 1 / (1 + tolerance).
    if lost < -tolerance / (1.0 + tolerance):
        verdict = "faster"
    return Row(name, quantity, now, then.value, lost, tolerance, verdict)


def _count_row(name: str, quantity: str, now: Count | None, then: Count | None) -> Row:
    if then is None:
        return Row(name, quantity, now, then, None, None, "new")
    verdict: Verdict = "ok" if now == then else "DIFFERENT"
    return Row(name, quantity, now, then, None, None, "GONE" if now is None else verdict)


def select_failing(rows: Iterable[Row]) -> list[str]:
    """The benchmarks that fail, each once, in order."""
    return list(dict.fromkeys(row.benchmark for row in rows if row.fails))


def better(first: Measurement, again: Measurement) -> Measurement:
    """Merge a repeated benchmark: the better of each ratio; counts that differ as ``A | B``.

    Other load on the machine makes a benchmark slower and never faster, so the better measurement
    is used. Counts are exact, so a difference has to show.
    """
    ratios = dict(first.ratios)
    for name, value in again.ratios.items():
        best = max if more_is_better(name) else min
        ratios[name] = best(ratios.get(name, value), value)
    counts = dict(first.counts)
    for name, value in again.counts.items():
        before = counts.setdefault(name, value)
        counts[name] = value if before == value else f"{before} | {value}"
    return Measurement(ratios, counts)


def build_entry(runs: Sequence[Measurement]) -> BaselineEntry:
    """The baseline of a benchmark from repeated runs: medians, and tolerances from the spread.

    Raises:
        ValueError: an exact count is not the same in all runs.
    """
    ratios = {name: bound(name, [run.ratios[name] for run in runs]) for name in runs[0].ratios}
    for run in runs[1:]:
        if run.counts != runs[0].counts:
            raise ValueError(f"counts differ between runs: {runs[0].counts} and {run.counts}")
    return BaselineEntry(ratios, runs[0].counts)


def bound(name: str, values: Sequence[float]) -> Bound:
    """The median of a ratio; its tolerance is ``SPREADS`` times the largest loss against it."""
    middle = median(values)
    spread = max(loss(name, value, middle) for value in values)
    least = LEAST_TOLERANCE if len(values) >= REPEATS else UNREPEATED
    return Bound(middle, max(least, SPREADS * spread))


HEAD = ("benchmark", "quantity", "now", "baseline", "worse by", "allowed", "verdict")

WIDEST = 18
"""Largest width of a value; longer ones, such as hashes, are cut."""


def table(rows: Iterable[Row]) -> list[str]:
    """The rows as lines in aligned columns, under a head."""
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(HEAD))]
    return [_line(line, widths) for line in cells]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    words, figures, last = cells[:2], cells[2:-1], cells[-1]
    left = [cell.ljust(width) for cell, width in zip(words, widths[:2], strict=True)]
    right = [cell.rjust(width) for cell, width in zip(figures, widths[2:-1], strict=True)]
    return "  ".join([*left, *right, last])


def _cells(row: Row) -> tuple[str, ...]:
    change, allowed = _percent(row.loss), _percent(row.tolerance)
    return (
        short(row.benchmark),
        row.quantity,
        _value(row.now),
        _value(row.baseline),
        change,
        allowed.lstrip("+"),
        row.verdict,
    )


def short(benchmark: str) -> str:
    """A pytest name without its folder, ``test_`` and ``.py``."""
    file, _, test = benchmark.rpartition("/")[2].partition("::")
    return f"{file.removeprefix('test_').removesuffix('.py')}: {test.removeprefix('test_')}"


def _value(value: Count | None) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:+.0f}%"
