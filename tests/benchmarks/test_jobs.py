"""What a second process costs where it cannot help: time as a ratio within one run."""

from __future__ import annotations

import time

from torch.nn import functional

import lagbench
from tests.modules import mlp, points

RUNS, PASSES = 20, 30
"""Of about a quarter of a second each: fewer seconds than a process needs to begin, twice."""


def seconds(jobs, store) -> float:
    begun_s = time.perf_counter()
    lagbench.train(
        mlp, functional.cross_entropy, points(), cluster="k20m-server", workers=2, rate=0.1,
        seeds=RUNS, passes=PASSES, step_seconds=0.01, store=store, jobs=jobs,
    )  # fmt: skip
    return time.perf_counter() - begun_s


def test_twenty_short_runs_are_not_slower_with_two_processes_than_with_one(tmp_path):
    """The start of processes is counted; what the kernels compile or load is not."""
    seconds(1, tmp_path / "warm")
    pairs = [(seconds(1, tmp_path / f"1-{n}"), seconds(2, tmp_path / f"2-{n}")) for n in range(3)]
    ratios = sorted(two / one for one, two in pairs)
    print("seconds with one and two:", [(round(a, 2), round(b, 2)) for a, b in pairs])
    assert ratios[1] <= 1.15
