"""Paper 1's figures and tables, and exhibits beyond it, from finished runs.

Beyond the paper are time to a target, staleness, more workers, the cost of a minibatch on the
simulated server with the speed-up that follows from it, and three readings of the paper's time and
speed-up, none of which explains all its figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.judge.builders import UNKNOWN, Runs, unless_missing
from harness.judge.results import Row
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.judge.utterances import rate_ci
from harness.simulator import Cluster, Workload, compute_seconds, load_cluster
from harness.simulator.costs import copy_seconds, fold_seconds
from harness.store import Run
from harness.store.schema import TIMELINE
from reproductions.makers import Content, Exhibits
from reproductions.paper import Subject
from reproductions.paper1_async_asgd.experiments import (
    A_PASS,
    CHUNK_HOURS,
    CLUSTER,
    COUNTS,
    HOURS,
    LATER,
    MINIBATCHES,
    OF_CHARACTERS,
    PRESETS,
    READINGS,
    REPORTED,
    SPEEDUP,
    TIMED_WORKERS,
    VARIANTS,
    chunk_name,
    hours_factor,
    reading,
    setting,
)
from reproductions.run_metrics import (
    AS_FAR,
    curve_rows,
    errors_of_utterances,
    hashes,
    lengths_of_utterances,
    summary_value,
    time_at_epoch,
    value_at_epoch,
)

DEV_AVERAGE, DEV_ITERATE = "dev_frame_error/average", "dev_frame_error/iterate"

LABELS = {
    "hand": "ASGD-hand",
    "adapt": "ASGD-adapt",
    "search": "ASGD-search",
    "one_pass": "asynchronous ASGD, one pass",
    "multi_pass": "asynchronous SGD, multiple passes",
}


THREE = ("hand", "adapt", "search")
BOTH = ("one_pass", "multi_pass")
EXHIBITS = Exhibits()


@EXHIBITS.figure(
    "p1.fig1",
    "Asynchronous ASGD on four workers: reads, gradients, folds and the average",
    ("one_pass",),
    ("simulated time (s)", "worker"),
    "Figure 1",
    "Each arrow leads from a worker's read to the fold of what it computed; "
    "the average is updated with every fold.",
    {"as": "timeline"},
    timelines=1,
)
def fig1(subject: Subject, runs: Runs) -> Content:
    """The framework, drawn from the simulated timeline that drove a run."""
    run = runs["one_pass"][0]
    run.path(TIMELINE)  # there is one to draw
    yield {"run": run.hash, "file": "timelines/p1.fig1.parquet", "average": "average updated"}


@EXHIBITS.figure(
    "p1.fig2",
    "Frame error on the development set for three learning-rate schedules",
    THREE,
    ("epochs through the subset", "frame error (%)"),
    "Figure 2",
    "The paper's caption says error on the subset that is trained on; drawn is the "
    "development set's, on which its text compares models.",
    {"as": "curves", "against": LABELS["search"]},
)
def fig2(subject: Subject, runs: Runs) -> Content:
    """Frame error of the averaged model against epochs, for the three schedules."""
    share = PRESETS[subject.scale].subset
    for name in THREE:
        yield from curve_rows(LABELS[name], runs[name], DEV_AVERAGE, 100.0, share)
    yield (
        f"The subset is {share:.0%} of the training set (the paper: 20%). Its curves survive only "
        "as text."
    )


@EXHIBITS.table(
    "p1.table1",
    "Error rate (%) after one pass, by size of the data chunk",
    tuple(map(chunk_name, CHUNK_HOURS)),
    "Table 1",
)
def table1(subject: Subject, runs: Runs) -> Content:
    """Error rates after one pass by chunk size."""
    for test in subject.corpus.tests:
        printed = REPORTED["table1"].get(test, [None] * len(CHUNK_HOURS))
        for hours, paper in zip(CHUNK_HOURS, printed, strict=True):
            group = runs[chunk_name(hours)]
            rate = 100.0 * _rate("one_pass", test, group)
            yield Row.from_interval(test, f"{hours} h", paper, rate, hashes(group))
    share = PRESETS[subject.scale].chunk
    yield f"A chunk of 1 h is 1/500 of the paper's data and 1/{1 / share:.0f} of ours."
    yield error_note(subject)


@EXHIBITS.table("p1.table2", "Error rate (%) on the clean and the noisy test set", BOTH, "Table 2")
def table2(subject: Subject, runs: Runs) -> Content:
    """Error rates of one pass of ASGD and of many passes of SGD."""
    for name in ("multi_pass", "one_pass"):
        for test in subject.corpus.tests:
            paper = REPORTED["table2"].get(test, {}).get(name)
            rate = 100.0 * _rate(name, test, runs[name])
            yield Row.from_interval(LABELS[name], test, paper, rate, hashes(runs[name]))
    yield error_note(subject)


@EXHIBITS.table(
    "p1.table3",
    "Training time (h) on four K20m, 500 h of speech",
    BOTH,
    "Table 3",
    "Simulated for the paper's network and corpus size. The number of passes is "
    "where the stop rule ended our own training. One-pass time holds the rate search.",
    simulated=("hours",),
)
def table3(subject: Subject, runs: Runs) -> Content:
    """Hours of training on the simulated server, for the paper's corpus and network."""
    factor, printed = hours_factor(subject), REPORTED["table3"]
    for name, times in training_seconds(runs).items():
        mean = mean_ci([factor * time_s for time_s in times])
        yield Row.from_interval(LABELS[name], "hours", printed[name], mean, hashes(runs[name]))


