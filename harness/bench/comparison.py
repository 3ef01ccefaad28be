"""A run of the benchmarks beside the baseline: pure functions of measured and expected, and lines.

A line has benchmark, quantity, now, baseline, change, verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

LEAST_TOLERANCE = 0.3
"""What a ratio may always lose: what most move by between a busy machine and a very busy one,
because two pieces of work do not lean on the caches alike."""

REPEATS, UNREPEATED = 3, 0.5
"""With fewer runs than these there is no spread to speak of, and a ratio may lose this much."""

SPREADS = 2.0
"""How many times the spread that was seen in repeated runs a ratio may lose."""

ELSEWHERE = 1.0
"""What a ratio may lose at least on another processor than the baseline's: two pieces of work
do not slow down alike, so there only what doubles is told apart."""

Verdict = Literal["ok", "faster", "SLOWER", "DIFFERENT", "GONE", "skipped", "new"]

FAILING: tuple[Verdict, ...] = ("SLOWER", "DIFFERENT", "GONE")

Count = int | float | str


@dataclass(frozen=True)
class Measurement:
    """What one benchmark told in one run.

    Args:
        ratios: by name; see ``harness.bench``.
        counts: exact values by name.
    """

    ratios: Mapping[str, float] = field(default_factory=dict[str, float])
    counts: Mapping[str, Count] = field(default_factory=dict[str, Count])


@dataclass(frozen=True)
class Bound:
    """A ratio of the baseline, and by what part of it a run may be worse."""

    value: float
    tolerance: float


@dataclass(frozen=True)
class BaselineEntry:
    """What the baseline holds of one benchmark."""

    ratios: Mapping[str, Bound] = field(default_factory=dict[str, Bound])
    counts: Mapping[str, Count] = field(default_factory=dict[str, Count])


@dataclass(frozen=True)
class Row:
    """One quantity, now and then.

    Args:
        benchmark: its pytest name.
        quantity: the ratio's or count's name; empty where the whole benchmark is meant.
        now: measured; None if it was not.
        baseline: expected; None if nothing is.
        loss: how much worse, as a part of the baseline (0.1: 10% more time); None of counts.
        tolerance: the largest loss that passes; None of counts.
        verdict: ``FAILING`` has those that fail.
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
    """The quantities among what a benchmark noted."""
    ratios = {name: float(value) for name, value in extra_info.items() if is_ratio(name)}
    return Measurement(ratios, dict(extra_info.get("counts", {})))


def is_ratio(name: str) -> bool:
    """Whether a quantity of this name is compared."""
    return more_is_better(name) or name == "ratio" or name.endswith("_ratio")


def more_is_better(name: str) -> bool:
    """Whether a ratio of this name is a speed and not a cost."""
    return name.startswith("times_")


def loss(name: str, now: float, baseline: float) -> float:
    """How much worse a ratio is, as a part of the baseline; below 0 if it is better."""
    return (baseline / now if more_is_better(name) else now / baseline) - 1.0


def compare(
    now: Mapping[str, Measurement],
    baseline: Mapping[str, BaselineEntry],
    skipped: Iterable[str] = (),
    least: float = 0.0,
) -> list[Row]:
    """Every quantity of a run beside the baseline's, by benchmark.

    Args:
        now: what was measured, by benchmark.
        baseline: what is expected, by benchmark.
        skipped: benchmarks that could not run here, and said so.
        least: the least tolerance of a ratio, whatever the baseline says.
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
    verdict: Verdict = "SLOWER" if not lost <= tolerance else "ok"
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
    """A benchmark that was run again: the better of each ratio, and counts that differ show.

    What others do on the machine makes a benchmark slower and never faster, so the better
    measurement counts. A count is exact: whichever is not the other's is kept as ``A | B``.
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
    """A baseline from repeated runs: medians, and tolerances from their spread.

    Raises:
        ValueError: an exact count is not the same in all runs.
    """
    ratios = {name: bound(name, [run.ratios[name] for run in runs]) for name in runs[0].ratios}
    for run in runs[1:]:
        if run.counts != runs[0].counts:
            raise ValueError(f"counts differ between runs: {runs[0].counts} and {run.counts}")
    return BaselineEntry(ratios, runs[0].counts)


def bound(name: str, values: Sequence[float]) -> Bound:
    """The median, and ``SPREADS`` times the largest loss seen against it."""
    middle = median(values)
    spread = max(loss(name, value, middle) for value in values)
    least = LEAST_TOLERANCE if len(values) >= REPEATS else UNREPEATED
    return Bound(middle, max(least, SPREADS * spread))


HEAD = ("benchmark", "quantity", "now", "baseline", "worse by", "allowed", "verdict")

WIDEST = 18
"""Of a value: hashes are cut."""


def table(rows: Iterable[Row]) -> list[str]:
    """One line for every row under a head, in columns."""
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
    """A pytest name without its folder and the words all have."""
    file, _, test = benchmark.rpartition("/")[2].partition("::")
    return f"{file.removeprefix('test_').removesuffix('.py')}: {test.removeprefix('test_')}"


def _value(value: Count | None) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:+.0f}%"
