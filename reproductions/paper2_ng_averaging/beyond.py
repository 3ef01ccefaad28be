"""What paper 2 does not show: other ways to agree on a model, and how the rates were found."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.judge.makers import Maker, Runs, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import ratio_ci
from harness.store import Run
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper2_ng_averaging import errors
from reproductions.paper2_ng_averaging.experiments import SEARCHED
from reproductions.paper2_ng_averaging.rates import AROUND, tuned
from reproductions.readings import curve_rows, hashes, of_summary

DEV = "dev_frame_error/iterate"
LABELS = {
    "ng_16": "model averaging every 10",
    "overlapped": "the same, overlapped with computing",
    "restarted": "NG state restarted each pass",
    "restarted_each": "NG state restarted each round",
    "bmuf": "block momentum 0.875 (BMUF)",
    "outer": "outer Nesterov momentum (DiLoCo)",
    "sgd_16": "SGD, model averaging every 10",
    "gradients": "SGD, gradient averaging every minibatch",
    "unscaled": "rate of one GPU, unscaled",
    "scaled": "rate of one GPU times 16",
}
CURVES = {
    "sgd_1": "SGD, 1 GPU",
    "sgd_16": "SGD, 16 GPUs",
    "ng_1": "NG-SGD, 1 GPU",
    "ng_16": "NG-SGD, 16 GPUs",
}


def others(subject: Subject, runs: Runs) -> Exhibit:
    """Other algorithms on 16 workers, all else shared."""
    rows: list[Row] = []
    for setting, label in LABELS.items():
        rows += [
            errors.row(subject, runs, setting, test, label, errors.label_of(test))
            for test in (*errors.main_tests(subject), errors.ALL)
        ]
        seconds = [
            [of_summary(run, "virtual_s") for run in runs[name]] for name in (setting, "ng_16")
        ]
        ratio = ratio_ci(*seconds)
        behind = hashes(runs[setting], runs["ng_16"])
        rows.append(Row.of(label, "time", None, ratio, behind))
    return Exhibit(
        "p2.others",
        "table",
        "Word error rate (%) on 16 GPUs, and simulated time over that of the first row",
        tuple(rows),
        paper_label="Beyond the paper",
        note="NG-SGD unless a row says SGD. All rows share data, initial parameters and schedule, "
        "and differ in what their name says. SGD, gradient averaging and both momenta have a rate "
        "of their own, the last two rows one GPU's as it is and times 16, the others that of the "
        "first row; momenta are as published. The simulated minibatch takes as long whatever the "
        "algorithm: what natural gradient itself costs is not in these times.",
    )


def training(subject: Subject, runs: Runs) -> Exhibit:
    """Development frame error against passes, with one worker and with 16."""
    (share,) = {run.config["stages"][0]["share"] for run in runs["ng_1"]}
    rows = [
        row
        for name, label in CURVES.items()
        for row in curve_rows(label, runs[name], DEV, 100.0, share)
    ]
    return Exhibit(
        "p2.training",
        "figure",
        "Frame error on the development set while training",
        tuple(rows),
        axes={"x": "epochs", "y": "frame error (%)"},
        draw={"as": "curves"},
        paper_label="Beyond the paper",
    )


def rates(subject: Subject, runs: Runs) -> Exhibit:
    """Development frame error of every compared setting around its rate."""
    del subject
    rows = [row for name in SEARCHED for row in _around(runs, name)]
    return Exhibit(
        "p2.rates",
        "table",
        "First rate of every compared setting, and frame error (%) on development data with half "
        "of it, with it and with its double",
        tuple(rows),
        paper_label="Beyond the paper",
        note=f"Corpus and runs of seed {DEVELOPMENT}, of which no verdict sees anything. Rates are "
        "of the mean gradient. All settings were searched alike, by python -m "
        f"reproductions.paper2_ng_averaging.sweep.{_not_best(rows)}",
    )


def _around(runs: Runs, name: str) -> list[Row]:
    """A setting's rate, and the errors around it."""
    rows = [_error(name, around, runs[tuned(name, around)]) for around in AROUND]
    chosen = runs[tuned(name, "chosen")]
    known = rows[list(AROUND).index("chosen")].measured is not None
    rate = chosen[0].config["schedule"]["rate"] if known else None
    return [Row(rows[0].label, "first rate", None, rate, None, hashes(chosen)), *rows]


def _error(name: str, around: str, group: Sequence[Run]) -> Row:
    """A run of the search, which is the same for every seed."""
    error = 100.0 * sum(map(_frame_error, group)) / len(group)
    return Row(name.replace("_", " "), around, None, error, None, hashes(group))


@unless_missing(math.nan)
def _frame_error(run: Run) -> float:
    """The last on development data; infinite if the run diverged."""
    return float(run.curve(DEV)[1][-1]) if run.status == "done" else math.inf


def _not_best(rows: Sequence[Row]) -> str:
    """Which settings have a better rate than theirs beside it; nothing if none has."""
    errors = {(row.label, row.column): row.measured for row in rows}
    found = [
        row.label
        for row in rows
        if row.column == "chosen"
        and (row.measured or math.inf)
        > min(errors[row.label, side] or math.inf for side in ("half", "double"))
    ]
    return f" Better at an end: {', '.join(found)}." if found else ""


BEYOND = (
    Maker("p2.others", tuple(LABELS), others, smoke=False),
    Maker("p2.training", tuple(CURVES), training),
    Maker(
        "p2.rates", tuple(tuned(name, label) for name in SEARCHED for label in AROUND), rates,
        smoke=False, divergence=True,
    ),
)  # fmt: skip
