"""Which fetch intervals to sweep: asked of the development seed alone, before any verdict.

    python -m reproductions.paper3_async_mmi.intervals [--scale overnight] [--jobs N]

Every sweep is run at the intervals `TRIED` and at every utterance, once, at the rate of the
sweeps. T* is fitted as for the verdicts; half of it, T* and its double, to two digits, are what
``Preset.fetch`` is to hold (decision 84). The runs lie where the report of that scale has its own.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_synth import load_corpus
from harness.execution.jobs.named import execute_named
from harness.execution.runs.sequence import SequenceConfig
from harness.store import Run
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper3_async_mmi.presets import PRESETS, SMALL, SWEEPS
from reproductions.paper3_async_mmi.quantities import kept_gain
from reproductions.paper3_async_mmi.tolerance import Sweep, log_tolerances
from reproductions.paper3_async_mmi.trainings import fetch_base, fetch_s

TRIED = (0.0075, 0.015, 0.03, 0.06, 0.12, 0.24, 0.48)
"""Intervals in passes; all are tried in every sweep."""
AROUND = (0.5, 1.0, 2.0)
"""Multiples of T* that are swept."""

Asked = tuple[str, float]
"""Sweep, interval in passes; 0 fetches at every utterance."""


def configurations(subject: Subject) -> dict[Asked, SequenceConfig]:
    """Every run that is asked for."""
    found: dict[Asked, SequenceConfig] = {}
    for sweep in SWEEPS:
        base = fetch_base(subject, DEVELOPMENT, sweep)
        found[sweep, 0.0] = base
        for passes in TRIED:
            found[sweep, passes] = replace(base, fetch_s=fetch_s(subject, passes))
    return found


def gains(runs: Mapping[Asked, Run]) -> dict[str, Sweep]:
    """The gains of every sweep, of one seed."""
    every = (0.0, *TRIED)
    return {
        sweep: Sweep(np.array(every), np.array([[kept_gain(runs[sweep, t]) for t in every]]))
        for sweep in SWEEPS
    }


def around(star: float) -> tuple[float, ...]:
    """The intervals to sweep, to two digits.

    Example:
        >>> around(0.0412)
        (0.021, 0.041, 0.082)
    """
    return tuple(float(f"{times * star:.2g}") for times in AROUND)


def main() -> int:
    """Run the command; returns its exit code."""
    p = argparse.ArgumentParser(prog="intervals", description="Find which intervals to sweep.")
    p.add_argument("--scale", default="overnight", choices=sorted(PRESETS))
    p.add_argument("--out", type=Path, help="the report's folder, reports/out/paper3/SCALE")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = p.parse_args()
    store = (asked.out or Path("reports/out/paper3") / asked.scale) / "runs"
    corpus = load_corpus(SMALL, scale=asked.scale, seed=DEVELOPMENT)
    configs = configurations(Subject(asked.scale, corpus, DEVELOPMENT, "cpu"))
    sweeps = gains(execute_named(configs, told, store, asked.jobs))
    stars = 2.0 ** log_tolerances(list(sweeps.values()))
    for (name, sweep), star in zip(sweeps.items(), stars, strict=True):
        always, *others = map(float, sweep.gains[0])
        left = ", ".join(f"{t:g}: {g / always:.0%}" for t, g in zip(TRIED, others, strict=True))
        now = PRESETS[asked.scale].fetch[name]
        print(f"{SWEEPS[name]}: gain {always:.3g} nats a frame; left of it by interval: {left}")
        print(f"{SWEEPS[name]}: T* {star:.3g} passes, so {around(star)}; Preset.fetch: {now}")
    return 0


def told(each: Asked) -> str:
    """What a run is called."""
    sweep, passes = each
    return f"{SWEEPS[sweep]}, fetched every {passes:g} passes" if passes else f"{SWEEPS[sweep]}, 0"


if __name__ == "__main__":
    sys.exit(main())
