import numpy as np
import pytest

from harness.simulator.cluster import Cluster, Device, Jitter, Link, Server, WorkerGroup, Workload
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation
from tests.theory.queueing import (
    Visits,
    constant_repair,
    lockstep,
    machine_repairman,
    mean_value_analysis,
    open_queue,
    slowest_s,
    throughput_bounds,
    visits,
)

EXPONENTIAL = Jitter("shifted-exponential", 1.0)
MILLION = 1_000_000
UNIT = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=1.0)


def mean_wait_s(queue: Visits) -> float:
    """W: from arrival to the start of service."""
    return float((queue.start_s - queue.arrive_s).mean())


def closed(workers: int, fold_s: float, fold_jitter: Jitter | None = None, **more) -> Cluster:
    """Workers that compute for one second on average around one server."""
    return Cluster(
        name="closed", devices={"unit": Device(1.0)}, workers=(WorkerGroup(workers, "unit"),),
        server=Server(fold_s, 0.0, fold_jitter or Jitter()), **{"jitter": EXPONENTIAL} | more,
    )  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("workers", "fold_s"), [(4, 0.3), (20, 0.05), (100, 0.02)])
@pytest.mark.parametrize("law", ["exponential", "constant"])
def test_a_million_folds_have_the_machine_repairmans_throughput_and_utilisation(
    workers, fold_s, law
):
    jitter = EXPONENTIAL if law == "exponential" else Jitter()
    theory = machine_repairman if law == "exponential" else constant_repair
    machine = closed(workers, fold_s, jitter)
    simulation = Simulation(machine, "parameter_server", UNIT, workers, spans=False)
    simulation.advance(folds=MILLION)
    expected = theory(workers, 1.0, fold_s)
    throughput = MILLION / simulation.now_s
    assert throughput == pytest.approx(expected.throughput_per_s, rel=0.01)
    tail = Simulation(machine, "parameter_server", UNIT, workers).advance(folds=200_000)
    window = (tail.folds.time_s[1000], tail.folds.time_s[-1])
    busy = visits(tail)["fold"].utilisation(*window)
    assert busy == pytest.approx(expected.utilisation, rel=0.01)


def test_the_think_times_law_does_not_matter_where_folds_are_exponential():
    for jitter in (Jitter(), Jitter("lognormal", 0.8)):
        machine = closed(8, 0.1, EXPONENTIAL, jitter=jitter)
        simulation = Simulation(machine, "parameter_server", UNIT, 8, spans=False)
        simulation.advance(folds=MILLION)
        expected = machine_repairman(8, 1.0, 0.1).throughput_per_s
        assert MILLION / simulation.now_s == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("duplex", "demands_s"), [("full", [0.1, 0.1, 0.08]), ("half", [0.2, 0.08])]
)
def test_a_shared_link_and_a_server_are_a_network_of_queues(duplex, demands_s):
    """Equal sharing has a product form for any law, so constant copies are exact too."""
    link = Link(bandwidth_bytes_per_s=10.0, sharing="fair", duplex=duplex)
    machine = closed(6, 0.08, EXPONENTIAL, link=link, jitter=Jitter("gamma", 0.5))
    simulation = Simulation(machine, "parameter_server", UNIT, 6, spans=False)
    simulation.advance(folds=300_000)
    expected = mean_value_analysis(6, 1.0, demands_s)[0].throughput_per_s
    assert 300_000 / simulation.now_s == pytest.approx(expected, rel=0.005)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_the_wait_of_many_slow_workers_is_that_of_an_open_queue(load):
    workers = 20_000
    machine = closed(workers, load / workers)
    timeline = Simulation(machine, "parameter_server", UNIT, workers).advance(folds=600_000)
    settled = timeline.folds.time_s > 3.0
    fold = visits(timeline)["fold"]
    wait_s = (fold.start_s - fold.arrive_s)[settled].mean()
    rate = settled.sum() / (timeline.folds.time_s[-1] - 3.0)
    assert wait_s == pytest.approx(open_queue(rate, load / workers, cv=0.0).wait_s, rel=0.02)


def test_workers_in_lockstep_have_the_throughput_of_the_slower_of_cycle_and_server():
    for workers, fold_s in ((3, 0.25), (5, 0.25), (8, 0.25)):
        simulation = Simulation(
            closed(workers, fold_s, jitter=Jitter()), "parameter_server", UNIT, workers
        )
        simulation.advance(folds=100 * workers)
        start_s = simulation.now_s
        simulation.advance(folds=1000 * workers)
        expected = lockstep(workers, 1.0, fold_s).throughput_per_s
        assert 1000 * workers / (simulation.now_s - start_s) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sharing", ["none", "fifo", "fair"])
@pytest.mark.parametrize("jitter", [Jitter("lognormal", 0.5), EXPONENTIAL], ids=lambda j: j.law)
def test_littles_law_holds_on_every_queue(sharing, jitter):
    link = Link(0.01, bandwidth_bytes_per_s=12.0, sharing=sharing)
    machine = closed(10, 0.06, jitter, link=link, jitter=jitter, heterogeneity_cv=0.2)
    timeline = Simulation(machine, "parameter_server", UNIT, 10).advance(folds=40_000)
    window = (timeline.folds.time_s[2_000], timeline.folds.time_s[-2_000])
    queues = visits(timeline)
    for queue in queues.values():
        present = queue.mean_present(*window)
        assert present == pytest.approx(queue.littles_product(*window), rel=0.001)
    assert sum(queue.mean_present(*window) for queue in queues.values()) == pytest.approx(10.0)


