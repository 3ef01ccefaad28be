"""Search for the length of pretraining where it is compared with none, on development data.

    python -m reproductions.paper2_ng_averaging.lengths [--scale overnight] [--jobs N]

Every length is tried with one GPU and with 32, at half the rate that was found for one pass, at
that rate and at its double (README). The best is the one with the lowest development frame error,
each number of GPUs at its best rate, on average; ``Preset.pretraining`` holds it. The runs are in
the store of that scale's report.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace

from harness.grid.display import execute_named
from harness.speech.frames import RunConfig
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper2_ng_averaging.experiments import (
    AROUND,
    PRESETS,
    build_configs,
    gpus,
    pretraining,
    with_rate,
)
from reproductions.paper2_ng_averaging.sweep import CORPUS, frame_error
from reproductions.trial_options import parse_options

LENGTHS = (1, 5, 20)
"""Passes of each machine, the first layer's twice as many: Kaldi has 1 for 300 h, 20 for 3 h."""
GPUS = (1, 32)

Tried = tuple[int, int, float]
"""GPUs, passes, first rate."""


def configurations(subject: Subject) -> dict[Tried, RunConfig]:
    """Every run to make, the long ones first."""
    settings = build_configs(subject, DEVELOPMENT)
    found: dict[Tried, RunConfig] = {}
    for passes in sorted(LENGTHS, reverse=True):
        for n in GPUS:
            one = replace(settings[f"ng_{n}"], initial=pretraining(passes), tested="never")
            for factor in AROUND.values():
                rate = factor * one.schedule.rate
                found[n, passes, rate] = with_rate(one, rate)
    return found


def averages(errors: Mapping[Tried, float]) -> dict[int, float]:
    """The error of each length, the mean over numbers of GPUs of the least over rates.

    Example:
        >>> averages({(1, 5, 0.5): 0.4, (1, 5, 1.0): 0.3, (32, 5, 64.0): 0.5})
        {5: 0.4}
    """
    least: dict[int, dict[int, float]] = {}
    for (n, passes, _), error in errors.items():
        own = least.setdefault(passes, {})
        own[n] = min(error, own.get(n, math.inf))
    return {passes: sum(own.values()) / len(own) for passes, own in sorted(least.items())}


def main() -> int:
    """Run the command; returns its exit code."""
    tried = parse_options("lengths", "Find how long to pretrain.", "paper2", CORPUS, PRESETS)
    runs = execute_named(configurations(tried.subject), run_name, tried.store, tried.jobs)
    errors = {each: frame_error(run) for each, run in runs.items()}
    for each in sorted(errors):
        print(f"{run_name(each)}: {errors[each]:.1%} of development frames wrong")
    means = averages(errors)
    for passes, mean in means.items():
        print(f"{passes} passes, at the best rates: {mean:.2%}")
    best, now = min(means, key=lambda k: means[k]), PRESETS[tried.subject.scale].pretraining
    print(f"best: {best}; Preset.pretraining: {now}")
    return 0


def run_name(each: Tried) -> str:
    """Name of a run."""
    n, passes, rate = each
    return f"{gpus(n)}, {passes} passes, from {rate:g}"


if __name__ == "__main__":
    sys.exit(main())
