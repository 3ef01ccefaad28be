"""Paper 3's figures and tables, and exhibits beyond it, from finished runs.

Beyond the paper are the tuning, the age of gradients and fetch intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.base.seeds import identity
from harness.judge.builders import NO_ROWS, UNKNOWN, Runs, unless_missing
from harness.judge.interval import Interval
from harness.judge.results import Row
from harness.judge.statistics import Array, mean_ci
from harness.judge.utterances import rate_ci
from harness.simulator.timeline_file import load_timeline
from harness.store import Run
from reports import SCALES
from reproductions.machines import describe_allowed, machine_rows
from reproductions.makers import Content, Exhibits
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import (
    INTERVALS,
    PRESETS,
    REPORTED,
    SMALL,
    SWEEPS,
    TRIED,
    TUNED,
    UNLIKE,
    fetch_name,
    rate_name,
)
from reproductions.paper3_async_mmi.quantities import (
    CRITERION,
    FRAME_ERROR,
    WORD_ERROR,
    gain,
    gain_left,
    shape_told,
    sweep_of,
    test_errors,
    tolerances,
)
from reproductions.run_metrics import exponential, hashes, summary_value

PATHS = {
    "outer": "decoder's read to fold (outer gradient)",
    "inner": "trainer's read to fold (inner gradient)",
    "push": "end of computing to fold (push)",
}

LABELS = {"one": "1 replica", "ten": "10 replicas", "fifty": "50 replicas"}

DRAWN_STEPS = 40

SHUFFLED = {"none": "none", "on the fly": "on the fly", "full": "ce"}
"""Shufflings that p3.shuffling compares -> their settings; the start is shuffled in full."""
THREE = tuple(LABELS)
SWEEP = tuple(fetch_name("last", i) for i in range(INTERVALS + 1))
SWEPT = tuple(fetch_name(sweep, i) for sweep in SWEEPS for i in range(INTERVALS + 1))
EXHIBITS = Exhibits()


@EXHIBITS.figure(
    "p3.fig1", "Asynchronous sequence training: three independent paths of staleness", THREE, (),
    "Figure 1",
    "Mean ages in our own runs, whose minibatches are smaller than the paper's; the "
    "paper's own sizes are timed in p3.machines. Drawn for 10 replicas.",
    {"as": "architecture", "column": LABELS["ten"]},
)  # fmt: skip
def fig1(subject: Subject, runs: Runs) -> Content:
    """The architecture with its three paths of staleness, each with its simulated lag."""
    for name in LABELS:
        for path, label in PATHS.items():
            for unit, key in (("s", "lag_s_mean"), ("updates", "staleness_mean")):
                mean = mean_ci([summary_value(run, f"{path}_{key}") for run in runs[name]])
                column = f"{LABELS[name]}, {unit}"
                yield Row.from_interval(label, column, None, mean, hashes(runs[name]))


@EXHIBITS.figure(
    "p3.fig2", "On-the-fly shuffling: each minibatch has one frame of each slot's utterance",
    ("one",), ("minibatch of one replica", "slot"), "Figure 2",
    "Read off the timeline that drove a run: an utterance's length here is what was "
    "left of it after rejection and cancellation. Numbers count decoded utterances.",
    {"as": "slots"}, timelines=1,
)  # fmt: skip
def fig2(subject: Subject, runs: Runs) -> Content:
    """Utterance in each slot of one replica's minibatches, step by step."""
    run = runs["one"][0]
    for i, lane in enumerate(_slots(run)):
        for step, utterance in lane:
            yield Row(f"slot {i + 1}", step, None, int(utterance), None, (run.hash,))


@EXHIBITS.figure(
    "p3.fig3", "The auxiliary function touches the criterion at the start", ("line",),
    ("way from the start (0) to the trained model (1)", "nats a frame"), "Figure 3",
    "Computed in double precision along the straight line through parameter space, "
    "first seed. The paper's left sketch; a lower bound (right) is not constructed there.",
)  # fmt: skip
def fig3(subject: Subject, runs: Runs) -> Content:
    """The criterion and its auxiliary function along the way from start to end of a training."""
    run = runs["line"][0]
    behind = (run.hash, identity(run.config["training"]))
    for label, name in (("criterion", "criterion"), ("auxiliary function", "auxiliary")):
        for x, y in zip(*run.curve(name)[:2], strict=True):
            yield Row(label, float(x), None, float(y), None, behind)


