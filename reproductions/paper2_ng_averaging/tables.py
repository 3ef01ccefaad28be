"""Paper 2's tables 1 to 6, from finished training and timing runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.judge.makers import Maker, Runs
from harness.judge.results import Exhibit, Row
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging import errors
from reproductions.paper2_ng_averaging.exhibits import speedup
from reproductions.paper2_ng_averaging.experiments import NODES, gpus
from reproductions.paper2_ng_averaging.prediction import REPORTED
from reproductions.paper2_ng_averaging.presets import PRESETS
from reproductions.readings import hashes, of_summary

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
        ", ".join(f"{of_summary(run, 'passes'):g}" for run in runs[name])
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
    return Row.of(label, column, PAPER[claim], ratio, behind)


def _table(name: str, title: str, rows: list[Row], note: str) -> Exhibit:
    label = f"Table {name.removeprefix('table')}"
    return Exhibit(f"p2.{name}", "table", title, tuple(rows), paper_label=label, note=note)


TIMED = ("timing_1", "timing_16")
TABLES = (
    Maker("p2.table1", tuple(f"ng_{n}" for n in NODES), table1),
    Maker("p2.table2", ("random_1", "random_32", "rbm_1", "rbm_32", "ng_1", "ng_32"), table2),
    Maker("p2.table3", ("ng_1", "ng_16", "every_20", *TIMED, "timing_16_every_20"), table3),
    Maker("p2.table4", ("small_1", "small_16", "ng_1", "ng_16", *TIMED), table4),
    Maker("p2.table5", ("newbob_1", "newbob_16", "exponential_1", "exponential_16"), table5),
    Maker("p2.table6", ("sgd_1", "sgd_16", "ng_1", "ng_16"), table6),
)
