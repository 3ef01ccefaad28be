"""What paper 2 does not show: other ways to agree on a model, and how the rates were found."""

from __future__ import annotations

from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import ratio_ci
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging import errors
from reproductions.paper2_ng_averaging.experiments import swept
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
        note="NG-SGD unless a row says SGD. All rows share data, initial parameters, schedule and "
        "rate (SGD its own), and differ in what their name says; momenta are used as published, "
        "without a rate of their own.",
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
    """Development frame error of every rate that was tried."""
    del subject, runs
    found = swept()
    rows = [
        Row(each["label"], each["rate_a_worker"], None, 100.0 * each["frame_error"])
        for each in found["tried"]
    ]
    return Exhibit(
        "p2.rates",
        "figure",
        "Frame error on development data by first rate",
        tuple(rows),
        axes={"x": "first rate of the mean gradient, over the number of GPUs",
              "y": "frame error (%)"},
        draw={"as": "curves", "x_scale": "log", "x_ticks": sorted({row.column for row in rows})},
        paper_label="Beyond the paper",
        note=f"Corpus {found['corpus']}, seed {found['corpus_seed']}, run seed {found['seed']}; "
        "none of it serves a verdict. Each setting uses its curve's lowest point. Made by "
        "python -m reproductions.paper2_ng_averaging.sweep.",
    )  # fmt: skip


BEYOND = (
    Maker("p2.others", tuple(LABELS), others, smoke=False),
    Maker("p2.training", tuple(CURVES), training),
    Maker("p2.rates", (), rates),
)