@EXHIBITS.figure(
    "p1.fig3",
    "Frame error on the development set: asynchronous SGD and asynchronous ASGD",
    BOTH,
    ("epochs through the training set", "frame error (%)"),
    "Figure 3",
    f"The paper's curves survive only as text. {AS_FAR}",
    {"as": "curves", "against": LABELS["multi_pass"]},
)
def fig3(subject: Subject, runs: Runs) -> Content:
    """Development frame error of both methods against epochs."""
    yield from curve_rows(LABELS["multi_pass"], runs["multi_pass"], DEV_ITERATE, 100.0)
    yield from curve_rows("asynchronous ASGD", runs["one_pass"], DEV_AVERAGE, 100.0)


def error_note(subject: Subject) -> str:
    """Note on the kind of errors that are counted."""
    if not subject.corpus.lm_text:
        measured = "isolated-word errors by the best-scoring word model"
    elif subject.corpus.name in OF_CHARACTERS:
        measured = "errors in characters too, decoded with a bigram of characters"
    else:
        measured = "errors in words decoded with a bigram"
    return (
        f"The paper counts character errors; measured here are {measured}. "
        "Intervals are over seeds and test utterances, of made speech over corpora too."
    )


def training_seconds(runs: Runs) -> dict[str, list[float]]:
    """Simulated seconds of each seed: all passes of the baseline, the first pass of ASGD."""
    return {
        "multi_pass": [summary_value(run, "virtual_s") for run in runs["multi_pass"]],
        "one_pass": [time_at_epoch(run, DEV_AVERAGE, 1.0) for run in runs["one_pass"]],
    }


def final_errors(name: str, test: str, runs: Sequence[Run]) -> np.ndarray:
    """Word errors ``[S, U]`` of a method's deployed model.

    It is the baseline's last iterate, or the average after one pass.
    """
    if name == "multi_pass":
        return errors_of_utterances(runs, lambda r: f"{test}/iterate/{r.summary['passes'] - 1}")
    return errors_of_utterances(runs, f"{test}/average/0")


@unless_missing(UNKNOWN)
def _rate(method: str, test: str, runs: Sequence[Run]) -> Interval:
    return rate_ci(final_errors(method, test, runs), lengths_of_utterances(runs, test))


