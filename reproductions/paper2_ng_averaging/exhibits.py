"""Paper 2's figures and tables, and exhibits beyond it, from finished runs.

Figures 1 and 2 and the prediction in numbers are of timing runs; tables 1 to 6 of training and
timing runs. Beyond the paper are other ways to agree on a model, and how the rates were found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.judge.builders import Maker, Runs, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.store import Run
from reproductions.paper import DEVELOPMENT, Subject
from reproductions.paper2_ng_averaging import errors
from reproductions.paper2_ng_averaging.experiments import (
    AROUND,
    GPUS,
    NODES,
    PRESETS,
    SEARCHED,
    gpus,
    trial_name,
)
from reproductions.paper2_ng_averaging.prediction import FITTED_UP_TO, REPORTED, load_fit
from reproductions.run_metrics import curve_rows, hashes, summary_value

PRINTED = {16: REPORTED["claims"]["speedup_16"], 32: REPORTED["claims"]["speedup_32"]}

ALL = tuple(f"timing_{n}" for n in GPUS)


def fig1(subject: Subject, runs: Runs) -> Exhibit:
    """All-reduce among four workers, drawn from its simulated messages."""
    del subject
    run = runs["all_reduce"][0]
    sent = run.metrics["name"] == "message"
    names = ("source", "target", "time_s", "arrived_s", "value", "adds")
    messages = [
        {
            "from": int(source),
            "to": int(target),
            "sent_s": sent_s,
            "arrived_s": arrived_s,
            "part": _part(size_bytes / run.config["size_bytes"]),
            "adds": bool(adds),
        }
        for source, target, sent_s, arrived_s, size_bytes, adds in zip(
            *(run.metrics[name][sent].tolist() for name in names), strict=True
        )
    ]
    return Exhibit(
        "p2.fig1",
        "figure",
        "All-reduce among four workers: the simulated messages, with their share of the model",
        axes={"x": "time since the all-reduce began (ms)"},
        draw={"as": "messages", "workers": run.config["workers"], "messages": messages},
        paper_label="Figure 1",
        note="Rabenseifner's algorithm on the fitted cluster: halves and quarters are summed in "
        "pairs, then gathered. The paper's drawing survives only as text.",
    )


def _part(share: float) -> str:
    return {0.5: "½", 0.25: "¼"}.get(share, f"{share:.3g}")


def fig2(subject: Subject, runs: Runs) -> Exhibit:
    """Speed-up against GPUs."""
    del subject
    rows = [
        Row.from_interval(
            "speed-up", n, PRINTED.get(n), speedup(*_one_and_many(runs, n)),
            hashes(*_one_and_many(runs, n)),
        )
        for n in GPUS
    ]  # fmt: skip
    return Exhibit(
        "p2.fig2", "figure", "Speed-up of model averaging, predicted from 1, 2 and 4 GPUs",
        tuple(rows), axes={"x": "GPUs", "y": "speed-up"},
        draw={"as": "curves", "x_scale": "log", "y_scale": "log", "x_ticks": list(GPUS),
              "y_ticks": [1, 2, 4, 8, 16]},
        paper_label="Figure 2",
        note="The free figures of the simulated cluster are fitted to the authors' timings on 1, "
        "2 and 4 GPUs; 8, 16 and 32 are predicted. The paper's curve survives only as text.",
    )  # fmt: skip


def fig2_scaling(subject: Subject, runs: Runs) -> Exhibit:
    """Speed-up over the number of GPUs."""
    del subject
    rows: list[Row] = []
    for n in GPUS:
        one, many = _one_and_many(runs, n)
        paper = PRINTED.get(n)
        printed = None if paper is None else round(paper / n, 3)
        share = (1 / n) * speedup(one, many)
        rows.append(Row.from_interval("scaling factor", n, printed, share, hashes(one, many)))
    return Exhibit(
        "p2.fig2-scaling", "figure", "Scaling factor, the speed-up over the number of GPUs",
        tuple(rows), axes={"x": "GPUs", "y": "scaling factor"},
        draw={"as": "curves", "x_scale": "log", "x_ticks": list(GPUS)}, paper_label="Figure 2",
    )  # fmt: skip


def _one_and_many(runs: Runs, n: int) -> tuple[Sequence[Run], Sequence[Run]]:
    return runs["timing_1"], runs[f"timing_{n}"]


def prediction(subject: Subject, runs: Runs) -> Exhibit:
    """Minutes an epoch and speed-up beside the authors' timings."""
    timings = REPORTED["timings"]
    minutes = dict(zip(timings["gpus"], timings["total_min"], strict=True))
    rows: list[Row] = []
    for n in GPUS:
        label = f"{gpus(n)}, {'fitted' if n <= FITTED_UP_TO else 'predicted'}"
        rows += _timing_rows(label, runs["timing_1"], runs[f"timing_{n}"], minutes[n], minutes[1])
    once = REPORTED["claims"]["speedup_16_every_20"]
    for label, one, many in (
        ("16 GPUs, every 20, predicted", "timing_1", "timing_16_every_20"),
        ("the same, excess per average", "other_1", "other_16_every_20"),
    ):
        ratio = speedup(runs[one], runs[many])
        behind = hashes(runs[one], runs[many])
        rows.append(Row.from_interval(label, "speed-up", once, ratio, behind))
    free = ", ".join(f"{name} {value:.4g}" for name, value in load_fit().free.items())
    return Exhibit(
        "p2.prediction",
        "table",
        "Minutes an epoch and speed-up, beside the authors' own timings",
        tuple(rows),
        paper_label="Authors' timings",
        note=f"Fitted: {free}; largest relative error {load_fit().largest_error:.2%}. Timings on "
        "2 and 4 GPUs outside MPI exceed the work of one; they do not say whether the excess "
        "belongs to each minibatch (judged) or to each average (last row).",
    )