@EXHIBITS.table(
    "p3.shuffling", "Test word error (%) by how training frames are shuffled",
    tuple(SHUFFLED.values()), "Section 4.2, Data shuffling",
    "Cross-entropy training from scratch, one replica,",
)  # fmt: skip
def shuffling(subject: Subject, runs: Runs) -> Content:
    """Test word error without shuffling, with shuffling on the fly, and in full."""
    for label, name in SHUFFLED.items():
        paper = REPORTED["shuffling"][label]
        yield _error_row(subject, label, "word error (%)", runs[name], paper)
    yield error_note(subject)


PAIRED = (
    "Corpora differ more than settings do, so each seed's curve is its change from its own start, "
    "the cross-entropy model that all replicas begin from. Differences are of readings after "
    "equally many utterances, so at different times."
)
LAYERS = {"ten": "all layers", "last": "last layer"}
PARTS = {
    "": ("Criterion", CRITERION, "criterion (nats a second)", "gain, share of what the start lacks "
         "(%)", "Upper part of the figure; the lower is p3.fig{}-wer. "),
    "-wer": ("Word error", WORD_ERROR, "word error, unigram (%)", "word error, relative change (%)",
             ""),
}  # fmt: skip
"""Parts of figures 4, 5 and 7: their subject, its metric, the axis, that of changes, the note."""


def _declare_courses(
    number: int,
    title: str,
    settings: Sequence[str],
    note: str,
    draw: dict[str, Any],
    label: Callable[[Subject, Runs, str], str] = lambda subject, runs, name: LABELS[name],
    change: bool = False,
    divergence: bool = False,
) -> None:
    """Declare both parts of a figure of held-out speech against time, a curve for each setting."""
    for part, (subject, metric, *axes, upper) in PARTS.items():

        @EXHIBITS.figure(
            f"p3.fig{number}{part}", f"{subject} on held-out speech{title}", settings,
            ("simulated time (h)", axes[change]), f"Figure {number}", upper.format(number) + note,
            draw, divergence=divergence,
        )  # fmt: skip
        def course(subject: Subject, runs: Runs, metric: str = metric) -> Content:
            """Held-out speech against simulated time, or its change from the start."""
            for name in settings:
                curve = label(subject, runs, name)
                yield from _course_rows(curve, runs[name], metric, _change if change else _level)


def _label_interval(subject: Subject, runs: Runs, name: str) -> str:
    """A fetch interval in simulated minutes and in passes."""
    if not (place := SWEEP.index(name)):
        return "each utterance"
    minutes = runs[name][0].config["protocol"]["fetch_s"] / 60
    return f"every {minutes:.3g} min ({PRESETS[subject.scale].fetch['last'][place - 1]:g} passes)"


_declare_courses(
    4, ", change from the start, by simulated time", THREE, PAIRED,
    {"as": "curves", "x_scale": "log", "against": LABELS["one"]}, change=True,
)  # fmt: skip
_declare_courses(
    5, ": fetch interval of the decoders' parameters, last layer, ten replicas", SWEEP,
    "All fetch after the same moments, each as its next utterance begins.",
    {"as": "curves", "against": "each utterance"}, _label_interval, divergence=True,
)  # fmt: skip


@EXHIBITS.figure(
    "p3.fig6", "Frame error and word error on held-out speech while MMI improves", ("ten",),
    ("passes over the training set", "change from the start (%)"), "Figure 6",
    "Differences from the start in points, so that both fit one axis. Ten replicas.",
)  # fmt: skip
def fig6(subject: Subject, runs: Runs) -> Content:
    """Frame error against word error while the criterion improves."""
    for label, metric in (("frame error", FRAME_ERROR), ("word error, unigram", WORD_ERROR)):
        yield from _course_rows(label, runs["ten"], metric, _points, by_time=False)