@EXHIBITS.figure(
    "p1.time-to-target",
    "Frame error on the development set against time on the simulated server",
    BOTH,
    ("simulated time for 500 h of speech (h)", "frame error (%)"),
    note=AS_FAR,
)
def time_to_target(subject: Subject, runs: Runs) -> Content:
    """Development frame error against simulated hours, for both methods."""
    hours, base = hours_factor(subject), "multi_pass"
    yield from curve_rows(LABELS[base], runs[base], DEV_ITERATE, 100.0, hours=hours)
    yield from curve_rows("asynchronous ASGD", runs["one_pass"], DEV_AVERAGE, 100.0, hours=hours)


def _number_axes(x_ticks: Sequence[int], y_ticks: Sequence[float]) -> dict[str, Any]:
    """Drawing of curves over a number of workers, on logarithmic scales."""
    ticks = {"x_ticks": list(x_ticks), "y_ticks": list(y_ticks)}
    return {"as": "curves", "x_scale": "log", "y_scale": "log", **ticks}


@EXHIBITS.figure(
    "p1.staleness",
    "Mean staleness of contributions, by the number of workers",
    tuple(f"timing_{n}" for n in TIMED_WORKERS[1:]),
    ("workers", "staleness (folds)"),
    note="A worker whose gradient is in time with all others' misses one fold of each: n "
    "workers have n − 1.",
    draw=_number_axes(TIMED_WORKERS[1:], [1, 3, 7, 15, 31, 63]),
)
def staleness(subject: Subject, runs: Runs) -> Content:
    """Mean staleness of contributions with two to 64 workers."""
    for n in TIMED_WORKERS[1:]:
        group = runs[f"timing_{n}"]
        mean = mean_ci([summary_value(run, "mean_staleness") for run in group])
        yield Row.from_interval("simulated", n, None, mean, hashes(group))


def speedups(many: Sequence[Run], worker: Sequence[Run]) -> tuple[Interval, Interval]:
    """Throughput of workers over one worker's, and over one card's without a server."""
    rate, alone, bare = (
        [summary_value(run, f"{name}throughput_per_s") for run in group]
        for group, name in ((many, ""), (worker, ""), (worker, "bare_"))
    )
    return ratio_ci(rate, alone), ratio_ci(rate, bare)


OVER = ("over one worker", "over one bare card")
"""What `speedups` are over."""


@EXHIBITS.figure(
    "p1.workers",
    "Speed-up of asynchronous SGD with the number of workers, simulated",
    tuple(f"timing_{n}" for n in TIMED_WORKERS),
    ("workers", "speed-up"),
    note="The paper's 3.2 times on four GPUs is of an earlier system of its authors.",
    draw=_number_axes(TIMED_WORKERS, [0.5, 1, 2, 4, 8]),
)
def workers(subject: Subject, runs: Runs) -> Content:
    """Simulated speed-up of the server with up to 64 cards."""
    alone = runs["timing_1"]
    for n in TIMED_WORKERS:
        group, paper = runs[f"timing_{n}"], 3.2 if n == 4 else None
        for label, ratio in zip(OVER, speedups(group, alone), strict=True):
            yield Row.from_interval(label, n, paper, ratio, hashes(alone, group))


@EXHIBITS.table(
    "p1.sensitivity",
    "Development frame error (%) after one pass, one choice changed at a time",
    ("one_pass", *VARIANTS),
    smoke=False,
)
def sensitivity(subject: Subject, runs: Runs) -> Content:
    """Development frame error after one pass with one default changed at a time."""
    for name in ("one_pass", *VARIANTS):
        mean = mean_ci([100.0 * value_at_epoch(run, DEV_AVERAGE, 1.0) for run in runs[name]])
        label = "as reported (search)" if name == "one_pass" else name
        yield Row.from_interval(label, "frame error (%)", None, mean, hashes(runs[name]))


