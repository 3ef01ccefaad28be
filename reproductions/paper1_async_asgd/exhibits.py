"""Paper 1's figures and tables, from finished runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.judge.makers import UNKNOWN, Maker, Runs, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Interval, mean_ci
from harness.judge.utterances import rate_ci
from harness.store import Run
from harness.store.schema import TIMELINE
from reproductions.paper import Subject
from reproductions.paper1_async_asgd.experiments import (
    CHUNK_HOURS,
    OF_CHARACTERS,
    chunk_name,
    hours_factor,
)
from reproductions.paper1_async_asgd.presets import PRESETS, REPORTED
from reproductions.readings import (
    AS_FAR,
    curve_rows,
    errors_of_utterances,
    hashes,
    lengths_of_utterances,
    of_summary,
    time_at_epoch,
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
    """What an error is, in words."""
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
        "multi_pass": [of_summary(run, "virtual_s") for run in runs["multi_pass"]],
        "one_pass": [time_at_epoch(run, DEV_AVERAGE, 1.0) for run in runs["one_pass"]],
    }


def final_errors(name: str, test: str, runs: Sequence[Run]) -> np.ndarray:
    """Word errors ``[S, U]`` of what a method deploys.

    That is the baseline's last iterate, or the average after one pass.
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
    return Row.of(label, column, paper, rate, hashes(runs))


@unless_missing(UNKNOWN)
def _rate(method: str, test: str, runs: Sequence[Run]) -> Interval:
    return rate_ci(final_errors(method, test, runs), lengths_of_utterances(runs, test))


def _hours_row(name: str, runs: Sequence[Run], hours: Sequence[float]) -> Row:
    mean = mean_ci(hours)
    paper = REPORTED["table3"][name]
    return Row.of(LABELS[name], "hours", paper, mean, hashes(runs))


EXHIBITS = (
    Maker("p1.fig1", ("one_pass",), fig1, timelines=1),
    Maker("p1.fig2", ("hand", "adapt", "search"), fig2),
    Maker("p1.table1", tuple(map(chunk_name, CHUNK_HOURS)), table1),
    Maker("p1.table2", ("one_pass", "multi_pass"), table2),
    Maker("p1.table3", ("one_pass", "multi_pass"), table3),
    Maker("p1.fig3", ("one_pass", "multi_pass"), fig3),
)
