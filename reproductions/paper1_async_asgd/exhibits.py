"""Paper 1's figures and tables, and exhibits beyond it, from finished runs.

Beyond the paper are time to a target, staleness, more workers, the cost of a minibatch on the
simulated server with the speed-up that follows from it, and three readings of the paper's time and
speed-up, none of which explains all its figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.judge.builders import UNKNOWN, Maker, Runs, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.judge.utterances import rate_ci
from harness.simulator import Cluster, Workload, compute_seconds, load_cluster
from harness.simulator.costs import copy_seconds, fold_seconds
from harness.store import Run
from harness.store.schema import TIMELINE
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


def fig1(subject: Subject, runs: Runs) -> Exhibit:
    """The framework, drawn from the simulated timeline that drove a run."""
    run = runs["one_pass"][0]
    run.path(TIMELINE)  # there is one to draw
    return Exhibit(
        "p1.fig1",
        "figure",
        "Asynchronous ASGD on four workers: reads, gradients, folds and the average",
        axes={"x": "simulated time (s)", "y": "worker"},
        draw={
            "as": "timeline",
            "run": run.hash,
            "file": "timelines/p1.fig1.parquet",
            "average": "average updated",
        },
        paper_label="Figure 1",
        note="Each arrow leads from a worker's read to the fold of what it computed; "
        "the average is updated with every fold.",
    )


def fig2(subject: Subject, runs: Runs) -> Exhibit:
    """Frame error of the averaged model against epochs, for the three schedules."""
    share = PRESETS[subject.scale].subset
    rows = [
        row
        for name in ("hand", "adapt", "search")
        for row in curve_rows(LABELS[name], runs[name], DEV_AVERAGE, 100.0, share)
    ]
    return Exhibit(
        "p1.fig2",
        "figure",
        "Frame error on the development set for three learning-rate schedules",
        tuple(rows),
        axes={"x": "epochs through the subset", "y": "frame error (%)"},
        draw={"as": "curves", "against": LABELS["search"]},
        paper_label="Figure 2",
        note="The paper's caption says error on the subset that is trained on; drawn is the "
        "development set's, on which its text compares models. The subset is "
        f"{share:.0%} of the training set (the paper: 20%). Its curves survive only as text.",
    )


def table1(subject: Subject, runs: Runs) -> Exhibit:
    """Error rates after one pass by chunk size."""
    rows: list[Row] = []
    for test in subject.corpus.tests:
        printed = REPORTED["table1"].get(test, [None] * len(CHUNK_HOURS))
        for hours, paper in zip(CHUNK_HOURS, printed, strict=True):
            group = runs[chunk_name(hours)]
            rows.append(_error_row(test, f"{hours} h", test, "one_pass", paper, group))
    share = PRESETS[subject.scale].chunk
    return Exhibit(
        "p1.table1",
        "table",
        "Error rate (%) after one pass, by size of the data chunk",
        tuple(rows),
        paper_label="Table 1",
        note=f"A chunk of 1 h is 1/500 of the paper's data and 1/{1 / share:.0f} of ours. "
        + error_note(subject),
    )


def table2(subject: Subject, runs: Runs) -> Exhibit:
    """Error rates of one pass of ASGD and of many passes of SGD."""
    rows = [
        _error_row(LABELS[name], test, test, name,
                   REPORTED["table2"].get(test, {}).get(name), runs[name])
        for name in ("multi_pass", "one_pass")
        for test in subject.corpus.tests
    ]  # fmt: skip
    return Exhibit(
        "p1.table2",
        "table",
        "Error rate (%) on the clean and the noisy test set",
        tuple(rows),
        paper_label="Table 2",
        note=error_note(subject),
    )


def table3(subject: Subject, runs: Runs) -> Exhibit:
    """Hours of training on the simulated server, for the paper's corpus and network."""
    factor = hours_factor(subject)
    rows = [
        _hours_row(name, runs[name], [factor * seconds for seconds in times])
        for name, times in training_seconds(runs).items()
    ]
    return Exhibit(
        "p1.table3",
        "table",
        "Training time (h) on four K20m, 500 h of speech",
        tuple(rows),
        paper_label="Table 3",
        note="Simulated for the paper's network and corpus size. The number of passes is "
        "where the stop rule ended our own training. One-pass time holds the rate search.",
    )


