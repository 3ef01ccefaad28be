"""What a minibatch costs on the simulated server, and which speed-up follows from it."""

from __future__ import annotations

from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import ratio_ci
from harness.simulator import Cluster, Workload, compute_seconds, load_cluster
from harness.simulator.costs import copy_seconds, fold_seconds
from reproductions.paper import Subject
from reproductions.paper1_async_asgd.experiments import CLUSTER
from reproductions.paper1_async_asgd.presets import REPORTED
from reproductions.paper1_async_asgd.timings import COUNTS, LATER, MINIBATCHES, setting
from reproductions.readings import hashes, of_summary

STEPS = {
    "fetch the model": "copy",
    "compute the gradient": "compute",
    "push the gradient": "copy",
    "fold it into the model": "fold",
}


def seconds(cluster: Cluster, workload: Workload) -> dict[str, float]:
    """What copying, computing and folding take before they vary, in seconds."""
    return {
        "copy": copy_seconds(cluster, workload.parameter_bytes) + cluster.link.latency_s,
        "compute": compute_seconds(cluster, workload),
        "fold": fold_seconds(cluster, workload),
    }


def costs(subject: Subject, runs: Runs) -> Exhibit:
    """The four steps of section 2.2 in milliseconds, for the paper's two minibatches."""
    cluster, rows = load_cluster(CLUSTER), list[Row]()
    for size in (REPORTED["paper"]["minibatch"], LATER):
        found = seconds(cluster, Workload.of_network(REPORTED["paper"]["layers"], size))
        behind = hashes(runs[setting(1, size)])
        steps = {label: found[kind] for label, kind in STEPS.items()}
        for label, duration in {**steps, "together": sum(steps.values())}.items():
            ms = 1e3 * duration
            rows.append(Row(label, f"{size} frames (ms)", None, ms, (ms, ms), behind))
    return Exhibit(
        "p1.costs",
        "table",
        "What one minibatch costs a worker of the simulated server, before it varies",
        tuple(rows),
        paper_label="Beyond the paper",
        note="From clusters/k20m-server.toml: the card's rate from timings that paper 2 published, "
        "PCI Express 2 with pinned memory, and the model's traffic through host memory. Paper 1 "
        "gives none of these. Folds of several workers wait for each other; copies do not.",
    )


def speedup_by_minibatch(subject: Subject, runs: Runs) -> Exhibit:
    """Speed-up of four workers against the minibatch, over one worker and over one card."""
    rows: list[Row] = []
    for label, base in (
        ("over one worker", "throughput_per_s"),
        ("over one bare card", "bare_throughput_per_s"),
    ):
        for size in MINIBATCHES:
            one, four = (runs[setting(n, size)] for n in COUNTS)
            rate = [of_summary(run, "throughput_per_s") for run in four]
            ratio = ratio_ci(rate, [of_summary(run, base) for run in one])
            rows.append(Row.of(label, size, None, ratio, hashes(one, four)))
    return Exhibit(
        "p1.speedup-by-minibatch",
        "figure",
        "Speed-up of four workers by the size of the minibatch, simulated",
        tuple(rows),
        axes={"x": "frames in a minibatch", "y": "speed-up on four cards"},
        draw={"as": "curves", "x_scale": "log", "x_ticks": list(MINIBATCHES)},
        paper_label="Beyond the paper",
        note="The paper's 3.2, of an earlier system, names no minibatch. Over a card without a "
        "server, a larger minibatch spreads the same copies over more work.",
    )


COSTS = (
    Maker("p1.costs", tuple(setting(1, size) for size in (256, LATER)), costs),
    Maker(
        "p1.speedup-by-minibatch",
        tuple(setting(n, size) for size in MINIBATCHES for n in COUNTS),
        speedup_by_minibatch,
    ),
)
