"""The whole comparison: measure, run again what is flagged, tell; and how a baseline is made."""

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
"""How often a flagged benchmark is run again before it fails."""

Measure = Callable[[Sequence[str]], Run]
"""Runs the benchmarks named, or all if none is."""

Say = Callable[[str], None]


def check(
    measure: Measure,
    baseline: Mapping[str, BaselineEntry],
    about: Mapping[str, Any],
    partly: bool,
    say: Say,
) -> tuple[dict[str, Measurement], list[Row]]:
    """All benchmarks beside the baseline; one that is flagged gets ``AGAIN`` more chances.

    Args:
        measure: runs benchmarks.
        baseline: what is expected.
        about: what the baseline says of its renewals.
        partly: only some benchmarks run: what is not among them is not missed.
        say: told what is going on.

    Returns:
        What was measured and its rows.
    """
    least = 0.0 if same_processor(about) else ELSEWHERE
    if least:
        say(f"another processor than the baseline's: ratios may lose {100 * least:.0f}%")
    run = measure(())
    now, skipped = dict(run.measured), run.skipped
    if partly:
        baseline = {name: each for name, each in baseline.items() if name in now}
    rows = compare(now, baseline, skipped, least)
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
