"""The check for regressions: measure, repeat failing benchmarks, compare; and making a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.bench.baseline import same_processor
from harness.bench.comparison import (
    ELSEWHERE,
    BaselineEntry,
    Measurement,
    Row,
    better,
    build_entry,
    compare,
    select_failing,
    short,
)
from harness.bench.steps import Run

AGAIN = 2
"""Number of repetitions of a failing benchmark before the check fails."""

Measure = Callable[[Sequence[str]], Run]
"""Runs the benchmarks of the given names; all for no names."""

Say = Callable[[str], None]


def check(
    measure: Measure,
    baseline: Mapping[str, BaselineEntry],
    about: Mapping[str, Any],
    partly: bool,
    say: Say,
) -> tuple[dict[str, Measurement], list[Row]]:
    """Compare all benchmarks with the baseline; failing ones are repeated up to ``AGAIN`` times.

    Args:
        measure: runs benchmarks.
        baseline: expected values by benchmark.
        about: other keys of the baseline, with its renewals.
        partly: whether only some benchmarks run, so that others are not reported as gone.
        say: receives lines about the progress.

    Returns:
        The measurements, and the rows of the comparison.
    """
    least = 0.0 if same_processor(about) else ELSEWHERE
    if least:
        say(f"another processor than the baseline's: ratios may lose {100 * least:.0f}%")
    run = measure(())
    now, skipped = dict(run.measured), run.skipped
    if partly:
        baseline = {name: each for name, each in baseline.items() if name in now}
    rows = compare(now, baseline, skipped, least)
    # Other load makes a benchmark slower only, so repetitions can clear it but not hide a change.
    for _ in range(AGAIN):
        names = [name for name in select_failing(rows) if name in now]
        if not names:
            break
        say(f"again: {', '.join(map(short, names))}")
        for name, each in measure(names).measured.items():
            now[name] = better(now[name], each)
        rows = compare(now, baseline, skipped, least)
    return now, rows


def measure_baseline(measure: Measure, runs: int, say: Say) -> dict[str, BaselineEntry]:
    """A baseline from repeated runs.

    Raises:
        ValueError: a count is not the same in all of them.
    """
    found: list[Mapping[str, Measurement]] = []
    for k in range(runs):
        say(f"run {k + 1} of {runs}")
        found.append(measure(()).measured)
    return {name: build_entry([run[name] for run in found]) for name in found[0]}
