"""All-reduces of many workers, message by message; a ring beside a loop over its messages."""

from __future__ import annotations

import numpy as np
import pytest

from harness.simulator.exchange import AllReduce
from harness.simulator.topology import Level, Network, wire

WORKERS = 1024
SIZE = 1.6e8
SWITCHED = Network((Level(1, 6e9, 1e-6),))
NODES = Network((Level(1, 4.5e11, 1e-6), Level(8, 5e10, 2e-6)))
READY = np.random.default_rng(0).exponential(0.01, WORKERS)


def test_a_ring_of_1024_workers(benchmark):
    """Two million messages; the aim is 10 ms a round."""
    reduce = AllReduce("ring", wire(SWITCHED, WORKERS))
    ends_s = benchmark(reduce.ends_s, READY, SIZE)
    idle_s = 2 * (WORKERS - 1) * (1e-6 + SIZE / WORKERS / 6e9)
    assert idle_s < ends_s.max() - READY.max() < 2 * idle_s
    if benchmark.stats is not None:
        messages = 2 * WORKERS * (WORKERS - 1)
        benchmark.extra_info |= {"messages_per_s": messages / benchmark.stats.stats.median}


@pytest.mark.parametrize("network", [SWITCHED, NODES], ids=["switched", "nodes"])
@pytest.mark.parametrize("algorithm", ["recursive-doubling", "rabenseifner", "hierarchical"])
def test_an_all_reduce_of_1024_workers_with_events(benchmark, algorithm, network):
    reduce = AllReduce(algorithm, wire(network, WORKERS), group=8)
    ends_s = benchmark(reduce.ends_s, READY, SIZE)
    assert ends_s.min() > READY.max()