def speedup(one: Sequence[Run], many: Sequence[Run]) -> Interval:
    """Epoch time of one GPU over that of many, for each seed."""
    return ratio_ci(_seconds(one), _seconds(many))


def _timing_rows(
    label: str, one: Sequence[Run], many: Sequence[Run], minutes: float, alone: float
) -> list[Row]:
    took = mean_ci([seconds / 60.0 for seconds in _seconds(many)])
    ratio = speedup(one, many)
    return [
        Row.from_interval(label, "minutes", minutes, took, hashes(many)),
        Row(
            label, "speed-up", round(alone / minutes, 2), ratio.estimate, ratio.ci95,
            hashes(one, many),
        ),
    ]  # fmt: skip


def _seconds(runs: Sequence[Run]) -> list[float]:
    return [summary_value(run, "virtual_s") for run in runs]


FIGURES = (
    Maker("p2.fig1", ("all_reduce",), fig1),
    Maker("p2.fig2", ALL, fig2),
    Maker("p2.fig2-scaling", ALL, fig2_scaling),
)

PREDICTION = (
    Maker(
        "p2.prediction",
        (*ALL, "timing_16_every_20", "other_1", "other_16_every_20"),
        prediction,
    ),
)

PAPER = REPORTED["claims"]

NOTE = (
    "Words decoded with a bigram; intervals are over seeds, test utterances and, of made speech, "
    f"corpora. The row or column “{errors.ALL}” is the errors of all five test sets over their "
    "words; claims are judged on it."
)


def table1(subject: Subject, runs: Runs) -> Exhibit:
    """Error rates by number of nodes."""
    tests = (*subject.corpus.tests, errors.ALL)
    rows = [
        errors.row(subject, runs, f"ng_{n}", test, errors.label_of(test), gpus(n))
        for test in tests
        for n in NODES
    ]
    return _table("table1", "Word error rate (%) by number of GPUs", rows, NOTE)


def table2(subject: Subject, runs: Runs) -> Exhibit:
    """Random initialisation and pretraining."""
    settings = {"random init": ("random_1", "random_32"), "RBM pretraining": ("rbm_1", "rbm_32")}
    passes, note = PRESETS[subject.scale].pretraining, NOTE
    if passes > 1:
        settings["RBM, as in other tables"] = ("ng_1", "ng_32")
        note = f"RBM pretraining: {passes} passes; as in other tables: 1. {NOTE}"
    rows = _two_by_two(subject, runs, settings, (1, 32))
    return _table("table2", "Word error rate (%), random initialisation and RBM", rows, note)


def table3(subject: Subject, runs: Runs) -> Exhibit:
    """Averaging frequencies."""
    settings = {"baseline, one GPU": "ng_1", "every 10": "ng_16", "every 20": "every_20"}
    timed = {"every 10": ("timing_16", "speedup_16"),
             "every 20": ("timing_16_every_20", "speedup_16_every_20")}  # fmt: skip
    rows = [_speed(runs, "speed-up", label, *timed[label]) for label in timed]
    rows += [
        errors.row(subject, runs, setting, test, errors.label_of(test), label)
        for test in (*errors.main_tests(subject), errors.ALL)
        for label, setting in settings.items()
    ]
    note = f"Speed-ups are the simulator's predictions for the paper's own network. {NOTE}"
    title = "Speed-up on 16 GPUs and word error rate (%) by averaging frequency"
    return _table("table3", title, rows, note)


def table4(subject: Subject, runs: Runs) -> Exhibit:
    """Minibatch sizes."""
    settings = {"256": ("small_1", "small_16"), "1024": ("ng_1", "ng_16")}
    rows = [
        replace(row, label=str(row.column), column=row.label)
        for row in _two_by_two(subject, runs, settings, (1, 16))
    ]
    rows.append(_speed(runs, "speed-up, 16 GPUs", "1024", "timing_16", "speedup_16"))
    note = f"Sizes are the paper's; ours are smaller in the same proportion. {NOTE}"
    return _table("table4", "Word error rate (%) by minibatch size", rows, note)


