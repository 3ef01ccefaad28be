from types import SimpleNamespace
from typing import Any

import pytest

from harness.simulator import Simulation, Workload, load_cluster
from reproductions.paper1_async_asgd import exhibits
from reproductions.paper1_async_asgd.experiments import CLUSTER, REPORTED, minibatch_timings

LAYERS = REPORTED["paper"]["layers"]
NOBODY: Any = None


def finished(hash_: str, **summary: float) -> Any:
    return SimpleNamespace(hash=hash_, summary=summary)


def test_the_steps_of_a_minibatch_add_up_to_the_simulated_cycle_of_one_worker():
    machine, job = load_cluster(CLUSTER), Workload.of_network(LAYERS, 256)
    runs = {exhibits.setting(1, size): [finished("one")] for size in exhibits.MINIBATCHES}
    rows = {(row.label, row.column): row for row in exhibits.costs(NOBODY, runs).rows}
    simulation = Simulation(machine, "parameter_server", job, 1)
    simulation.advance(folds=2000)
    together = rows["together", "256 frames (ms)"]
    assert together.measured == pytest.approx(1e3 * simulation.now_s / 2000, rel=0.01)
    assert together.runs == ("one",)


def test_only_the_gradient_costs_more_when_the_minibatch_grows():
    machine = load_cluster(CLUSTER)
    small, large = (
        exhibits.seconds(machine, Workload.of_network(LAYERS, size)) for size in (256, 1024)
    )
    assert (small["copy"], small["fold"]) == (large["copy"], large["fold"])
    assert 3.0 < large["compute"] / small["compute"] < 4.0


def test_the_speed_up_is_drawn_over_one_worker_and_over_one_card_at_every_minibatch():
    runs = {}
    for size in exhibits.MINIBATCHES:
        one = {"throughput_per_s": 10.0, "bare_throughput_per_s": 20.0}
        runs[exhibits.setting(1, size)] = [finished(f"1 of {size}", **one)] * 2
        runs[exhibits.setting(4, size)] = [finished(f"4 of {size}", throughput_per_s=30.0)] * 2
    rows = exhibits.speedup_by_minibatch(NOBODY, runs).rows
    assert [row.column for row in rows] == [*exhibits.MINIBATCHES, *exhibits.MINIBATCHES]
    assert {(row.label, row.measured) for row in rows} == {
        ("over one worker", 3.0),
        ("over one bare card", 1.5),
    }
    assert rows[0].runs == ("1 of 64", "4 of 64")


def test_the_timings_it_needs_are_declared_at_the_papers_network():
    declared = minibatch_timings(11)
    costs, speedups = exhibits.EXHIBITS[-3:-1]
    assert set(declared) == {*costs.needs, *speedups.needs}
    assert {config.layers for config in declared.values()} == {tuple(LAYERS)}
    assert declared[exhibits.setting(4, 1024)].minibatch == 1024
