"""Folds a second beside SimPy and plain walks of the same system, and all-reduces beside NumPy."""

import numba
import numpy as np
import pytest
import simpy

from harness.simulator.cluster import Cluster, Device, Jitter, Server, WorkerGroup, Workload
from harness.simulator.collectives import AllReduce
from harness.simulator.costs import computation_s, costs_of
from harness.simulator.network import Level, Network, wire
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation
from tests.harness.simulator.simpy_network import NetworkedModel

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
FOLDS, SEGMENT, SIMPY_FOLDS = 100_000, 25_000, 4000
WORKERS, SIZE = 1024, 1.6e8
NODES = Network((Level(1, 4.5e11, 1e-6), Level(8, 5e10, 2e-6)))
READY = np.random.default_rng(0).exponential(0.01, WORKERS)


def cluster_of(workers: int, network: Network | None = None) -> Cluster:
    """Exponential computing of mean 1 s, and a server busy for half of the time."""
    return Cluster(
        name="bench", devices={"unit": Device(1.0)}, workers=(WorkerGroup(workers, "unit"),),
        server=Server(fold_s=0.5 / workers), jitter=Jitter("shifted-exponential", 1.0),
        network=network,
    )  # fmt: skip


@numba.njit
def draw(costs, drawn: np.ndarray) -> None:
    """Fill ``drawn`` [N, S] with the durations of every worker's first S computations."""
    for worker in range(drawn.shape[0]):
        for step in range(drawn.shape[1]):
            drawn[worker, step] = computation_s(costs, worker, step)


class SimpyServer:
    """A parameter server of SimPy whose durations were drawn beforehand."""

    def __init__(self, cluster: Cluster, workers: int) -> None:
        costs = costs_of(cluster, JOB, workers, 0)
        drawn = np.empty((workers, 12 * SIMPY_FOLDS // workers + 60))
        draw(costs, drawn)
        self.env, self.record = simpy.Environment(), []
        self.server, self.fold_s = simpy.Resource(self.env), costs.fold_s
        for worker, durations in enumerate(drawn.tolist()):
            self.env.process(self.work(worker, durations))

    def work(self, worker, durations):
        for seconds in durations:
            yield self.env.timeout(seconds)
            with self.server.request() as turn:
                yield turn
                yield self.env.timeout(self.fold_s)
            self.record.append((self.env.now, worker))

    def run(self) -> None:
        """About `SIMPY_FOLDS` more folds."""
        end = len(self.record) + SIMPY_FOLDS
        while len(self.record) < end:
            self.env.step()


@pytest.mark.parametrize("workers", [4, 1000])
def test_the_parameter_server_is_fast_and_its_sequence_is_simpys(compare, workers):
    cluster = cluster_of(workers)
    simulation = Simulation(cluster, "parameter_server", JOB, workers, spans=False)
    model = SimpyServer(cluster, workers)
    segment = simulation.advance(folds=SIMPY_FOLDS)
    model.run()
    rows = zip(segment.folds.time_s.tolist(), segment.folded().worker.tolist(), strict=True)
    assert list(rows) == model.record[:SIMPY_FOLDS]

    def advance() -> None:
        for _ in range(FOLDS // SEGMENT):
            simulation.advance(folds=SEGMENT)

    # 25 times as many folds in at most half of the time: 50 times SimPy.
    compare(advance, model.run, at_most=0.5, rounds=3)


def test_fair_links_are_fast_and_their_sequence_is_simpys(compare):
    levels = (Level(1, 200.0, 1e-3), Level(8, 400.0, 1e-3))
    network = Network(levels, "fair", server=Level(1, 24.0 * 50))
    cluster = cluster_of(50, network)
    model = NetworkedModel(cluster, JOB, 50, 0)
    expected = model.run(100)
    simulation = Simulation(cluster, "parameter_server", JOB, 50, spans=False)
    segment = simulation.advance(folds=100)
    assert segment.folded().worker.tolist() == [row[1] for row in expected]
    compare(
        lambda: simulation.advance(folds=10_000),
        lambda: NetworkedModel(cluster, JOB, 50, 0).run(400),
        at_most=0.25,
        rounds=3,
    )


def numpy_ring() -> np.ndarray:
    """Ends of a ring all-reduce: a worker sends when it and its neighbour are ready."""
    ready_s = READY
    for _ in range(2 * (WORKERS - 1)):
        ready_s = np.maximum(ready_s, np.roll(ready_s, 1)) + (1e-6 + SIZE / WORKERS / 6e9)
    return ready_s


def test_a_ring_of_1024_workers_beside_numpys_pass(compare):
    reduce = AllReduce("ring", wire(Network((Level(1, 6e9, 1e-6),)), WORKERS))
    np.testing.assert_allclose(numpy_ring().max(), reduce.ends_s(READY, SIZE).max(), rtol=1e-9)
    compare(lambda: reduce.ends_s(READY, SIZE), numpy_ring, at_most=0.2)


def test_an_all_reduce_of_1024_workers_with_events(compare):
    reduce = AllReduce("recursive-doubling", wire(NODES, WORKERS))
    compare(lambda: reduce.ends_s(READY, SIZE), numpy_ring, at_most=1.4)


def test_a_round_of_averaging_on_1024_workers(compare):
    cluster = Cluster(
        "bench", {"unit": Device(1.0)}, (WorkerGroup(WORKERS, "unit"),),
        jitter=Jitter("lognormal", 0.1), network=NODES,
    )  # fmt: skip
    job = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=SIZE)
    simulation = Simulation(cluster, Averaging(10, collective="ring"), job, WORKERS)
    compare(lambda: simulation.advance(folds=1), numpy_ring, at_most=0.4)