STEPS = {
    "fetch the model": "copy",
    "compute the gradient": "compute",
    "push the gradient": "copy",
    "fold it into the model": "fold",
}


def seconds(cluster: Cluster, workload: Workload) -> dict[str, float]:
    """Seconds of copying, computing and folding, without random variation."""
    return {
        "copy": copy_seconds(cluster, workload.parameter_bytes) + cluster.link.latency_s,
        "compute": compute_seconds(cluster, workload),
        "fold": fold_seconds(cluster, workload),
    }


@EXHIBITS.table(
    "p1.costs",
    "What one minibatch costs a worker of the simulated server, before it varies",
    tuple(setting(1, size) for size in (256, LATER)),
    note="From clusters/k20m-server.toml: the card's rate from timings that paper 2 published, "
    "PCI Express 2 with pinned memory, and the model's traffic through host memory. Paper 1 "
    "gives none of these. Folds of several workers wait for each other; copies do not.",
)
def costs(subject: Subject, runs: Runs) -> Content:
    """The four steps of section 2.2 in milliseconds, for the paper's two minibatches."""
    cluster = load_cluster(CLUSTER)
    for size in (REPORTED["paper"]["minibatch"], LATER):
        costs_s = seconds(cluster, Workload.of_network(REPORTED["paper"]["layers"], size))
        behind = hashes(runs[setting(1, size)])
        steps = {label: costs_s[kind] for label, kind in STEPS.items()}
        for label, duration in {**steps, "together": sum(steps.values())}.items():
            ms = 1e3 * duration
            yield Row(label, f"{size} frames (ms)", None, ms, (ms, ms), behind)


@EXHIBITS.figure(
    "p1.speedup-by-minibatch",
    "Speed-up of four workers by the size of the minibatch, simulated",
    tuple(setting(n, size) for size in MINIBATCHES for n in COUNTS),
    ("frames in a minibatch", "speed-up on four cards"),
    note="The paper's 3.2, of an earlier system, names no minibatch. Over a card without a "
    "server, a larger minibatch spreads the same copies over more work.",
    draw={"as": "curves", "x_scale": "log", "x_ticks": list(MINIBATCHES)},
)
def speedup_by_minibatch(subject: Subject, runs: Runs) -> Content:
    """Speed-up of four workers against the minibatch, over one worker and over one card."""
    for place, label in enumerate(OVER):
        for size in MINIBATCHES:
            alone, four = (runs[setting(n, size)] for n in COUNTS)
            ratio = speedups(four, alone)[place]
            yield Row.from_interval(label, size, None, ratio, hashes(alone, four))


READING_LABELS = {
    "A": "A: the speed-up of 3.2 is this system's",
    "B": "B: the server is the limit",
    "C": "C: paper 2's rate, pinned copies, a free server",
}
NEEDS = tuple(reading(name, n) for name in READINGS for n in COUNTS)


@EXHIBITS.table(
    "p1.readings",
    "Time of one pass and speed-up on four GPUs, as three readings of the paper have them",
    NEEDS,
    note="The speed-up is of an earlier system of the authors, and the hours may include "
    "the rate search and evaluation. A is made from both figures, B from the hours; C is "
    "made from neither.",
    simulated=("hours", "over one card", "over one worker"),
)
def readings(subject: Subject, runs: Runs) -> Content:
    """Hours of one pass and speed-up on four GPUs in each reading."""
    for name, label in READING_LABELS.items():
        alone, four = (runs[reading(name, n)] for n in COUNTS)
        rates = [summary_value(run, "throughput_per_s") for run in four]
        hours = mean_ci([A_PASS / rate / 3600.0 for rate in rates])
        yield Row.from_interval(label, "hours", HOURS, hours, hashes(four))
        over_worker, over_card = speedups(four, alone)
        for column, ratio in (("over one card", over_card), ("over one worker", over_worker)):
            yield Row.from_interval(label, column, SPEEDUP, ratio, hashes(alone, four))
