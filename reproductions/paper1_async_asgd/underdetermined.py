"""Three readings of paper 1's time and speed-up, simulated: nothing joins all its figures.

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

from harness.execution.runs.timing import TimingConfig
from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci, ratio_ci
from harness.simulator import Cluster, Device, Host, Jitter, Link, Server, Workload, load_cluster
from reproductions.paper import Subject
from reproductions.paper1_async_asgd.experiments import CLUSTER, REPORTED
from reproductions.readings import hashes, of_summary

PAPER = REPORTED["paper"]
HOURS: float = REPORTED["table3"]["one_pass"]
SPEEDUP: float = REPORTED["claims"]["speedup_4"]
MINIBATCHES = PAPER["frames"] / PAPER["minibatch"]
PINNED_BYTES_PER_S = 6.0e9  # PCI Express 2 with 16 lanes, as in the cluster file
K20_FLOPS_PER_S = 1.44e12  # paper 2's timings: 0.169 s for 243.3 GFLOP

LABELS = {
    "A": "A: the speed-up of 3.2 is this system's",
    "B": "B: the server is the limit",
    "C": "C: paper 2's rate, pinned copies, a free server",
}


def clusters() -> dict[str, Cluster]:
    """The server of each reading; nothing varies."""
    workload = Workload.of_network(PAPER["layers"], PAPER["minibatch"])
    per_s, workers = MINIBATCHES / (3600.0 * HOURS), PAPER["workers"]
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


def timings(seed: int) -> dict[str, TimingConfig]:
    """One worker and four in each reading."""
    layers = tuple(PAPER["layers"])
    return {
        f"reading_{name}_{n}": TimingConfig(machine, n, layers, PAPER["minibatch"], 2000, seed)
        for name, machine in clusters().items()
        for n in (1, PAPER["workers"])
    }


def readings(subject: Subject, runs: Runs) -> Exhibit:
    """Hours of one pass and speed-up on four GPUs in each reading."""
    rows: list[Row] = []
    for name, label in LABELS.items():
        one, four = runs[f"reading_{name}_1"], runs[f"reading_{name}_{PAPER['workers']}"]
        rate = [of_summary(run, "throughput_per_s") for run in four]
        hours = mean_ci([MINIBATCHES / each / 3600.0 for each in rate])
        rows.append(Row(label, "hours", HOURS, hours.estimate, hours.ci95, hashes(four)))
        for column, base in (
            ("over one card", "bare_throughput_per_s"),
            ("over one worker", "throughput_per_s"),
        ):
            ratio = ratio_ci(rate, [of_summary(run, base) for run in one])
            rows.append(Row(label, column, SPEEDUP, ratio.estimate, ratio.ci95, hashes(one, four)))
    return Exhibit(
        "p1.readings",
        "table",
        "Time of one pass and speed-up on four GPUs, as three readings of the paper have them",
        tuple(rows),
        paper_label="Beyond the paper",
        note="The speed-up is of an earlier system of the authors, and the hours may include "
        "the rate search and evaluation. A is made from both figures, B from the hours; C is "
        "made from neither.",
    )


NEEDS = tuple(f"reading_{name}_{n}" for name in LABELS for n in (1, PAPER["workers"]))
UNDERDETERMINED = (Maker("p1.readings", NEEDS, readings),)
