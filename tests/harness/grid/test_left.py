"""The time that is left, foretold by kind of run: a number of runs says little of it."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from pathlib import Path

import pytest

from harness.grid import display
from harness.grid.display import Display
from harness.grid.grid import ALIKE, OTHER, OWN, SHORT_S, Estimate, RemainingTime, Report, kind_of
from harness.simulator import load_cluster
from harness.tasks.contract import Progress
from reproductions.paper2_ng_averaging.checks import AllReduceConfig

CLUSTERS = Path(__file__).parents[3] / "reproductions" / "clusters"


def moments(took: dict[str, float], processes: int):
    """Moments of a grid: seconds, names that are finished, and those that run since when."""
    waiting, busy, finished, now = list(took), [], [], 0.0
    while waiting or busy:
        while waiting and len(busy) < processes:
            name = waiting.pop(0)
            heapq.heappush(busy, (now + took[name], now, name))
        end = busy[0][0]
        for part in range(4):  # also between two ends
            at = now + (end - now) * part / 4
            yield at, list(finished), {name: begun for _, begun, name in busy}
        now, _, name = heapq.heappop(busy)
        finished.append(name)
    yield now, finished, {}


def foretold(took, kinds, efforts, processes):
    """The seconds left at every moment of a grid, each with the range that was told then."""
    told, learnt = [], 0
    left = RemainingTime(kinds, efforts, processes)
    for now, finished, busy in moments(took, processes):
        for name in finished[learnt:]:
            left.learn(name, took[name])
        learnt = len(finished)
        running = {
            name: (Progress(name, (now - begun) / took[name], 1.0), now - begun)
            for name, begun in busy.items()
        }
        told.append((now, left.estimate([n for n in took if n not in finished], running)))
    total = max(now for now, _ in told)
    return [(total - now, found) for now, found in told]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_range_of_the_time_left_holds(seed, processes):
    """Three settings of unlike effort, some seeds each, then timings; the longest begin first."""
    draw = random.Random(seed)
    took, kinds, efforts = {}, {}, {}
    for effort in (40.0, 15.0, 4.0):
        pace = draw.lognormvariate(0.0, 0.2)  # of this setting, against its class
        for number in range(draw.randint(2, 8)):
            name = f"training {effort} {number}"
            took[name] = effort * pace * draw.lognormvariate(0.0, 0.08)
            kinds[name], efforts[name] = ("training", f"{effort}"), effort
    for number in range(20):
        took[f"timing {number}"], efforts[f"timing {number}"] = draw.uniform(0.2, 0.4), 0.0
        kinds[f"timing {number}"] = "timing", f"{number}"
    known = [(left, told) for left, told in foretold(took, kinds, efforts, processes) if told]
    held = [told.least_s - 1.0 <= left <= told.most_s + 1.0 for left, told in known]
    assert len(held) > len(took)
    assert sum(held) >= 0.95 * len(held)
    early = [told for left, told in known if left > 0.2 * known[0][0]]
    assert all(told.most_s <= ALIKE**2 * told.least_s + 20 * SHORT_S for told in early)


def test_without_efforts_the_first_and_longest_runs_would_foretell_too_much():
    took = {f"{size} {number}": size for size in (30.0, 3.0) for number in range(10)}
    kinds = {name: ("training", name.split()[0]) for name in took}
    begun = {"30.0 0": (Progress("30.0 0", 0.5, 1.0), 15.0)}
    by_effort = RemainingTime(kinds, took, 1).estimate([*took], begun)
    alike = RemainingTime(kinds, dict.fromkeys(took, 1.0), 1).estimate([*took], begun)
    left = sum(took.values()) - 15.0
    assert by_effort.least_s < left < by_effort.most_s < 2.1 * left
    assert alike.most_s > 3.0 * left


def test_a_class_without_a_finished_run_is_foretold_within_wider_bounds():
    kinds = {"a": ("training", "x"), "b": ("sequences", "y"), "c": ("timing", "z")}
    left = RemainingTime(kinds, {"a": 2.0, "b": 4.0, "c": 0.0}, 1)
    assert left.estimate(["a", "b"], {}) is None
    begun = {"a": (Progress("a", 0.25, 1.0), 10.0)}
    assert left.estimate(["a"], begun) == Estimate(30.0 / OWN, 30.0 * OWN)
    left.learn("a", 40.0)
    assert left.estimate(["b"], {}) == Estimate(80.0 / OTHER, 80.0 * OTHER)
    assert left.estimate(["c"], {}) == Estimate(0.0, SHORT_S)
    left.learn("c", 0.2)
    assert left.estimate(["c"], {}) == Estimate(0.2 / OWN, 0.2 * OWN)


def test_seeds_of_a_setting_are_of_one_kind_and_other_settings_are_not():
    config = AllReduceConfig(load_cluster(CLUSTERS / "stampede.toml"), 2, "ring", 1e6)
    assert kind_of(config) == kind_of(replace(config))
    assert kind_of(config)[0] == kind_of(replace(config, workers=4))[0]
    assert kind_of(config) != kind_of(replace(config, workers=4))


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (Report(1, 3, {}, left=Estimate(200, 400)), "[1 of 3 runs finished, 3 min to 7 min left]"),
        (Report(1, 3, {}, left=Estimate(20, 20.3)), "[1 of 3 runs finished, 20 s left]"),
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
