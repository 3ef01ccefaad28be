"""The time that is left, foretold by kind of run: a number of runs says little of it."""

from __future__ import annotations

import heapq
from dataclasses import replace
from pathlib import Path

import pytest

from harness.grid import display
from harness.grid.display import Display
from harness.grid.grid import Estimate, RemainingTime, Report, kind_of
from harness.simulator import load_cluster
from harness.tasks.contract import Progress
from reproductions.paper2_ng_averaging.checks import AllReduceConfig

CLUSTERS = Path(__file__).parents[3] / "reproductions" / "clusters"


def grid(seeds: int) -> dict[str, tuple[tuple[str, str], float]]:
    """Kind and seconds of each run: of every seed two long trainings, then forty short timings."""
    runs: dict[str, tuple[tuple[str, str], float]] = {}
    for seed in range(seeds):
        for n, seconds in enumerate((30.0, 50.0)):
            runs[f"{seed} training {n}"] = ("training", f"setting {n}"), seconds + seed
        for n in range(40):
            runs[f"{seed} timing {n}"] = ("timing", f"setting {n}"), 0.2
    return runs


def worked(runs: dict[str, tuple[tuple[str, str], float]], processes: int):
    """Moments of a grid: seconds, names that are finished, and those that run since when."""
    waiting, busy, finished, now = list(runs), [], [], 0.0
    while waiting or busy:
        while waiting and len(busy) < processes:
            name = waiting.pop(0)
            heapq.heappush(busy, (now + runs[name][1], now, name))
        yield now, list(finished), {name: begun for _, begun, name in busy}
        now, _, name = heapq.heappop(busy)
        finished.append(name)


def test_once_a_seed_is_done_the_rest_is_foretold_to_a_few_per_cent_and_by_count_it_is_not():
    runs = grid(3)
    moments = list(worked(runs, 2))
    end = max(now + runs[name][1] - (now - begun) for now, _, busy in moments
              for name, begun in busy.items())  # fmt: skip
    left, learnt, errors, by_count = (
        RemainingTime({n: k for n, (k, _) in runs.items()}, 2),
        0,
        [],
        [],
    )
    for now, finished, busy in moments:
        for name in finished[learnt:]:
            left.learn(name, runs[name][1])
        learnt = len(finished)
        running = {
            name: (Progress(name, (now - begun) / runs[name][1], 1.0), now - begun)
            for name, begun in busy.items()
        }
        found = left.estimate([name for name in runs if name not in finished], running)
        if learnt >= len(runs) / 3 and end - now > 5:
            assert found is not None
            assert found.whole
            errors.append(abs(found.seconds / (end - now) - 1))
        if finished:
            by_count.append(now * (len(runs) - learnt) / learnt / max(end - now, 1e-9))
    assert max(errors) < 0.1
    assert max(by_count) > 10


def test_what_nothing_is_known_of_is_not_counted_and_that_is_said():
    left = RemainingTime({"a": ("training", "x"), "b": ("timing", "y")}, 1)
    assert left.estimate(["a", "b"], {}) is None
    left.learn("b", 2.0)
    assert left.estimate(["a", "b"], {}) == Estimate(2.0, False)
    begun = {"a": (Progress("a", 0.25, 1.0), 10.0)}
    assert left.estimate(["a"], begun) == Estimate(30.0, True)


def test_seeds_of_a_setting_are_of_one_kind_and_other_settings_are_not():
    config = AllReduceConfig(load_cluster(CLUSTERS / "stampede.toml"), 2, "ring", 1e6)
    assert kind_of(config) == kind_of(replace(config))
    assert kind_of(config)[0] == kind_of(replace(config, workers=4))[0]
    assert kind_of(config) != kind_of(replace(config, workers=4))


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (Report(1, 3, {}, left=Estimate(200.0, True)), "[1 of 3 runs finished, about 3 min left]"),
        (Report(1, 3, {}, left=Estimate(20, False)), "[1 of 3 runs finished, more than 20 s left]"),
        (Report(1, 3, {}), "[1 of 3 runs finished]"),
    ],
)
def test_people_are_told_how_long_and_in_the_end_how_long_it_was(capsys, monkeypatch, report, told):
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    with Display({}) as shown:
        shown.show(report)
        now[0] += 210.0
        shown.show(Report(3, 3, {}))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == told
    assert lines[-1] == "2 runs in 4 min, 1 finished before"
