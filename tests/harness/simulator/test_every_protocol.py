"""What holds of every protocol, on links of every kind, with faults and without.

That nobody does two things at once and that time never runs back is checked in every test
(`tests.invariants`).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from harness.simulator.cluster import Checkpoints, Cluster, Fault, Jitter, Job, Server, Workload
from harness.simulator.network import Level, Network
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.client_sampling import ClientSampling
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import concat
from harness.simulator.timeline_file import load_timeline, save_timeline
from harness.speech.protocol import Sequence
from tests.harness.simulator.conftest import UNIT_JOB, make_cluster
from tests.harness.simulator.test_gated_server import CLUSTERS, Alone

LOGNORMAL, GAMMA = Jitter("lognormal", 0.3), Jitter("gamma", 0.5)
BUSY = {"copy_s": 0.2, "latency_s": 0.01, "fold_s": 0.1, "jitter": LOGNORMAL}
FAULTS = (
    Fault("death", mean_s=20.0, down_s=3.0),
    Fault("preemption", mean_s=15.0, down_s=2.0),
    Fault("late", workers=(2, 3), at_s=(7.5,)),
)
SERVED = (
    *FAULTS,
    Fault("death", workers=(1,), at_s=(4.0, 5.0, 90.0), down_s=0.0),
    Fault("message", probability=0.2, retry_s=0.3),
    Fault("server", at_s=(16.0, 44.0, 71.0), down_s=4.0, checkpoint_s=9.0),
)
IN_ROUNDS = (
    Fault("death", mean_s=30.0, down_s=6.0),
    Fault("preemption", mean_s=25.0, down_s=4.0),
    Fault("late", workers=(1, 2), at_s=(7.5,)),
)
"""With these no round loses everybody, whom it would hand out the same steps again."""
JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)


class Case(NamedTuple):
    """A protocol on a cluster, and what of its contributions are lost and how they count."""

    cluster: Cluster
    protocol: object
    job: Workload = UNIT_JOB
    workers: int = 5

    def simulation(self):
        return Simulation(self.cluster, self.protocol, self.job, self.workers, 3)


SETTINGS = (
    {}, {"bound": 1}, {"queue": 2}, {"depth": 3}, {"push_every": 2, "fetch_every": 6},
    {"bound": 2, "queue": 1, "depth": 2, "fetch_every": 3},
)  # fmt: skip
SHARDS = (
    {"shards": 3},
    {"shards": 7, "bound": 1},
    {"shards": 2, "queue": 2},
    {"shards": 3, "depth": 3, "push_every": 2, "fetch_every": 6},
)
ON_NETWORKS = (
    ({}, SERVED),
    ({"shards": 3}, ()),
    ({"shards": 2, "depth": 3}, ()),
    ({"depth": 2, "queue": 2, "bound": 2, "fetch_every": 3}, SERVED),
)
ROUNDS = (
    Averaging(3), Averaging(3, overlap=True), Averaging(2, collective="recursive-doubling"),
    Averaging(2, collective="recursive-doubling", overlap=True),
    BackupWorkers(0), BackupWorkers(2),
)  # fmt: skip
CASES = {
    **{
        f"server, {sharing}, {settings}, {len(faults)} faults": Case(
            make_cluster(5, sharing=sharing, faults=faults, **BUSY), ParameterServer(**settings)
        )
        for sharing in ("none", "fifo", "fair")
        for settings, faults in (
            *((settings, SERVED) for settings in SETTINGS),
            *((settings, ()) for settings in (*SETTINGS, *SHARDS)),
        )
    },
    **{
        f"server in lockstep, {sharing}": Case(
            make_cluster(8, copy_s=0.25, sharing=sharing), ParameterServer(), workers=8
        )
        for sharing in ("none", "fifo", "fair")
    },
    **{
        f"server on a network, {sharing}, {settings}": Case(
            replace(
                make_cluster(8, jitter=LOGNORMAL, faults=faults),
                server=Server(0.05, 0.0, LOGNORMAL),
                network=Network(
                    (Level(1, 90.0, 1e-3), Level(4, 50.0, 2e-3)), sharing, server=Level(1, 60.0)
                ),
            ),
            ParameterServer(**settings),
            JOB,
            8,
        )
        for sharing in ("fifo", "fair")
        for settings, faults in ON_NETWORKS
    },
    **{
        f"{' '.join(map(str, rules.to_dict().values()))}, {len(faults)} faults": Case(
            make_cluster(6, copy_s=0.05, fold_s=0.02, jitter=LOGNORMAL, faults=faults),
            rules,
            JOB,
            6,
        )
        for rules in ROUNDS
        for faults in ((), IN_ROUNDS)
    },
    "client sampling": Case(
        replace(
            make_cluster(12, jitter=GAMMA, faults=FAULTS[:1]),
            network=Network((Level(1, 4.0, 0.1),)),
        ),
        ClientSampling(6, needed=4, every=2),
        JOB,
        12,
    ),
    "checkpoints": Case(
        make_cluster(
            3,
            jitter=GAMMA,
            checkpoints=Checkpoints(4, 0.5, 1.0),
            faults=(
                Fault(
                    "death", mean_s=25.0, down_s=3.0, notice_s=1.5, down_law="gamma", down_cv=0.7
                ),
                Fault("death", workers=(1,), mean_s=40.0, down_s=2.0),
            ),
        ),
        Averaging(2),
        UNIT_JOB,
        3,
    ),
    "sequence": Case(
        make_cluster(3, **BUSY),
        Sequence(slots=4, frames=60.0, kept=0.1, decode_cost=1.0, shards=2),
        workers=3,
    ),
    "a rule of one's own": Case(CLUSTERS["fair link"], Alone(), workers=3),
    "two jobs": Case(
        make_cluster(
            8,
            jitter=GAMMA,
            network=Network((Level(1, 100.0), Level(2, 4.0))),
            jobs=(Job(0, 4, Workload(1, 2.3, 5.0), 1),),
        ),
        Averaging(1),
        JOB,
        4,
    ),
}
every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.nightly] * (k < 48 and k % 3 > 0))
        for k, (name, case) in enumerate(CASES.items())
    ],
)
"""Of the 48 that share a link in three ways, the suite has one for each of 16 settings."""


@every_case
def test_segments_a_restore_and_the_file_change_nothing(case, tmp_path):
    parts, whole = case.simulation(), case.simulation()
    segments = [parts.advance(folds=folds) for folds in (1, 0, 30)]
    segments.append(parts.advance(seconds=7.3))
    parts = Simulation.restore(case.cluster, case.protocol, parts.state(), case.workers, 3)
    segments.append(parts.advance(folds=150 - parts.version))
    together = whole.advance(folds=150)
    assert concat(segments).sha256() == together.sha256()
    assert parts.now_s == whole.now_s
    assert save_timeline(concat(segments), tmp_path / "t") == together.sha256()
    again = load_timeline(tmp_path / "t")
    assert again.sha256() == together.sha256()
    assert len(again.lost()) == len(together.lost())
    assert again.restarts.version.tolist() == together.restarts.version.tolist()


@every_case
def test_segments_of_time_are_one_of_their_sum(case):
    parts, whole = case.simulation(), case.simulation()
    segments = [parts.advance(seconds=seconds) for seconds in (0.25, 26.0, 0.0, 13.75)]
    assert concat(segments).sha256() == whole.advance(seconds=40.0).sha256()
    assert parts.now_s == whole.now_s == 40.0


@every_case
def test_every_read_is_folded_once_or_lost_once_or_in_flight(case):
    if case.cluster.checkpoints:
        pytest.skip("what is undone is handed out again")
    simulation = case.simulation()
    segments = [simulation.advance(folds=70), simulation.advance(seconds=40.0)]
    segments.append(simulation.advance(folds=130))
    whole, is_server = concat(segments), isinstance(case.protocol, ParameterServer)
    rows, steps = whole.contributions, getattr(case.protocol, "push_every", 1)
    names = list(zip(rows.worker.tolist(), rows.first_step.tolist(), strict=True))
    assert len(set(names)) == len(names)
    assert np.unique(whole.folded().fold).tolist() == list(range(simulation.version))
    if is_server or isinstance(case.protocol, BackupWorkers):
        assert sorted(rows.first_step.tolist()) == list(range(0, simulation.dispatched, steps))
        assert set(rows.steps.tolist()) == {steps}
    if is_server:
        assert whole.folded().fold.tolist() == list(range(simulation.version))
    assert len(whole.lost()) > 0 or not case.cluster.faults
    assert (len(whole.kept()) < len(whole.folded())) == (len(whole.restarts) > 0)
    assert np.all(whole.staleness() >= 0)
    assert np.all(whole.lag_s() > 0.0)


@every_case
def test_a_drained_segment_has_all_its_folds_and_leaves_nothing_under_way(case):
    simulation = case.simulation()
    for folds in (40, 1, 0, 77):
        before = simulation.version
        timeline = simulation.advance(folds=folds, drain=True)
        assert simulation.version == before + folds
        assert len(timeline.in_flight()) == 0
        assert simulation.drained
    simulation.advance(seconds=20.0, drain=True)
    assert simulation.drained
    drained_s = simulation.now_s
    simulation.pause(100.0, "search")
    later = simulation.advance(folds=30)
    assert np.all(later.folds.time_s >= drained_s + 100.0)