_declare_courses(
    7, ": all layers or the last one updated", tuple(LAYERS),
    "The paper prints 10.9% test word error for both; see p3.all-layers.",
    {"as": "curves", "against": "last layer"}, lambda subject, runs, name: LAYERS[name],
)  # fmt: skip


@EXHIBITS.table(
    "p3.table1", "Test word error (%)", ("ce", "ten", "large ce", "large"), "Table 1",
    "Ten replicas;",
)  # fmt: skip
def table1(subject: Subject, runs: Runs) -> Content:
    """Test word error of cross-entropy and MMI training on both tasks."""
    tasks = {"small": {"CE": "ce", "MMI": "ten"}, "large": {"CE": "large ce", "MMI": "large"}}
    if subject.corpus.name != SMALL:
        del tasks["large"]
    for label in ("CE", "MMI"):
        for task, names in tasks.items():
            printed = REPORTED["table1"][task][label.lower()]
            yield _error_row(subject, label, f"{task} task", runs[names[label]], printed)
    yield error_note(subject)


def error_note(subject: Subject) -> str:
    """Note on how words are decoded and counted."""
    return (
        "words decoded with a trigram; acoustic scale and insertion penalty of each model from "
        f"held-out speech; {len(subject.corpus.split(subject.corpus.tests[0])):,} test utterances"
        + (f" ({SMALL})." if subject.corpus.name == SMALL else ".")
    )


def _error_row(
    subject: Subject, label: str, column: str, runs: Sequence[Run], paper: float | None
) -> Row:
    rate = 100.0 * _rate(subject, runs)
    return Row.from_interval(label, column, paper, rate, hashes(runs))


@unless_missing(UNKNOWN)
def _rate(subject: Subject, runs: Sequence[Run]) -> Interval:
    return rate_ci(*test_errors(subject, runs))


Reading = Callable[[Array, int], float]
"""What a figure draws of a metric's readings at one of them."""


def _level(values: Array, place: int) -> float:
    """A reading in percent, or of a frame in those of a second."""
    return 100.0 * values[place]


def _points(values: Array, place: int) -> float:
    """Its change from the start, in points."""
    return 100.0 * (values[place] - values[0])


def _change(values: Array, place: int) -> float:
    """Its relative change from the start, in percent."""
    return _points(values, place) / abs(values[0])


@unless_missing(NO_ROWS)
def _course_rows(
    label: str, runs: Sequence[Run], name: str, read: Reading, *, by_time: bool = True
) -> tuple[Row, ...]:
    """The mean over seeds at each reading that all have, at their mean hours or passes."""
    curves = [run.curve(name) for run in runs]
    rows: list[Row] = []
    for i in range(int(by_time), min(len(values) for _, values, _ in curves)):  # no hour is 0
        x = np.mean([time_s[i] / 3600.0 if by_time else epoch[i] for epoch, _, time_s in curves])
        mean = mean_ci([read(values, i) for _, values, _ in curves])
        rows.append(Row.from_interval(label, round(float(x), 6), None, mean, hashes(runs)))
    return tuple(rows)


def _slots(run: Run) -> list[list[tuple[int, int]]]:
    """For each slot of worker 0: (step, utterance) of its first minibatches."""
    decodes = load_timeline(run.path("timeline.parquet")).decodes
    lanes: list[list[tuple[int, int]]] = [[] for _ in range(run.config["protocol"]["slots"])]
    for i in np.flatnonzero((decodes.worker == 0) & (decodes.first_step < DRAWN_STEPS)).tolist():
        start = int(decodes.first_step[i])
        until = min(start + int(decodes.steps[i]), DRAWN_STEPS)
        utterance = int(decodes.utterance[i])
        lanes[int(decodes.slot[i])] += [(step, utterance) for step in range(start, until)]
    return lanes


LOSS = "dev_loss/iterate"
"""Metric that chooses the rates of cross-entropy training."""


