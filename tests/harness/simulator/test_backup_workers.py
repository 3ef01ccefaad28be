from __future__ import annotations

import heapq
import json

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.cli import main
from harness.simulator import Jitter, Simulation, concat
from harness.simulator.costs import computation_s, costs_of
from harness.simulator.protocols.backup_workers import BackupWorkers

EXPONENTIAL = Jitter("shifted-exponential", 1.0)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.05, "jitter": EXPONENTIAL}


@pytest.fixture
def run(cluster, unit_job):
    def build(workers=5, backups=1, durations=BUSY, seed=0):
        machine = cluster(workers, **durations)
        return Simulation(machine, BackupWorkers(backups), unit_job, workers, seed)

    return build


def by_hand(simulation, folds):
    """(end of fold, its workers) round by round, and dropped (worker, version read)."""
    costs = costs_of(simulation.cluster, simulation.workload, simulation.workers, simulation.seed)
    steps, rounds, dropped = [0] * simulation.workers, [], []

    def arrival(who, now_s):
        steps[who] += 1
        fetched_s = now_s + costs.copy_s + costs.latency_s
        return fetched_s + computation_s(costs, who, steps[who] - 1) + costs.copy_s + 0.01

    pending = [(arrival(who, 0.0), who, 0) for who in range(simulation.workers)]
    heapq.heapify(pending)
    free_s = 0.0
    while len(rounds) < folds:
        taken, waiting = [], []
        while len(taken) < simulation.workers - simulation.protocol.backups:
            time_s, who, version = heapq.heappop(pending)
            if version == len(rounds):
                taken.append(who)
                free_s = max(time_s, free_s) + costs.fold_s
            else:
                dropped.append((who, version))
                heapq.heappush(pending, (arrival(who, time_s), who, len(rounds)))
        while pending and pending[0][0] < free_s:
            _, who, version = heapq.heappop(pending)
            dropped.append((who, version))
            waiting.append(who)
        rounds.append((free_s, taken))
        for who in taken + waiting:
            heapq.heappush(pending, (arrival(who, free_s), who, len(rounds)))
    return rounds, dropped


@pytest.mark.parametrize(("workers", "backups"), [(1, 0), (4, 0), (5, 1), (20, 3), (50, 10)])
def test_every_round_takes_the_first_to_arrive_and_drops_the_others(run, workers, backups):
    simulation = run(workers, backups)
    timeline = simulation.advance(folds=300)
    rounds, dropped = by_hand(simulation, 300)
    rows = timeline.folded()
    found = [rows.worker[rows.fold == fold].tolist() for fold in range(300)]
    assert timeline.folds.time_s.tolist() == [end_s for end_s, _ in rounds]
    assert found == [who for _, who in rounds]
    lost = timeline.lost()
    assert list(zip(lost.worker.tolist(), lost.read_version.tolist(), strict=True)) == dropped
    assert set(timeline.staleness().tolist()) == {0}


def test_a_synchronous_round_lasts_as_long_as_the_slowest(run):
    """The largest of N exponential times has mean 1 + 1/2 + … + 1/N."""
    simulation = run(8, 0, {"jitter": EXPONENTIAL})
    simulation.advance(folds=40_000)
    expected = sum(1.0 / k for k in range(1, 9))
    assert simulation.now_s / 40_000 == pytest.approx(expected, rel=0.01)


def test_backups_make_rounds_shorter(run):
    ends = []
    for backups in (0, 1, 3):
        simulation = run(10, backups)
        simulation.advance(folds=500)
        ends.append(simulation.now_s)
    assert ends[0] > 1.2 * ends[1] > 1.2 * ends[2]


def test_every_read_is_folded_dropped_or_in_flight(run):
    simulation = run(7, 2)
    whole = concat([simulation.advance(folds=30), simulation.advance(seconds=25.0)])
    assert sorted(whole.contributions.first_step.tolist()) == list(range(simulation.dispatched))
    assert len(whole.folded()) == 5 * simulation.version


def test_segments_and_a_restore_change_nothing(run):
    parts, whole = run(6, 2), run(6, 2)
    segments = [parts.advance(folds=folds) for folds in (1, 0, 20)]
    parts = Simulation.restore(parts.cluster, parts.protocol, parts.state(), 6)
    segments.append(parts.advance(folds=29))
    assert concat(segments).sha256() == whole.advance(folds=50).sha256()


def test_a_drained_segment_has_all_its_folds_and_nothing_under_way(run):
    simulation = run(6, 2)
    for folds in (10, 0, 3):
        before = simulation.version
        timeline = simulation.advance(folds=folds, drain=True)
        assert simulation.version == before + folds
        assert simulation.drained
        assert len(timeline.in_flight()) == 0
    simulation.advance(seconds=5.0, drain=True)
    assert simulation.drained
    drained_s = simulation.now_s
    simulation.pause(4.0, "search")
    assert np.all(simulation.advance(folds=5).folds.time_s > drained_s + 4.0)


def test_time_that_cannot_pass_is_an_error(cluster, free_job):
    machine = cluster(3, compute_s=0.0)
    with pytest.raises(UserError, match="no time passes"):
        Simulation(machine, BackupWorkers(1), free_job, 3).advance(seconds=1.0)


def test_as_many_backups_as_workers_are_refused_and_one_worker_alone_is_waited_for(run):
    for backups in (5, 7):
        with pytest.raises(UserError, match=f"backups: {backups} .* 5 workers; allowed: at most 4"):
            run(5, backups)
    assert len(run(5, 4).advance(folds=50).folded()) == 50
    assert run(1, 3).advance(folds=50).sha256() == run(1, 0).advance(folds=50).sha256()


def test_default_worker_counts_leave_room_for_the_backups(capsys):
    cluster = [
        "simulate",
        "reproductions/clusters/wide-area-10.toml",
        "--protocol",
        "backup_workers",
    ]
    asked = [*cluster, "--backups", "3", "--folds", "9", "--network", "10-10", "--json", "-"]
    assert main(asked) == 0
    assert [row["workers"] for row in json.loads(capsys.readouterr().out)] == [1, 4, 8, 10]


def test_workers_on_a_shared_link_are_refused(run):
    with pytest.raises(UserError, match="sharing"):
        run(durations={"copy_s": 1.0, "sharing": "fifo"})
