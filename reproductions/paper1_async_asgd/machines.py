"""The servers that paper 1 may have had, timed by what it prints.

The 3.2 is of an earlier system, of which neither minibatch nor the interval of pushes is printed.
"""

from __future__ import annotations

from dataclasses import replace

from harness.simulator.cluster import Cluster, Workload
from harness.simulator.costs import bare_throughput_per_s
from harness.simulator.protocols.parameter_server import ParameterServer
from reproductions.machine_scan import Figures, MachinesConfig, minibatches_per_s, simulate
from reproductions.paper import Subject
from reproductions.paper1_async_asgd.exhibits import OVER, SHARING
from reproductions.paper1_async_asgd.experiments import FOLDER, REPORTED

ITERATIONS = (5, 20)
"""Fewest and most iterations of the multi-pass baseline: see machines.toml."""
STEPS = 60
"""Folds of each worker for one rate."""


def time_machine(cluster: Cluster, run: Figures) -> Figures:
    """The printed timings on a machine: hours of both trainings, and the earlier speed-up."""
    link, paper = replace(cluster.link, sharing=[*SHARING][int(run["sharing"])]), REPORTED["paper"]
    machine, workers = replace(cluster, link=link), paper["workers"]

    def per_s(workers: int, minibatch: int, every: int = 1) -> float:
        protocol = ParameterServer(push_every=every, fetch_every=every)
        workload = Workload.of_network(paper["layers"], minibatch)
        return minibatches_per_s(simulate(machine, protocol, workload, workers, STEPS))

    a_pass = {n: paper["frames"] / n / 3600 / per_s(workers, n) for n in (64, 256, 1024)}
    begun = a_pass[64] / 4 + 2 * a_pass[256]  # a quarter of the data, then two iterations
    wanted = round((REPORTED["table3"]["multi_pass"] - begun) / a_pass[1024])
    further = min(max(wanted, ITERATIONS[0] - 3), ITERATIONS[1] - 3)
    size, every = round(run["minibatch"]), int(run["every"])
    four, one = (per_s(n, size, every) for n in (workers, 1))
    bare = bare_throughput_per_s(machine, Workload.of_network(paper["layers"], size))
    return {
        "one pass (h)": a_pass[256] * (1 + run["search"]),
        "many passes (h)": begun + further * a_pass[1024],
        "iterations": 3 + further,
        **dict(zip(OVER, (four / one, four / bare), strict=True)),
    }


def scan_machines(subject: Subject) -> MachinesConfig:
    """The scan; fewer machines at smoke scale."""
    count = 200 if subject.scale == "smoke" else 2000
    return MachinesConfig(FOLDER / "machines.toml", time_machine, count)