@EXHIBITS.table(
    "p3.rates",
    "Multiples of the chosen rates on development data: gain of its criterion by each training "
    "(nats a second), final loss of cross-entropy training (nats a frame)",
    tuple(rate_name(name, i) for name in TUNED for i in range(len(TRIED))),
    note="One seed and its corpus, which no verdict uses. A dash is a run that diverged: no "
    "numbers, or twice the nats of the start. A rate is at most half of the smallest that "
    f"diverged. The paper: {REPORTED['paper']['rate_one']} with one replica, "
    f"{REPORTED['paper']['rate_many']} with 10 and 50.",
    divergence=True, on_request=SCALES,
)  # fmt: skip
def rates(subject: Subject, runs: Runs) -> Content:
    """The tried multiples of every chosen rate, on the development seed and corpus."""
    chosen = PRESETS[subject.scale].rates
    for name in TUNED:
        crossed = name in ("full", *UNLIKE)
        quantity = f"cross-entropy, {name}: loss" if crossed else f"MMI, {name}: gain"
        label = f"{quantity}, at {chosen[name]:g}"
        for i, factor in enumerate(TRIED):
            group = runs[rate_name(name, i)]  # one run, whatever the seed
            values = [_loss(run) if crossed else 100.0 * _gain(run) for run in group]
            mean = float(np.mean(values))
            yield Row(label, f"{factor:g} × rate", None, mean, None, hashes(group))


_gain = unless_missing(math.nan)(gain)


@unless_missing(math.nan)
def _loss(run: Run) -> float:
    return run.summary[LOSS] if run.status == "done" else math.nan


@EXHIBITS.figure(
    "p3.fetching",
    "Gain of the criterion by fetch interval, of the gain when fetching at each utterance",
    SWEPT,
    ("fetch interval (passes)", "gain left (%)"), draw={"as": "curves", "x_scale": "log"},
    divergence=True,
)  # fmt: skip
def fetching(subject: Subject, runs: Runs) -> Content:
    """Share of the criterion's gain left by each fetch interval, in the three sweeps."""
    sweeps = {label: sweep_of(subject, runs, name) for name, label in SWEEPS.items()}
    for (name, label), sweep in zip(SWEEPS.items(), sweeps.values(), strict=True):
        for i in range(1, INTERVALS + 1):
            share, group = 100.0 * gain_left(sweep, i), runs[fetch_name(name, i)]
            yield Row.from_interval(label, float(sweep.intervals[i]), None, share, hashes(group))
    stars = map(exponential, tolerances(list(sweeps.values())))
    alone = ", ".join(shape_told([sweep]) for sweep in sweeps.values())
    tolerated = ", ".join(
        f"{label} {star.estimate:.3g} [{star.low:.3g}, {star.high:.3g}]"
        if math.isfinite(star.estimate)
        else f"{label} not found"
        for label, star in zip(sweeps, stars, strict=True)
    )
    yield (
        f"Fitted T* in passes: {tolerated}. The loss goes with T to the power of "
        f"{shape_told(list(sweeps.values()))}, by each sweep alone {alone}. Each decoder fetches "
        "as its next utterance begins after the common moment. A run that diverged or ended below "
        "its start gained nothing."
    )


STEP, SECONDS = "MMI step over CE step (times)", "age of outer gradients (s)"
UPDATES, KEPT = "age of outer gradients (updates)", "run.kept"
ALL = (STEP, SECONDS, UPDATES, KEPT)


@EXHIBITS.figure(
    "p3.machines",
    "Step and age of outer gradients with fifty replicas, on machines of every speed, simulated",
    ("machines",), (SECONDS, STEP),
    note="Strips: the printed “about a minute” and “about twice”, as the claims have them.",
    draw={"as": "points", "x_scale": "log", "strips": {"x": [60, 30, 120], "y": [2, 1.5, 3]}},
)  # fmt: skip
def allowed(subject: Subject, runs: Runs) -> Content:
    """Machines that keep 15% of the frames, and those with a few hundred updates of age."""
    run = runs["machines"][0]

    def label(machine: Mapping[str, float]) -> str:
        if machine[KEPT] >= 0.9 * REPORTED["paper"]["kept"]:
            return "15% of frames kept"
        return "fewer kept, 200 to 900 updates" if 200 <= machine[UPDATES] <= 900 else ""

    yield from machine_rows(run, SECONDS, STEP, label, *ALL)
    for without in ((UPDATES,), (KEPT,), ()):
        yield describe_allowed(run, *without)
