"""Paper 2's figures and tables, and exhibits beyond it, from finished runs.

Figures 1 and 2 and the prediction in numbers are of timing runs; tables 1 to 6 of training and
timing runs. Beyond the paper is how the rates were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from harness.judge.builders import Runs, unless_missing
from harness.judge.results import Row
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.store import Run
from reports import SCALES
from reproductions.makers import Content, Exhibits
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
from reproductions.paper2_ng_averaging.prediction import (
    FITTED_UP_TO,
    REPORTED,
    load_fit,
    predict_naively,
)
from reproductions.run_metrics import hashes, summary_value, summary_values

PAPER = REPORTED["claims"]
PRINTED = {16: PAPER["speedup_16"], 32: PAPER["speedup_32"]}
ALL = tuple(f"timing_{n}" for n in GPUS)
MINUTES: dict[int, float] = dict(zip(GPUS, REPORTED["timings"]["total_min"], strict=True))
EXHIBITS = Exhibits()
NOTE = (
    "Words decoded with a bigram; intervals are over seeds, test utterances and, of made speech, "
    f"corpora. The row or column “{errors.ALL}” is the errors of all five test sets over their "
    "words; claims are judged on it."
)


@EXHIBITS.figure(
    "p2.fig1",
    "All-reduce among four workers: the simulated messages, with their share of the model",
    ("all_reduce",), ("time since the all-reduce began (ms)",), "Figure 1",
    "Rabenseifner's algorithm on the fitted cluster: halves and quarters are summed in "
    "pairs, then gathered. The paper's drawing survives only as text.",
    {"as": "messages"},
)  # fmt: skip
def fig1(subject: Subject, runs: Runs) -> Content:
    """All-reduce among four workers, drawn from its simulated messages."""
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
    yield {"workers": run.config["workers"], "messages": messages}


def _part(share: float) -> str:
    return {0.5: "½", 0.25: "¼"}.get(share, f"{share:.3g}")


def speedup(alone: Sequence[Run], group: Sequence[Run]) -> Interval:
    """Epoch time of one GPU over that of many, for each seed."""
    return ratio_ci(summary_values(alone, "virtual_s"), summary_values(group, "virtual_s"))


def _speed(
    runs: Runs, setting: str, label: str, column: str | float, paper: float | None, unit: int = 1
) -> Row:
    """A cell: the speed-up of a setting, over ``unit`` GPUs if given."""
    alone = runs["timing_1" if setting.startswith("timing") else "other_1"]
    share = (1 / unit) * speedup(alone, runs[setting])
    return Row.from_interval(label, column, paper, share, hashes(alone, runs[setting]))


@EXHIBITS.figure(
    "p2.fig2", "Speed-up of model averaging, predicted from 1, 2 and 4 GPUs", ALL,
    ("GPUs", "speed-up"), "Figure 2",
    "The free figures of the simulated cluster are fitted to the authors' timings on 1, "
    "2 and 4 GPUs; 8, 16 and 32 are predicted. The paper's curve survives only as text.",
    {"as": "curves", "x_scale": "log", "y_scale": "log", "x_ticks": list(GPUS),
     "y_ticks": [1, 2, 4, 8, 16]},
)  # fmt: skip
def fig2(subject: Subject, runs: Runs) -> Content:
    """Speed-up against GPUs."""
    for n in GPUS:
        yield _speed(runs, f"timing_{n}", "speed-up", n, PRINTED.get(n))


@EXHIBITS.figure(
    "p2.fig2-scaling", "Scaling factor, the speed-up over the number of GPUs", ALL,
    ("GPUs", "scaling factor"), "Figure 2",
    draw={"as": "curves", "x_scale": "log", "x_ticks": list(GPUS)},
)  # fmt: skip
def fig2_scaling(subject: Subject, runs: Runs) -> Content:
    """Speed-up over the number of GPUs."""
    for n in GPUS:
        printed = round(PRINTED[n] / n, 3) if n in PRINTED else None
        yield _speed(runs, f"timing_{n}", "scaling factor", n, printed, n)


@EXHIBITS.table(
    "p2.table1", "Word error rate (%) by number of GPUs", tuple(f"ng_{n}" for n in NODES),
    "Table 1", NOTE, on_request=("laptop",),
)  # fmt: skip
def table1(subject: Subject, runs: Runs) -> Content:
    """Error rates by number of nodes."""
    for test in (*subject.corpus.tests, errors.ALL):
        for n in NODES:
            yield errors.row(subject, runs, f"ng_{n}", test, errors.label_of(test), gpus(n))


@EXHIBITS.table(
    "p2.table2", "Word error rate (%), random initialisation and RBM",
    ("random_1", "random_32", "rbm_1", "rbm_32", "ng_1", "ng_32"), "Table 2",
)  # fmt: skip
def table2(subject: Subject, runs: Runs) -> Content:
    """Random initialisation and pretraining."""
    settings = {"random init": ("random_1", "random_32"), "RBM pretraining": ("rbm_1", "rbm_32")}
    passes = PRESETS[subject.scale].pretraining
    if passes > 1:
        settings["RBM, as in other tables"] = ("ng_1", "ng_32")
        yield f"RBM pretraining: {passes} passes; as in other tables: 1."
    yield from _two_by_two(subject, runs, settings, (1, 32))
    yield NOTE


TIMED = ("timing_1", "timing_16")


@EXHIBITS.table(
    "p2.table3", "Speed-up on 16 GPUs and word error rate (%) by averaging frequency",
    ("ng_1", "ng_16", "every_20", *TIMED, "timing_16_every_20"), "Table 3",
    f"Speed-ups are the simulator's predictions for the paper's own network. {NOTE}",
)  # fmt: skip
def table3(subject: Subject, runs: Runs) -> Content:
    """Averaging frequencies."""
    yield _speed(runs, "timing_16", "speed-up", "every 10", PAPER["speedup_16"])
    once = PAPER["speedup_16_every_20"]
    yield _speed(runs, "timing_16_every_20", "speed-up", "every 20", once)
    settings = {"baseline, one GPU": "ng_1", "every 10": "ng_16", "every 20": "every_20"}
    for test in (*errors.main_tests(subject), errors.ALL):
        for label, setting in settings.items():
            yield errors.row(subject, runs, setting, test, errors.label_of(test), label)


@EXHIBITS.table(
    "p2.table4", "Word error rate (%) by minibatch size",
    ("small_1", "small_16", "ng_1", "ng_16", *TIMED), "Table 4",
    f"Sizes are the paper's; ours are smaller in the same proportion. {NOTE}",
)  # fmt: skip
def table4(subject: Subject, runs: Runs) -> Content:
    """Minibatch sizes."""
    settings = {"256": ("small_1", "small_16"), "1024": ("ng_1", "ng_16")}
    for row in _two_by_two(subject, runs, settings, (1, 16)):
        yield replace(row, label=str(row.column), column=row.label)
    yield _speed(runs, "timing_16", "speed-up, 16 GPUs", "1024", PAPER["speedup_16"])


SCHEDULES = {
    "newbob": ("newbob_1", "newbob_16"),
    "exponential": ("exponential_1", "exponential_16"),
}


@EXHIBITS.table(
    "p2.table5", "Word error rate (%) by learning-rate schedule",
    (*SCHEDULES["newbob"], *SCHEDULES["exponential"]), "Table 5", on_request=("laptop",),
)  # fmt: skip
def table5(subject: Subject, runs: Runs) -> Content:
    """Learning-rate schedules."""
    yield from _two_by_two(subject, runs, SCHEDULES, (1, 16))
    alone, sixteen, exponential = (
        ", ".join(f"{summary_value(run, 'passes'):g}" for run in runs[name])
        for name in (*SCHEDULES["newbob"], "exponential_16")
    )
    yield (
        f"Newbob went through the data {alone} times on 1 GPU, {sixteen} on 16; the exponential "
        f"schedule {exponential} times. {NOTE}"
    )


@EXHIBITS.table(
    "p2.table6", "Word error rate (%), plain SGD and NG-SGD",
    ("sgd_1", "sgd_16", "ng_1", "ng_16"), "Table 6",
    f"Both under the same max-change, each at its own best rate for each number. {NOTE}",
)  # fmt: skip
def table6(subject: Subject, runs: Runs) -> Content:
    """Plain and natural-gradient descent."""
    settings = {"SGD": ("sgd_1", "sgd_16"), "NG-SGD": ("ng_1", "ng_16")}
    yield from _two_by_two(subject, runs, settings, (1, 16))


def _two_by_two(
    subject: Subject, runs: Runs, settings: Mapping[str, tuple[str, str]], nodes: tuple[int, int]
) -> Iterator[Row]:
    """Two settings on few and on many nodes, by test set."""
    for label, names in settings.items():
        for test in (*errors.main_tests(subject), errors.ALL):
            for name, n in zip(names, nodes, strict=True):
                column = f"{errors.label_of(test)}, {gpus(n)}"
                yield errors.row(subject, runs, name, test, label, column)


@EXHIBITS.table(
    "p2.rates",
    "First rate of every compared setting, and word error (%) on the development seed's test sets "
    "with half of it, with it and with its double",
    tuple(trial_name(name, label) for name in SEARCHED for label in AROUND),
    note=f"Corpus and runs of seed {DEVELOPMENT}, of which no verdict sees anything. Rates are "
    "of the mean gradient. All settings were searched alike.",
    divergence=True, on_request=SCALES,
)  # fmt: skip
def rates(subject: Subject, runs: Runs) -> Content:
    """Development word error of every compared setting around its rate."""
    best = list[str]()
    for name in SEARCHED:
        groups = {around: runs[trial_name(name, around)] for around in AROUND}
        label, chosen = name.replace("_", " "), groups["chosen"]
        # A search is the same for every seed. A run without a figure counts as infinitely bad.
        found = {
            around: 100.0 * float(np.mean([_word_error(subject, run) for run in group]))
            for around, group in groups.items()
        }
        known = math.isfinite(found["chosen"])
        rate = chosen[0].config["schedule"]["rate"] if known else None
        yield Row(label, "first rate", None, rate, None, hashes(chosen))
        for around, group in groups.items():
            yield Row(label, around, None, found[around], None, hashes(group))
        best += [label] if not found["chosen"] <= min(found.values()) else []
    if best:
        yield f"Better at an end: {', '.join(best)}."


@unless_missing(math.nan)
def _word_error(subject: Subject, run: Run) -> float:
    """Word error rate on all test sets together; infinite if the run diverged."""
    if run.status != "done":
        return math.inf
    wrong, said = errors.count_errors(subject, [run])
    return float(wrong.sum() / said.sum())


@EXHIBITS.table(
    "p2.prediction", "Minutes an epoch and speed-up, beside the authors' own timings",
    (*ALL, "timing_16_every_20", "other_1", "other_16_every_20"), "Authors' timings",
    simulated=("minutes", "speed-up", *(f"by {rule}" for rule in predict_naively(MINUTES, 8))),
)  # fmt: skip
def prediction(subject: Subject, runs: Runs) -> Content:
    """Minutes an epoch and speed-up beside the authors' timings."""
    for n in GPUS:
        label = f"{gpus(n)}, {'fitted' if n <= FITTED_UP_TO else 'predicted'}"
        group, printed = runs[f"timing_{n}"], round(MINUTES[1] / MINUTES[n], 2)
        took = mean_ci(summary_values(group, "virtual_s") / 60.0)
        yield Row.from_interval(label, "minutes", MINUTES[n], took, hashes(group))
        # Shown without its sample.
        yield replace(_speed(runs, f"timing_{n}", label, "speed-up", printed), sample=None)
        for rule, speed in predict_naively(MINUTES, n).items() if n > FITTED_UP_TO else ():
            yield Row(label, f"by {rule}", None, round(speed, 3), None, hashes(group))
    once = PAPER["speedup_16_every_20"]
    label = "16 GPUs, every 20, predicted"
    yield _speed(runs, "timing_16_every_20", label, "speed-up", once)
    yield _speed(runs, "other_16_every_20", "the same, excess per average", "speed-up", once)
    free = ", ".join(f"{name} {value:.4g}" for name, value in load_fit().free.items())
    yield (
        f"Fitted: {free}; largest relative error {load_fit().largest_error:.2%}. Timings on "
        "2 and 4 GPUs outside MPI exceed the work of one; they do not say whether the excess "
        "belongs to each minibatch or to each average (last row). Rules “by …” know the timings on "
        "1, 2 and 4 GPUs alone, as the simulator does."
    )
