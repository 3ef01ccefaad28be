"""An epoch of paper 2's cluster, simulated from its first rounds."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from harness.simulator.cluster import Cluster, Workload
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation

SAMPLE = 100


class Epoch(NamedTuple):
    """Seconds of an epoch, and of them those in which a worker waits for or takes all-reduces."""

    total_s: float
    messages_s: float


def simulate_epoch(
    cluster: Cluster, protocol: Averaging, workload: Workload, workers: int
) -> Epoch:
    """One epoch with a barrier: its rounds are alike but for jitter, so that the first tell all."""
    parallel = cluster.parallel
    endless = replace(parallel, epoch_minibatches=0, epoch_s=0.0)
    machine = replace(cluster, parallel=endless)
    timeline = Simulation(machine, protocol, workload, workers).advance(folds=SAMPLE)
    rounds = parallel.epoch_minibatches / (workers * protocol.every)
    total_s = parallel.epoch_s + rounds * float(timeline.folds.time_s[-1]) / SAMPLE
    if workers == 1:
        return Epoch(total_s, 0.0)
    # From the end of a worker's computation to the fold, less the time of an average outside MPI.
    computing = timeline.spans.where(timeline.spans.kind == timeline.kinds.index("compute"))
    waits_s = np.repeat(timeline.folds.time_s, workers) - computing.end_s - parallel.average_s
    return Epoch(total_s, rounds * float(waits_s.mean()))
