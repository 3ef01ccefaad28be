"""Federated rounds, against SimPy and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy

from harness.base.errors import UserError
from harness.simulator import (
    ClientSampling,
    Fault,
    Host,
    Jitter,
    Level,
    Network,
    Simulation,
    WorkerGroup,
    Workload,
    laws,
)
from harness.simulator.cluster import Compression
from harness.simulator.costs import computation_s, costs_of

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)


class FederatedModel:
    """Clients with links of their own, one server that folds one after the other.

    Args:
        cluster, workers, seed: as for a `Simulation`.
        rules: of the protocol.
        deaths: (worker, instant, seconds away) of each.
    """

    def __init__(self, cluster, workers, seed, rules, deaths=()):
        self.env, self.costs = simpy.Environment(), costs_of(cluster, JOB, workers, seed)
        self.rules, self.workers, self.steps = rules, workers, [0] * workers
        level, group = cluster.network.levels[0], cluster.workers[0]
        self.down = (group.down_bytes_per_s or level.bandwidth_bytes_per_s, level.latency_s)
        self.up = (group.up_bytes_per_s or level.bandwidth_bytes_per_s, level.latency_s)
        self.away, self.running, self.record, self.lost = {}, {}, [], []
        for strike in deaths:
            self.env.process(self.death(*strike))

    def run(self, folds):
        self.env.run(self.env.process(self.rounds(folds)))
        return self.record

    def death(self, who, at_s, down_s):
        yield self.env.timeout(at_s)
        self.away[who] = self.env.now + down_s
        if who in self.running and self.running[who].is_alive:
            self.running[who].interrupt()

    def rounds(self, folds):
        env, version, number = self.env, 0, 0
        while version < folds:
            there = [w for w in range(self.workers) if self.away.get(w, -1.0) <= env.now]
            lots = {w: laws.uniforms(self.costs.sample_key, w, number, 0)[0] for w in there}
            number += 1
            self.server, self.folded = simpy.Resource(env), []
            self.round = version
            drawn = sorted(lots, key=lots.get)[: self.rules.sampled]
            self.running = {w: env.process(self.client(w)) for w in sorted(drawn)}
            self.open, self.enough = len(drawn), env.event()
            deadline = env.timeout(self.rules.deadline_s or 1e9)
            found = yield self.enough | deadline
            if self.enough not in found and not self.folded:
                yield self.enough  # waits for the first
            self.running, self.enough = {}, env.event()
            if self.folded:
                version += 1
                self.record.append((env.now, tuple(sorted(self.folded))))

    def client(self, who):
        env, mine = self.env, self.round
        first, self.steps[who] = self.steps[who], self.steps[who] + self.rules.every
        try:
            yield env.timeout(JOB.parameter_bytes / self.down[0])
            yield env.timeout(self.down[1])
            for step in range(first, first + self.rules.every):
                yield env.timeout(computation_s(self.costs, who, step))
            yield env.timeout(JOB.parameter_bytes / self.up[0])
            yield env.timeout(self.up[1])
        except simpy.Interrupt:
            self.lost.append((who, mine))
            self.open -= 1
            if self.open == len(self.folded) and not self.enough.triggered:
                self.enough.succeed()
            return
        with self.server.request() as turn:
            yield turn
            yield env.timeout(self.costs.fold_s)
        if mine == self.round and len(self.folded) < (self.rules.needed or self.open):
            self.folded.append(who)
            all_there = len(self.folded) in (self.rules.needed or self.open, self.open)
            if all_there and not self.enough.triggered:
                self.enough.succeed()


@pytest.fixture
def machine(cluster):
    def build(workers, jitter=None, faults=(), fold_s=0.0, **own):
        network = Network((Level(1, 4.0, 0.125),))
        groups = (WorkerGroup(workers, "unit", **own),)
        built = cluster(workers, jitter=jitter, fold_s=fold_s)
        return replace(built, network=network, workers=groups, faults=tuple(faults))

    return build


def folds_of(timeline):
    """[(time, who)] of every fold."""
    rows = timeline.folded()
    return [
        (time_s, tuple(rows.worker[rows.fold == fold].tolist()))
        for fold, time_s in zip(timeline.folds.fold, timeline.folds.time_s.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    "rules",
    [
        ClientSampling(5, every=3),
        ClientSampling(8, needed=5, every=2),
        ClientSampling(30, needed=20, every=1),
    ],
    ids=["all", "over-selected", "all that are there"],
)
@pytest.mark.parametrize("deaths", [(), ((3, 6.0, 9.0), (7, 6.5, 4.0), (1, 20.0, 2.0))])
def test_rounds_are_those_of_simpy(machine, rules, deaths):
    faults = [Fault("death", workers=(w,), at_s=(at,), down_s=down) for w, at, down in deaths]
    built = machine(20, Jitter("gamma", 0.5), faults, fold_s=0.01, up_bytes_per_s=2.0)
    model = FederatedModel(built, 20, 3, rules, deaths)
    expected = model.run(15)
    timeline = Simulation(built, rules, JOB, 20, 3).advance(folds=15)
    found = folds_of(timeline)
    assert [who for _, who in found] == [who for _, who in expected]
    assert [t for t, _ in found] == pytest.approx([t for t, _ in expected], rel=1e-12)


def test_a_round_is_a_download_minibatches_and_an_upload(machine):
    built = machine(6, up_bytes_per_s=1.0, down_bytes_per_s=8.0)
    timeline = Simulation(built, ClientSampling(2, every=3), JOB).advance(folds=2)
    each_s = 8 / 8 + 0.125 + 3.0 + 8 / 1 + 0.125
    assert timeline.folds.time_s.tolist() == [each_s, 2 * each_s]
    names = [timeline.kinds[kind] for kind in timeline.spans.kind[:3]]
    assert names == ["fetch", "compute", "push"]


def test_a_servers_narrow_link_is_shared_by_those_who_are_sent_the_model(machine):
    """Four downloads of eight bytes over four bytes a second: 8 s; so are four uploads."""
    built = replace(machine(9), network=Network((Level(1, 4.0),), server=Level(1, 4.0)))
    timeline = Simulation(built, ClientSampling(4, every=1), JOB).advance(folds=1)
    assert timeline.folds.time_s.tolist() == [8.0 + 1.0 + 8.0]


@pytest.mark.parametrize("shared", ["a limited core", "a half-duplex link of the server"])
def test_an_answer_shares_a_link_with_a_late_clients_model(machine, shared):
    """Client 1 takes 1 of 4 bytes a second for 8 s: client 0 has 3 for its model and its answer."""
    groups = tuple(
        WorkerGroup(1, "unit", down_bytes_per_s=rate, up_bytes_per_s=8.0) for rate in (8, 1)
    )
    if shared == "a limited core":
        network = Network((Level(1, 8.0),), core_bandwidth_bytes_per_s=4.0)
    else:
        network = Network((Level(1, 8.0),), server=Level(1, 4.0, duplex="half"))
    built = replace(machine(2), workers=groups, network=network)
    timeline = Simulation(built, ClientSampling(2, needed=1, every=1), JOB).advance(folds=1)
    assert timeline.folds.time_s[0] == pytest.approx(8 / 3 + 1.0 + 8 / 3, rel=1e-12)


def test_a_deadline_ends_a_round_with_what_has_arrived(machine):
    """Client 1 is ten times as slow; a deadline of 6 s is kept, one of 1 s waits for client 0."""
    groups = (WorkerGroup(1, "unit"), WorkerGroup(1, "unit", speed=0.1))
    built = replace(machine(2), workers=groups, network=Network((Level(1, 8.0),)))
    timeline = Simulation(built, ClientSampling(2, deadline_s=6.0, every=1), JOB).advance(folds=2)
    assert folds_of(timeline) == [(6.0, (0,)), (12.0, (0,))]
    assert timeline.lost().worker.tolist() == [1, 1]
    early = Simulation(built, ClientSampling(2, deadline_s=1.0, every=1), JOB).advance(folds=1)
    assert folds_of(early) == [(3.0, (0,))]


def test_over_selection_gives_up_the_slowest(machine):
    built = machine(50, Jitter("lognormal", 1.0))
    rules = ClientSampling(13, needed=10, every=1)
    timeline = Simulation(built, rules, JOB).advance(folds=20)
    assert np.bincount(timeline.folded().fold).tolist() == [10] * 20
    assert len(timeline.lost()) == 3 * 20
    waiting = Simulation(built, replace(rules, sampled=10), JOB).advance(folds=20)
    assert timeline.folds.time_s[-1] < 0.8 * waiting.folds.time_s[-1]


def test_clients_are_drawn_evenly(machine):
    timeline = Simulation(machine(40), ClientSampling(10, every=1), JOB).advance(folds=400)
    often = np.bincount(timeline.folded().worker, minlength=40)
    assert abs(often - 100).max() < 5 * np.sqrt(100 * 0.75)


def test_a_round_in_which_everyone_dies_makes_no_fold(machine):
    death = Fault("death", at_s=(1.0,), down_s=5.0)
    built = machine(3, faults=(death,))
    timeline = Simulation(built, ClientSampling(3, every=2), JOB).advance(folds=1)
    assert timeline.folds.time_s.tolist() == [6.0 + 2.125 + 2.0 + 2.125]
    assert timeline.lost().worker.tolist() == [0, 1, 2]


def test_a_round_whose_last_client_dies_ends_when_that_is_known(machine):
    """Answers after 1 and 2 s; a third client would take 10 and dies at 6: the fold is at 6 s."""
    speeds = (1.0, 0.5, 0.1)
    built = machine(3, faults=(Fault("death", workers=(2,), at_s=(6.0,)),))
    groups = tuple(WorkerGroup(1, "unit", speed=speed) for speed in speeds)
    built = replace(built, workers=groups, network=Network((Level(1),)))
    timeline = Simulation(built, ClientSampling(3, every=1), JOB).advance(folds=2)
    assert folds_of(timeline) == [(6.0, (0, 1)), (8.0, (0, 1))]
    rows = timeline.folded()
    assert rows.read_time_s[rows.read_version == 1].tolist() == [6.0, 6.0]


def test_compressed_answers_are_smaller_and_the_model_is_not(machine):
    built = replace(machine(3), compression=Compression(0.25, 8.0, 16.0))
    timeline = Simulation(built, ClientSampling(1, every=1), JOB).advance(folds=1)
    assert timeline.folds.time_s[0] == 2.125 + 1.0 + 1.0 + 0.625 + 0.5


@pytest.mark.parametrize("cut_s", [0.0, 3.3, 11.0])
def test_a_restored_simulation_goes_on_as_if_never_interrupted(machine, cut_s):
    faults = (Fault("death", mean_s=30.0, down_s=4.0),)
    built, rules = machine(12, Jitter("gamma", 0.5), faults), ClientSampling(6, needed=4, every=2)
    whole = Simulation(built, rules, JOB, seed=5)
    expected = whole.advance(seconds=60.0)
    first = Simulation(built, rules, JOB, seed=5)
    begun = first.advance(seconds=cut_s)
    second = Simulation.restore(built, rules, first.state(), seed=5)
    rest = second.advance(seconds=60.0 - cut_s)
    assert folds_of(begun) + folds_of(rest) == folds_of(expected)
    assert second.now_s == pytest.approx(whole.now_s)


def test_what_is_not_simulated_is_refused(machine):
    pageable = replace(machine(2), host=Host(staging="pageable", staging_bytes_per_s=1.0))
    with pytest.raises(UserError, match="'pageable'"):
        Simulation(pageable, ClientSampling(2), JOB)
    with pytest.raises(UserError, match="at most sampled"):
        ClientSampling(3, needed=4)