def table5(subject: Subject, runs: Runs) -> Exhibit:
    """Learning-rate schedules."""
    settings = {
        "newbob": ("newbob_1", "newbob_16"),
        "exponential": ("exponential_1", "exponential_16"),
    }
    rows = _two_by_two(subject, runs, settings, (1, 16))
    passes = [
        ", ".join(f"{summary_value(run, 'passes'):g}" for run in runs[name])
        for name in (*settings["newbob"], "exponential_16")
    ]
    note = (
        f"Newbob went through the data {passes[0]} times on 1 GPU, {passes[1]} on 16; the "
        f"exponential schedule {passes[2]} times. {NOTE}"
    )
    return _table("table5", "Word error rate (%) by learning-rate schedule", rows, note)


def table6(subject: Subject, runs: Runs) -> Exhibit:
    """Plain and natural-gradient descent."""
    settings = {"SGD": ("sgd_1", "sgd_16"), "NG-SGD": ("ng_1", "ng_16")}
    rows = _two_by_two(subject, runs, settings, (1, 16))
    note = f"Both under the same max-change, each at its own best rate for each number. {NOTE}"
    return _table("table6", "Word error rate (%), plain SGD and NG-SGD", rows, note)


def _two_by_two(
    subject: Subject, runs: Runs, settings: Mapping[str, tuple[str, str]], nodes: tuple[int, int]
) -> list[Row]:
    """Two settings on few and on many nodes, by test set."""
    return [
        errors.row(subject, runs, name, test, label, f"{errors.label_of(test)}, {gpus(n)}")
        for label, names in settings.items()
        for test in (*errors.main_tests(subject), errors.ALL)
        for name, n in zip(names, nodes, strict=True)
    ]


def _speed(runs: Runs, label: str, column: str, setting: str, claim: str) -> Row:
    ratio = speedup(runs["timing_1"], runs[setting])
    behind = hashes(runs["timing_1"], runs[setting])
    return Row.from_interval(label, column, PAPER[claim], ratio, behind)


def _table(name: str, title: str, rows: list[Row], note: str) -> Exhibit:
    label = f"Table {name.removeprefix('table')}"
    return Exhibit(f"p2.{name}", "table", title, tuple(rows), paper_label=label, note=note)


TIMED = ("timing_1", "timing_16")

TABLES = (
    Maker("p2.table1", tuple(f"ng_{n}" for n in NODES), table1, on_request=("laptop",)),
    Maker("p2.table2", ("random_1", "random_32", "rbm_1", "rbm_32", "ng_1", "ng_32"), table2),
    Maker("p2.table3", ("ng_1", "ng_16", "every_20", *TIMED, "timing_16_every_20"), table3),
    Maker("p2.table4", ("small_1", "small_16", "ng_1", "ng_16", *TIMED), table4),
    Maker(
        "p2.table5",
        ("newbob_1", "newbob_16", "exponential_1", "exponential_16"),
        table5,
        on_request=("laptop",),
    ),
    Maker("p2.table6", ("sgd_1", "sgd_16", "ng_1", "ng_16"), table6),
)

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
            [summary_value(run, "virtual_s") for run in runs[name]] for name in (setting, "ng_16")
        ]
        ratio = ratio_ci(*seconds)
        behind = hashes(runs[setting], runs["ng_16"])
        rows.append(Row.from_interval(label, "time", None, ratio, behind))
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
    rows = [row for name in SEARCHED for row in _rate_rows(runs, name)]
    return Exhibit(
        "p2.rates",
        "table",
        "First rate of every compared setting, and frame error (%) on development data with half "
        "of it, with it and with its double",
        tuple(rows),
        paper_label="Beyond the paper",
        note=f"Corpus and runs of seed {DEVELOPMENT}, of which no verdict sees anything. Rates are "
        f"of the mean gradient. All settings were searched alike.{_not_best(rows)}",
    )


def _rate_rows(runs: Runs, name: str) -> list[Row]:
    """A setting's rate, and the errors around it."""
    rows = [_error(name, around, runs[trial_name(name, around)]) for around in AROUND]
    chosen = runs[trial_name(name, "chosen")]
    known = rows[list(AROUND).index("chosen")].measured is not None
    rate = chosen[0].config["schedule"]["rate"] if known else None
    return [Row(rows[0].label, "first rate", None, rate, None, hashes(chosen)), *rows]


def _error(name: str, around: str, group: Sequence[Run]) -> Row:
    """A run of the search, which is the same for every seed."""
    error = 100.0 * sum(map(_frame_error, group)) / len(group)
    return Row(name.replace("_", " "), around, None, error, None, hashes(group))


@unless_missing(math.nan)
def _frame_error(run: Run) -> float:
    """The last frame error on development data; infinite if the run diverged."""
    return float(run.curve(DEV)[1][-1]) if run.status == "done" else math.inf


def _not_best(rows: Sequence[Row]) -> str:
    """Sentence on settings with a better rate beside their own; empty if there is none."""
    # A run without a figure counts as infinitely bad, on either side of the comparison.
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
    Maker("p2.others", tuple(LABELS), others, smoke=False, on_request=("laptop",)),
    Maker("p2.training", tuple(CURVES), training),
    Maker(
        "p2.rates", tuple(trial_name(name, label) for name in SEARCHED for label in AROUND), rates,
        smoke=False, divergence=True, searches=True,
    ),
)  # fmt: skip
