"""All-reduces of many workers, message by message; each beside NumPy's pass over a ring.

``ratio`` is the time over that of a ring whose 2 (N - 1) rounds are one vector operation each,
all links equal: it knows no contention and records nothing.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from harness.simulator import Cluster, Device, Jitter, Simulation, WorkerGroup, Workload
from harness.simulator.collectives import AllReduce
from harness.simulator.network import Level, Network, wire
from harness.simulator.protocols.averaging import Averaging

pytestmark = pytest.mark.benchmark(timer=time.process_time)

WORKERS = 1024
SIZE = 1.6e8
SWITCHED = Network((Level(1, 6e9, 1e-6),))
NODES = Network((Level(1, 4.5e11, 1e-6), Level(8, 5e10, 2e-6)))
READY = np.random.default_rng(0).exponential(0.01, WORKERS)


def numpy_ring():
    """When everybody has everything: a worker sends when it and its neighbour are there."""
    at_s = READY
    for _ in range(2 * (WORKERS - 1)):
        at_s = np.maximum(at_s, np.roll(at_s, 1)) + (1e-6 + SIZE / WORKERS / 6e9)
    return at_s


def test_a_ring_of_1024_workers(benchmark, over):
    """Two million messages; the aim is 10 ms a round."""
    reduce = AllReduce("ring", wire(SWITCHED, WORKERS))
    ends_s = benchmark(reduce.ends_s, READY, SIZE)
    idle_s = 2 * (WORKERS - 1) * (1e-6 + SIZE / WORKERS / 6e9)
    assert idle_s < ends_s.max() - READY.max() < 2 * idle_s
    np.testing.assert_allclose(numpy_ring().max(), ends_s.max(), rtol=1e-9)
    over(numpy_ring)
    if benchmark.stats is not None:
        messages = 2 * WORKERS * (WORKERS - 1)
        benchmark.extra_info |= {"messages_per_s": messages / benchmark.stats.stats.median}


@pytest.mark.parametrize("network", [SWITCHED, NODES], ids=["switched", "nodes"])
@pytest.mark.parametrize("algorithm", ["recursive-doubling", "rabenseifner", "hierarchical"])
def test_an_all_reduce_of_1024_workers_with_events(benchmark, over, algorithm, network):
    reduce = AllReduce(algorithm, wire(network, WORKERS), group=8)
    ends_s = benchmark(reduce.ends_s, READY, SIZE)
    assert ends_s.min() > READY.max()
    over(numpy_ring)
    messages = reduce.messages(READY, SIZE)
    sent, last_s = messages.size_bytes.sum(), ends_s.max()
    noted = {"messages": len(messages.rows), "bytes": float(sent), "end_s": float(last_s)}
    benchmark.extra_info["counts"] = noted


@pytest.mark.parametrize("collective", ["ring", "hierarchical"])
def test_a_round_of_averaging_on_1024_workers(benchmark, over, collective):
    """Ten minibatches of each with jitter, the all-reduce and the record of it all."""
    cluster = Cluster(
        "bench",
        {"unit": Device(1.0)},
        (WorkerGroup(WORKERS, "unit"),),
        jitter=Jitter("lognormal", 0.1),
        network=NODES,
    )
    job = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=SIZE)
    simulation = Simulation(cluster, Averaging(10, collective=collective), job, WORKERS)
    timeline = benchmark(simulation.advance, folds=1)
    assert len(timeline.folded()) == WORKERS
    over(numpy_ring)