def fig3(subject: Subject, runs: Runs) -> Exhibit:
    """Development frame error of both methods against epochs."""
    rows = [
        *curve_rows(LABELS["multi_pass"], runs["multi_pass"], DEV_ITERATE, 100.0),
        *curve_rows("asynchronous ASGD", runs["one_pass"], DEV_AVERAGE, 100.0),
    ]
    return Exhibit(
        "p1.fig3",
        "figure",
        "Frame error on the development set: asynchronous SGD and asynchronous ASGD",
        tuple(rows),
        axes={"x": "epochs through the training set", "y": "frame error (%)"},
        draw={"as": "curves", "against": LABELS["multi_pass"]},
        paper_label="Figure 3",
        note=f"The paper's curves survive only as text. {AS_FAR}",
    )


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


def _error_row(
    label: str,
    column: str,
    test: str,
    method: str,
    paper: float | None,
    runs: Sequence[Run],
) -> Row:
    rate = 100.0 * _rate(method, test, runs)
    return Row.from_interval(label, column, paper, rate, hashes(runs))


@unless_missing(UNKNOWN)
def _rate(method: str, test: str, runs: Sequence[Run]) -> Interval:
    return rate_ci(final_errors(method, test, runs), lengths_of_utterances(runs, test))


def _hours_row(name: str, runs: Sequence[Run], hours: Sequence[float]) -> Row:
    mean = mean_ci(hours)
    paper = REPORTED["table3"][name]
    return Row.from_interval(LABELS[name], "hours", paper, mean, hashes(runs))


EXHIBITS = (
    Maker("p1.fig1", ("one_pass",), fig1, timelines=1),
    Maker("p1.fig2", ("hand", "adapt", "search"), fig2),
    Maker("p1.table1", tuple(map(chunk_name, CHUNK_HOURS)), table1),
    Maker("p1.table2", ("one_pass", "multi_pass"), table2),
    Maker("p1.table3", ("one_pass", "multi_pass"), table3),
    Maker("p1.fig3", ("one_pass", "multi_pass"), fig3),
)


def time_to_target(subject: Subject, runs: Runs) -> Exhibit:
    """Development frame error against simulated hours, for both methods."""
    hours = hours_factor(subject)
    rows = [
        *curve_rows(LABELS["multi_pass"], runs["multi_pass"], DEV_ITERATE, 100.0, hours=hours),
        *curve_rows("asynchronous ASGD", runs["one_pass"], DEV_AVERAGE, 100.0, hours=hours),
    ]
    return Exhibit(
        "p1.time-to-target",
        "figure",
        "Frame error on the development set against time on the simulated server",
        tuple(rows),
        axes={"x": "simulated time for 500 h of speech (h)", "y": "frame error (%)"},
        draw={"as": "curves"},
        paper_label="Beyond the paper",
        note=AS_FAR,
    )


def staleness(subject: Subject, runs: Runs) -> Exhibit:
    """Mean staleness of contributions with two to 64 workers."""
    del subject
    rows: list[Row] = []
    for n in TIMED_WORKERS[1:]:
        group = runs[f"timing_{n}"]
        mean = mean_ci([summary_value(run, "mean_staleness") for run in group])
        rows.append(Row.from_interval("simulated", n, None, mean, hashes(group)))
    return Exhibit(
        "p1.staleness",
        "figure",
        "Mean staleness of contributions, by the number of workers",
        tuple(rows),
        axes={"x": "workers", "y": "staleness (folds)"},
        draw={
            "as": "curves",
            "x_scale": "log",
            "y_scale": "log",
            "x_ticks": list(TIMED_WORKERS[1:]),
            "y_ticks": [1, 3, 7, 15, 31, 63],
        },
        paper_label="Beyond the paper",
        note="A worker whose gradient is in time with all others' misses one fold of each: n "
        "workers have n − 1.",
    )


