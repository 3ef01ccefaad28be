"""How often the intervals of long runs hold the truth: a cluster, simulated under many seeds.

`python -m tests.harness.simulator.coverage CLUSTER.toml WORKERS SEEDS` prints for how many seeds
the interval of throughput holds what all seeds together come to (so many are needed that their mean
is known much better than one run), how wide intervals are, and how far the farthest run is off.
"""

import sys

import numpy as np

from harness.simulator.cluster import load_cluster
from harness.simulator.simulation import Simulation
from harness.simulator.steady import horizon_of, long_run

FIRST_SEED = 1000


def intervals(cluster, protocol, workers, seeds):
    """[S, 3] throughput, its interval's ends, and [S] folds, of so many seeds."""
    rows, folds = [], []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        simulation = Simulation(cluster, protocol, cluster.workload, workers, seed, spans=False)
        limits = horizon_of(cluster, simulation.protocol, cluster.workload, workers)
        run = long_run(simulation, limits.most, period=limits.period, least_s=limits.least_s)
        rows.append(run.throughput_per_s)
        folds.append(run.folds)
    return np.array(rows), np.array(folds)


def main(path, workers, seeds):
    found, folds = intervals(load_cluster(path), "parameter_server", int(workers), int(seeds))
    value, low, high = found.T
    truth = np.average(value, weights=folds)
    inside = (low <= truth) & (truth <= high)
    off, width = np.abs(value / truth - 1.0), (high - low) / 2.0 / value
    print(f"{inside.sum()} of {len(value)} intervals hold {truth:.5g}/s")
    print(f"half as wide as {width.mean():.2%} of it; the farthest is {off.max():.2%} off")
    print(f"{np.median(folds):,.0f} folds, the median")


if __name__ == "__main__":
    main(*sys.argv[1:])
