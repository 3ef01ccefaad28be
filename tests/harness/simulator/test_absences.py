"""Faults where workers wait for each other: averaging, and synchronous SGD with backup workers."""

import math

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Checkpoints, Fault, Jitter, Workload
from harness.simulator.protocols.absences import new_absences, select_readers
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.client_sampling import ClientSampling
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
LOGNORMAL = Jitter("lognormal", 0.3)


@pytest.fixture
def run(cluster):
    """A simulation of a protocol on workers with a link of their own."""

    def build(protocol, workers=5, faults=(), jitter=LOGNORMAL, seed=3, **machine):
        built = cluster(workers, faults=faults, jitter=jitter, **machine)
        return Simulation(built, protocol, JOB, workers, seed)

    return build


PROTOCOLS = pytest.mark.parametrize(
    "protocol",
    [
        Averaging(3), Averaging(3, overlap=True), Averaging(2, collective="recursive-doubling"),
        Averaging(2, collective="rabenseifner", overlap=True), BackupWorkers(0), BackupWorkers(2),
    ],
    ids=lambda protocol: " ".join(map(str, protocol.to_dict().values())),
)  # fmt: skip
BUSY = {"copy_s": 0.05, "latency_s": 0.01, "fold_s": 0.02}


@PROTOCOLS
def test_nobody_reads_while_away(run, protocol):
    fault = Fault("death", workers=(0,), at_s=(10.5,), down_s=20.0)
    timeline = run(protocol, 6, (fault,), **BUSY).advance(seconds=60.0)
    rows = timeline.folded()
    mine = rows.worker == 0
    assert not np.any((rows.read_time_s[mine] > 10.5) & (rows.read_time_s[mine] < 30.5))
    assert np.any(rows.read_time_s[mine] >= 30.5)


@PROTOCOLS
def test_faults_that_never_strike_change_nothing(run, protocol):
    """The way with faults and the way without are one."""
    never = (Fault("death", at_s=(1e8,)), Fault("preemption", at_s=(1e8,), down_s=1.0))
    one, other = (run(protocol, 6, faults, **BUSY) for faults in ((), never))
    assert one.advance(folds=60).sha256() == other.advance(folds=60).sha256()


@PROTOCOLS
@pytest.mark.parametrize("drain", [False, True])
def test_workers_of_whom_none_returns_end_in_one_clear_line(run, protocol, drain):
    simulation = run(protocol, 3, (Fault("death", mean_s=20.0),), **BUSY)
    with pytest.raises(UserError, match="every worker has left permanently"):
        simulation.advance(folds=10_000, drain=drain)
    left = run(protocol, 3, (Fault("death", mean_s=20.0),), **BUSY)
    left.advance(seconds=1e4)
    assert left.now_s == 1e4


OFTEN = Fault("death", mean_s=0.05, down_s=0.2)
NEVER_FOLDED = [  # protocol, what fails how often, checkpoints
    (ParameterServer(), OFTEN, None), (ParameterServer(bound=0, depth=2), OFTEN, None),
    (ParameterServer(), Fault("server", mean_s=0.001, down_s=0.2, checkpoint_s=1.0), None),
    (BackupWorkers(1), OFTEN, None), (Averaging(2), OFTEN, None),
    (Averaging(2, overlap=True), OFTEN, None), (ClientSampling(2), OFTEN, None),
    (Averaging(2), OFTEN, Checkpoints(1)), (Averaging(2), OFTEN, Checkpoints(1, restart_s=9.0)),
    (Averaging(2), Fault("preemption", mean_s=2.0, down_s=0.2), Checkpoints(1, restart_s=9.0)),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "fault", "checkpoints"), NEVER_FOLDED)
def test_where_all_is_lost_before_it_is_folded_a_segment_ends_in_one_clear_line(
    run, protocol, fault, checkpoints
):
    """The first fault never strikes; the second is named."""
    faults = (Fault("death", (1,), at_s=(1e9,)), fault)
    simulation = run(protocol, 3, faults, checkpoints=checkpoints, fold_s=0.25)
    told = (
        rf"faults\[1\].mean_s: {fault.mean_s:g}: .* lost to failures and none was folded; allowed"
    )
    with pytest.raises(UserError, match=told):
        simulation.advance(folds=7, drain=fault is OFTEN)
    still = run(protocol, 3, faults, checkpoints=checkpoints, fold_s=0.25)
    assert len(still.advance(seconds=40.0).folds) <= 1  # the first worker to leave ends its round
    assert still.now_s == 40.0


@pytest.mark.parametrize("protocol", [ParameterServer(), BackupWorkers(), Averaging(1)], ids=str)
def test_a_cluster_that_folds_one_of_forty_is_slow_and_no_more(run, protocol):
    faults = (Fault("death", mean_s=1.0 / math.log(40.0), down_s=0.1),)
    timeline = run(protocol, 1, faults, jitter=None).advance(folds=20)
    assert len(timeline.folds) == 20
    assert len(timeline.lost()) > 300


@pytest.mark.parametrize(
    ("protocol", "fault"),
    [
        (Averaging(3), Fault("message", probability=0.1, retry_s=1.0)),
        (Averaging(3), Fault("server", at_s=(1.0,), down_s=1.0, checkpoint_s=1.0)),
        (BackupWorkers(1), Fault("server", at_s=(1.0,), down_s=1.0, checkpoint_s=1.0)),
    ],
)
def test_what_happens_to_no_worker_is_refused_in_one_line(run, protocol, fault):
    with pytest.raises(UserError, match=rf"faults\[1\].kind: '{fault.kind}' is not allowed"):
        run(protocol, 3, (Fault("death", mean_s=1.0), fault))


def test_who_is_back_at_this_very_instant_reads_and_who_is_preempted_goes(cluster):
    faulty = cluster(4, faults=(Fault("death", mean_s=30.0, down_s=6.0),))
    absences = new_absences(faulty, 4, "averaging")
    absences.until_s[:] = [5.0, 5.5, -np.inf, -np.inf]
    absences.leave_s[:] = [0.0, 0.0, 2.0, 2.0]
    due = np.array([True, True, True, False])
    select_readers(absences, 5.0, due)
    assert due.tolist() == [True, False, False, False]
    assert absences.until_s.tolist() == [5.0, 5.5, 7.0, -np.inf]
    assert absences.leave_s.tolist() == [0.0, 0.0, 0.0, 2.0]
