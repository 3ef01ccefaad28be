"""Folds, faults, returns, reads: the order at one instant, in every protocol."""

import pytest

from harness.simulator import Averaging, Cluster, Device, Fault, ParameterServer, Simulation
from harness.simulator.cluster import WorkerGroup, Workload
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.client_sampling import ClientSampling

PROTOCOLS = (
    Averaging(every=1),
    Averaging(every=1, overlap=True),
    ParameterServer(),
    BackupWorkers(),
    ClientSampling(sampled=2, every=1),
)


def reads_of_worker_1(protocol, fault: Fault, folds: int) -> tuple[list[float], int]:
    """When it reads, of two workers with rounds of a second, and the number of lost rows."""
    device = Device(achieved_flops_per_s=1.0)
    cluster = Cluster("two", {"d": device}, (WorkerGroup(2, "d"),), faults=(fault,))
    timeline = Simulation(cluster, protocol, Workload(1, 1.0, 1.0), 2).advance(folds=folds)
    rows = timeline.contributions
    return rows.read_time_s[rows.worker == 1].tolist(), len(timeline.lost())


@pytest.mark.parametrize("kind", ["death", "preemption"])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
@pytest.mark.parametrize("at_s", [0.0, 1.0, 2.0])
def test_a_fault_at_the_instant_of_a_fold_comes_before_the_reads(protocol, kind, at_s):
    reads_s, lost = reads_of_worker_1(protocol, Fault(kind, (1,), at_s=(at_s,), down_s=10.0), 16)
    assert lost == 0
    assert not [read_s for read_s in reads_s if at_s <= read_s < at_s + 10.0]
    assert at_s + 10.0 in reads_s


@pytest.mark.parametrize(
    "protocol", [Averaging(1), Averaging(1, overlap=True), PROTOCOLS[-1]], ids=repr
)
def test_the_downtime_of_an_announced_death_counts_from_the_death(protocol):
    """Told at 1.5 s of a death at 4.5 s, it leaves at 2 s and is back at 14.5 s."""
    fault = Fault("death", (1,), at_s=(1.5,), down_s=10.0, notice_s=3.0)
    reads_s, lost = reads_of_worker_1(protocol, fault, 20)
    assert lost == 0
    assert [read_s for read_s in reads_s if read_s < 16.0] == [0.0, 1.0, 15.0]
