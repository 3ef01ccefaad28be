"""Paper 1's timing runs: what its server does at other minibatches, and read in three ways.

The paper reports 14.3 h for one pass, and a speed-up of 3.2 on four GPUs that is of an earlier
system. From 14.3 h follows how many minibatches a second the four GPUs made, and then

- A: if the 3.2 holds here too, how long a GPU computed, and that the rest of its cycle was two
  copies of the parameters at some 6.4 GB/s;
- B: if instead the server was the limit, how long a fold took;
- C: at the rate paper 2 reports of the same card, with copies from pinned memory and a server
  that costs nothing, neither figure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.runs.executed import TimingConfig
from harness.simulator import Cluster, Device, Host, Jitter, Link, Server, Workload, load_cluster
from reproductions.paper1_async_asgd.experiments import CLUSTER, timing
from reproductions.paper1_async_asgd.presets import REPORTED

PAPER: dict[str, Any] = REPORTED["paper"]
HOURS: float = REPORTED["table3"]["one_pass"]
SPEEDUP: float = REPORTED["claims"]["speedup_4"]
MINIBATCHES = (64, 128, 256, 512, 1024, 2048)
LATER = 1024
"""The minibatch of the paper's own asynchronous SGD from its fourth pass on (section 4.3)."""
A_PASS = PAPER["frames"] / PAPER["minibatch"]
"""Minibatches of one pass."""
COUNTS: tuple[int, int] = (1, PAPER["workers"])
"""Workers whose speeds are compared."""
READINGS = ("A", "B", "C")
PINNED_BYTES_PER_S = 6.0e9  # PCI Express 2 with 16 lanes, as in the cluster file
K20_FLOPS_PER_S = 1.44e12  # paper 2's timings: 0.169 s for 243.3 GFLOP


def setting(workers: int, minibatch: int) -> str:
    """The name of a timing at this minibatch."""
    return f"timing_{workers}_of_{minibatch}"


def reading(name: str, workers: int) -> str:
    """The name of a timing of this reading."""
    return f"reading_{name}_{workers}"


def timings(seed: int) -> dict[str, TimingConfig]:
    """One worker and four, at every minibatch and in each reading."""
    return {**by_minibatch(seed), **of_readings(seed)}


def by_minibatch(seed: int) -> dict[str, TimingConfig]:
    """One worker and four at every minibatch."""
    return {setting(n, size): timing(seed, n, size) for size in MINIBATCHES for n in COUNTS}


def of_readings(seed: int) -> dict[str, TimingConfig]:
    """One worker and four in each reading."""
    layers = tuple(PAPER["layers"])
    return {
        reading(name, n): TimingConfig(machine, n, layers, PAPER["minibatch"], 2000, seed)
        for name, machine in clusters().items()
        for n in COUNTS
    }


def clusters() -> dict[str, Cluster]:
    """The server of each reading; nothing varies."""
    workload = Workload.of_network(PAPER["layers"], PAPER["minibatch"])
    per_s, workers = A_PASS / (3600.0 * HOURS), PAPER["workers"]
    cycle_s = workers / per_s
    compute_s = cycle_s * SPEEDUP / workers
    copies = 2.0 * workload.parameter_bytes
    k20 = Device(achieved_flops_per_s=K20_FLOPS_PER_S)
    return {
        "A": _server(Device(launch_s=compute_s), copies / (cycle_s - compute_s), 0.0),
        "B": _server(k20, PINNED_BYTES_PER_S, 1.0 / per_s),
        "C": _server(k20, PINNED_BYTES_PER_S, 0.0),
    }


def _server(device: Device, bytes_per_s: float, fold_s: float) -> Cluster:
    """The paper's server with these costs and no others."""
    file = load_cluster(CLUSTER)
    return replace(
        file,
        devices={file.workers[0].device: device},
        link=Link(bandwidth_bytes_per_s=bytes_per_s),
        host=Host(),
        server=Server(fold_s=fold_s, fold_traffic=0.0),
        jitter=Jitter(),
    )