def obeys_little(queue, first_s, last_s):
    """Whether the mean number present is arrivals × stay, and nobody is served before coming."""
    assert (queue.start_s >= queue.arrive_s * (1.0 - 1e-12)).all()
    present = queue.mean_present(first_s, last_s)
    return present == pytest.approx(queue.littles_product(first_s, last_s), rel=0.002)


def test_littles_law_holds_where_workers_wait_for_room_at_the_server():
    """The gap between computing and sending is the queue for one of three places."""
    machine = closed(10, 0.09, EXPONENTIAL, link=Link(0.01, 50.0))
    timeline = Simulation(machine, ParameterServer(queue=3), UNIT, 10).advance(folds=40_000)
    queues, window = visits(timeline), (timeline.folds.time_s[2_000], timeline.folds.time_s[-2_000])
    assert all(obeys_little(queue, *window) for queue in queues.values())
    sending = Visits(queues["push"].start_s, queues["push"].start_s, queues["fold"].end_s)
    assert 1.5 < sending.mean_present(*window) <= 3.0
    assert mean_wait_s(queues["push"]) > 0.01


def busy_s(timeline, lane, kind):
    """[S] starts and [S] ends of a lane's spans of one kind, in order of time."""
    spans = timeline.spans
    mine = (spans.worker == lane) & (spans.kind == timeline.kinds.index(kind))
    return np.sort(spans.start_s[mine]), np.sort(spans.end_s[mine])


def test_littles_law_holds_at_every_shard():
    """A piece comes at a part of the copy and a latency after its contribution set off."""
    workers, shards, copy_s, latency_s = 10, 3, 0.06, 0.01
    machine = closed(workers, 0.09, link=Link(latency_s, 1.0 / copy_s))
    simulation = Simulation(machine, ParameterServer(shards=shards), UNIT, workers)
    timeline = simulation.advance(folds=30_000)
    window = (0.1 * simulation.now_s, 0.9 * simulation.now_s)
    for shard in range(shards):
        came_s = []
        for who in range(workers):
            piece = (shard - who) % shards + 1
            sent_s = busy_s(timeline, who, "push")[0]
            came_s.append(sent_s + copy_s * (piece / shards) + latency_s)
        started_s, ended_s = busy_s(timeline, -1 - shard, "fold")
        queue = Visits(np.sort(np.concatenate(came_s)), started_s, ended_s)
        assert (started_s[1:] >= ended_s[:-1]).all()
        assert obeys_little(queue, *window)
        assert mean_wait_s(queue) > 0.0


@pytest.mark.parametrize("backups", [0, 3])
def test_littles_law_holds_where_a_round_queues_at_the_server(backups):
    """Of the contributions that are taken; the server adds them up in order of arrival."""
    machine = closed(10, 0.09, link=Link(0.01, 50.0))
    simulation = Simulation(machine, BackupWorkers(backups), UNIT, 10)
    timeline = simulation.advance(folds=4_000)
    window = (0.1 * simulation.now_s, 0.9 * simulation.now_s)
    came_s = np.sort(np.concatenate([busy_s(timeline, who, "push")[1] for who in range(10)]))
    started_s, ended_s = busy_s(timeline, -1, "fold")
    assert (started_s[1:] >= ended_s[:-1]).all()
    queue = Visits(came_s, started_s, ended_s)
    assert obeys_little(queue, *window)
    assert mean_wait_s(queue) > 0.02


def test_visits_are_those_calculated_by_hand():
    """Copies of 0.25 over one half-duplex link, computing 1, folds of 0.5; two workers."""
    link = Link(bandwidth_bytes_per_s=4.0, sharing="fifo", duplex="half")
    machine = closed(2, 0.5, link=link, jitter=Jitter())
    queues = visits(Simulation(machine, "parameter_server", UNIT, 2).advance(folds=3))
    table = {
        name: list(zip(q.arrive_s.tolist(), q.start_s.tolist(), q.end_s.tolist(), strict=True))
        for name, q in queues.items()
    }
    assert table == {
        "fetch": [(0.0, 0.0, 0.25), (0.0, 0.25, 0.5), (2.0, 2.0, 2.25)],
        "compute": [(0.25, 0.25, 1.25), (0.5, 0.5, 1.5), (2.25, 2.25, 3.25)],
        "push": [(1.25, 1.25, 1.5), (1.5, 1.5, 1.75), (3.25, 3.25, 3.5)],
        "fold": [(1.5, 1.5, 2.0), (1.75, 2.0, 2.5), (3.5, 3.5, 4.0)],
    }
    assert queues["fold"].utilisation(0.0, 4.0) == 1.5 / 4.0
    assert queues["fold"].mean_present(1.5, 2.0) == 1.5


def test_every_throughput_lies_within_the_bounds():
    for jitter in (Jitter(), EXPONENTIAL, Jitter("lognormal", 1.0)):
        machine = closed(6, 0.2, jitter=jitter, heterogeneity_cv=0.3)
        simulation = Simulation(machine, "parameter_server", UNIT, 6)
        simulation.advance(folds=20_000)
        think_s = simulation._costs.compute_s
        least, most = throughput_bounds(think_s, [0.2])
        assert least <= 20_000 / simulation.now_s <= most


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("workers", "every"), [(1, 5), (4, 1), (16, 1), (16, 10), (64, 3)])
def test_a_round_of_averaging_takes_as_long_as_the_slowest_worker(workers, every):
    """Where messages cost nothing, a round ends when the last worker has computed."""
    machine = closed(workers, 0.0)
    simulation = Simulation(machine, Averaging(every=every), UNIT, workers, spans=False)
    simulation.advance(folds=8_000)
    expected = slowest_s(workers, every, 1.0)
    assert simulation.now_s / 8_000 == pytest.approx(expected, rel=0.01)