def workers(subject: Subject, runs: Runs) -> Exhibit:
    """Simulated speed-up of the server with up to 64 cards."""
    one = runs["timing_1"]
    rows: list[Row] = []
    for n in TIMED_WORKERS:
        many = runs[f"timing_{n}"]
        rate = [summary_value(run, "throughput_per_s") for run in many]
        for label, base in (
            ("over one worker", "throughput_per_s"),
            ("over one bare card", "bare_throughput_per_s"),
        ):
            ratio = ratio_ci(rate, [summary_value(run, base) for run in one])
            paper = 3.2 if n == 4 else None
            rows.append(Row.from_interval(label, n, paper, ratio, hashes(one, many)))
    return Exhibit(
        "p1.workers",
        "figure",
        "Speed-up of asynchronous SGD with the number of workers, simulated",
        tuple(rows),
        axes={"x": "workers", "y": "speed-up"},
        draw={
            "as": "curves",
            "x_scale": "log",
            "y_scale": "log",
            "x_ticks": list(TIMED_WORKERS),
            "y_ticks": [0.5, 1, 2, 4, 8],
        },
        paper_label="Beyond the paper",
        note="The paper's 3.2 times on four GPUs is of an earlier system of its authors.",
    )


def sensitivity(subject: Subject, runs: Runs) -> Exhibit:
    """Development frame error after one pass with one default changed at a time."""
    rows: list[Row] = []
    for name in ("one_pass", *VARIANTS):
        errors = [100.0 * value_at_epoch(run, DEV_AVERAGE, 1.0) for run in runs[name]]
        mean = mean_ci(errors)
        label = "as reported (search)" if name == "one_pass" else name
        rows.append(Row.from_interval(label, "frame error (%)", None, mean, hashes(runs[name])))
    return Exhibit(
        "p1.sensitivity",
        "table",
        "Development frame error (%) after one pass, one choice changed at a time",
        tuple(rows),
        paper_label="Beyond the paper",
    )


BEYOND = (
    Maker("p1.time-to-target", ("one_pass", "multi_pass"), time_to_target),
    Maker("p1.staleness", tuple(f"timing_{n}" for n in TIMED_WORKERS[1:]), staleness),
    Maker("p1.workers", tuple(f"timing_{n}" for n in TIMED_WORKERS), workers),
    Maker("p1.sensitivity", ("one_pass", *VARIANTS), sensitivity, smoke=False),
)

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
            rate = [summary_value(run, "throughput_per_s") for run in four]
            ratio = ratio_ci(rate, [summary_value(run, base) for run in one])
            rows.append(Row.from_interval(label, size, None, ratio, hashes(one, four)))
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

READING_LABELS = {
    "A": "A: the speed-up of 3.2 is this system's",
    "B": "B: the server is the limit",
    "C": "C: paper 2's rate, pinned copies, a free server",
}


def readings(subject: Subject, runs: Runs) -> Exhibit:
    """Hours of one pass and speed-up on four GPUs in each reading."""
    rows: list[Row] = []
    for name, label in READING_LABELS.items():
        one, four = (runs[reading(name, n)] for n in COUNTS)
        rate = [summary_value(run, "throughput_per_s") for run in four]
        hours = mean_ci([A_PASS / each / 3600.0 for each in rate])
        rows.append(Row.from_interval(label, "hours", HOURS, hours, hashes(four)))
        for column, base in (
            ("over one card", "bare_throughput_per_s"),
            ("over one worker", "throughput_per_s"),
        ):
            ratio = ratio_ci(rate, [summary_value(run, base) for run in one])
            rows.append(Row.from_interval(label, column, SPEEDUP, ratio, hashes(one, four)))
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


NEEDS = tuple(reading(name, n) for name in READINGS for n in COUNTS)

UNDERDETERMINED = (Maker("p1.readings", NEEDS, readings),)
