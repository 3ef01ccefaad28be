"""What paper 1 does not show and its reader would ask: time to target, staleness, more workers."""

from __future__ import annotations

import math

import numpy as np

from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci, ratio_ci
from harness.simulator.timeline_file import load_timeline
from reproductions.paper import Subject
from reproductions.paper1_async_asgd.exhibits import DEV_AVERAGE, DEV_ITERATE, LABELS
from reproductions.paper1_async_asgd.experiments import TIMED_WORKERS, VARIANTS, hours_factor
from reproductions.readings import AS_FAR, at_epoch, curve_rows, hashes, of_summary


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
    """How stale the contributions of the one-pass runs were."""
    counts = [
        np.bincount(load_timeline(run.path("timeline.parquet")).staleness())
        for run in runs["one_pass"]
    ]
    longest = max(map(len, counts))
    shares = [np.pad(100.0 * c / c.sum(), (0, longest - len(c))) for c in counts]
    rows: list[Row] = []
    for k in range(longest):
        mean = mean_ci([share[k] for share in shares])
        rows.append(Row.of("contributions", k, None, mean, hashes(runs["one_pass"])))
    return Exhibit(
        "p1.staleness",
        "figure",
        "Staleness of the contributions of four workers",
        tuple(rows),
        axes={"x": "staleness (folds)", "y": "contributions (%)"},
        draw={"as": "bars"},
        paper_label="Beyond the paper",
        note="Searches begin with every worker idle, so the first folds after one are fresher.",
    )


def workers(subject: Subject, runs: Runs) -> Exhibit:
    """Simulated speed-up of the server with up to 64 cards."""
    one = runs["timing_1"]
    rows: list[Row] = []
    for n in TIMED_WORKERS:
        many = runs[f"timing_{n}"]
        rate = [of_summary(run, "throughput_per_s") for run in many]
        for label, base in (
            ("over one worker", "throughput_per_s"),
            ("over one bare card", "bare_throughput_per_s"),
        ):
            ratio = ratio_ci(rate, [of_summary(run, base) for run in one])
            paper = 3.2 if n == 4 else None
            rows.append(Row.of(label, n, paper, ratio, hashes(one, many)))
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
    """What each default decides: development frame error after one pass, one choice changed."""
    rows: list[Row] = []
    for name in ("one_pass", *VARIANTS):
        errors = [100.0 * at_epoch(run, DEV_AVERAGE, 1.0) for run in runs[name]]
        mean = mean_ci(errors)
        label = "as reported (search)" if name == "one_pass" else name
        rows.append(Row.of(label, "frame error (%)", None, mean, hashes(runs[name])))
    return Exhibit(
        "p1.sensitivity",
        "table",
        "Development frame error (%) after one pass, one choice changed at a time",
        tuple(rows),
        paper_label="Beyond the paper",
    )


BEYOND = (
    Maker("p1.time-to-target", ("one_pass", "multi_pass"), time_to_target),
    Maker("p1.staleness", ("one_pass",), staleness, timelines=math.inf),
    Maker("p1.workers", tuple(f"timing_{n}" for n in TIMED_WORKERS), workers),
    Maker("p1.sensitivity", ("one_pass", *VARIANTS), sensitivity, smoke=False),
)
