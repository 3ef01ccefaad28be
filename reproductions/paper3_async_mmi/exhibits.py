"""Paper 3's figures and tables, and exhibits beyond it, from finished runs.

Beyond the paper are the tuning, the age of gradients, fetch intervals and frames that cancel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from harness.base.seeds import identity
from harness.judge.builders import NO_ROWS, UNKNOWN, Runs, unless_missing
from harness.judge.interval import Interval
from harness.judge.results import Row
from harness.judge.statistics import mean_ci
from harness.judge.utterances import rate_ci
from harness.simulator.timeline_file import load_timeline
from harness.store import Run
from reproductions.machines import describe_allowed, machine_rows
from reproductions.makers import Content, Exhibits
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import (
    INTERVALS,
    PRESETS,
    REPLICAS,
    REPORTED,
    SMALL,
    SWEEPS,
    TRIED,
    TUNED,
    UNLIKE,
    fetch_name,
    rate_name,
    replicas,
)
from reproductions.paper3_async_mmi.quantities import (
    CRITERION,
    FRAME_ERROR,
    WORD_ERROR,
    first_test,
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
PAPER, PAPER_SHARE = REPORTED["paper"], REPORTED["claims"]["cancelled"]
TIME = "simulated time (h)"
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
BY_REPLICAS = {"as": "curves", "x_scale": "log", "against": LABELS["one"]}


GAINS = {
    "p3.fig4": ("MMI criterion", CRITERION, "gain, share of what the start lacks (%)",
                "Upper part of the figure; the lower is p3.fig4-wer. "),
    "p3.fig4-wer": ("Word error", WORD_ERROR, "word error, relative change (%)", ""),
}  # fmt: skip
"""Parts of figure 4: what is drawn, its metric, the axis and the note."""

for _id, (_subject, _metric, _axis, _note) in GAINS.items():

    @EXHIBITS.figure(
        _id, f"{_subject} on held-out speech, change from the start, by simulated time",
        THREE, (TIME, _axis), "Figure 4", f"{_note}{PAIRED}", BY_REPLICAS,
    )  # fmt: skip
    def fig4(subject: Subject, runs: Runs, metric: str = _metric) -> Content:
        """Change of held-out speech against simulated time, for 1, 10 and 50 replicas."""
        for name, label in LABELS.items():
            yield from _time_rows(label, runs[name], metric, 1.0, change=True)


@EXHIBITS.figure(
    "p3.fig5", "Fetch interval of the decoders' parameters: criterion, last layer", SWEEP,
    (TIME, "criterion (nats a second)"), "Figure 5",
    "Ten replicas, last layer updated. All fetch after the same moments, each as its next "
    "utterance begins. The paper's lower part, word error, is not drawn: no words are "
    "recognised in the sweeps.",
    {"as": "curves", "against": "each utterance"}, divergence=True,
)  # fmt: skip
def fig5(subject: Subject, runs: Runs) -> Content:
    """Held-out criterion against time while decoders fetch every so often."""
    intervals = PRESETS[subject.scale].fetch["last"]
    for i, name in enumerate(SWEEP):
        label = "each utterance"
        if i:
            minutes = runs[name][0].config["protocol"]["fetch_s"] / 60
            label = f"every {minutes:.3g} min ({intervals[i - 1]:g} passes)"
        yield from _time_rows(label, runs[name], CRITERION, 100.0)


@EXHIBITS.figure(
    "p3.fig6", "Frame error and word error on held-out speech while MMI improves", ("ten",),
    ("passes over the training set", "change from the start (%)"), "Figure 6",
    "Differences from the start in points, so that both fit one axis. Ten replicas.",
)  # fmt: skip
def fig6(subject: Subject, runs: Runs) -> Content:
    """Frame error against word error while the criterion improves."""
    yield from _epoch_rows("frame error", runs["ten"], FRAME_ERROR, 100.0)
    yield from _epoch_rows("word error, unigram", runs["ten"], WORD_ERROR, 100.0)


LAYERS = {"ten": "all layers", "last": "last layer"}
BY_LAYERS = {"as": "curves", "against": "last layer"}


PARTS = {
    "p3.fig7": ("Criterion", CRITERION, "criterion (nats a second)",
                "Upper part of the figure; the lower is p3.fig7-wer."),
    "p3.fig7-wer": ("Word error", WORD_ERROR, "word error, unigram (%)",
                    "The paper prints 10.9% test word error for both; see p3.all-layers."),
}  # fmt: skip
"""Parts of figure 7, as `GAINS`."""

for _id, (_subject, _metric, _axis, _note) in PARTS.items():

    @EXHIBITS.figure(
        _id, f"{_subject} on held-out speech: all layers or the last one updated", tuple(LAYERS),
        (TIME, _axis), "Figure 7", _note, BY_LAYERS,
    )  # fmt: skip
    def fig7(subject: Subject, runs: Runs, metric: str = _metric) -> Content:
        """Held-out speech when all layers or the last one are updated."""
        for name, label in LAYERS.items():
            yield from _time_rows(label, runs[name], metric, 100.0)


@EXHIBITS.table(
    "p3.table1", "Test word error (%)", ("ce", "ten", "large ce", "large"), "Table 1",
    "Ten replicas, the large task for one pass;",
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
        f"held-out speech; {len(subject.corpus.split(first_test(subject))):,} test utterances"
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


@unless_missing(NO_ROWS)
def _time_rows(
    label: str, runs: Sequence[Run], name: str, scale: float, *, change: bool = False
) -> tuple[Row, ...]:
    """A metric's mean over seeds at each reading that every seed has, at their mean time.

    ``change``: its relative change from the start, in percent.
    """
    curves = [run.curve(name) for run in runs]
    rows: list[Row] = []
    for i in range(min(len(values) for _, values, _ in curves)):
        hours = float(np.mean([time_s[i] for *_, time_s in curves])) / 3600.0
        if hours > 0:
            readings = [scale * values[i] for _, values, _ in curves]
            if change:
                readings = [100.0 * (v[i] - v[0]) / abs(v[0]) for _, v, _ in curves]
            mean = mean_ci(readings)
            rows.append(Row.from_interval(label, round(hours, 6), None, mean, hashes(runs)))
    return tuple(rows)


@unless_missing(NO_ROWS)
def _epoch_rows(label: str, runs: Sequence[Run], name: str, scale: float) -> tuple[Row, ...]:
    """A metric's mean change from the start, at each reading that every seed has."""
    curves = [run.curve(name) for run in runs]
    rows: list[Row] = []
    for i in range(min(len(values) for _, values, _ in curves)):
        epoch = float(np.mean([epochs[i] for epochs, *_ in curves]))
        mean = mean_ci([scale * (values[i] - values[0]) for _, values, _ in curves])
        rows.append(Row.from_interval(label, round(epoch, 4), None, mean, hashes(runs)))
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
    "Multiples of the chosen rates on development data: gain of the criterion in a pass of MMI "
    "(nats a second), final loss of cross-entropy training (nats a frame)",
    tuple(rate_name(name, i) for name in TUNED for i in range(len(TRIED))),
    note="One seed and its corpus, which no verdict uses. A dash is a run that diverged: no "
    "numbers, or twice the nats of the start. A rate is at most half of the smallest that "
    f"diverged. The paper: {REPORTED['paper']['rate_one']} with one replica, "
    f"{REPORTED['paper']['rate_many']} with 10 and 50.",
    divergence=True, searches=True,
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


@EXHIBITS.table(
    "p3.frames", "What became of the decoded frames (%)", tuple(REPLICAS.values()),
)  # fmt: skip
def troubles(subject: Subject, runs: Runs) -> Content:
    """Kept, rejected and cancelled frames of the main runs, and troubles of their utterances."""
    printed = {"kept": 100.0 * REPORTED["paper"]["kept"], "cancelled": 100.0 * PAPER_SHARE}
    for n, name in REPLICAS.items():
        for fate in ("kept", "rejected", "cancelled"):
            mean = mean_ci([100.0 * summary_value(run, f"{fate}_frames") for run in runs[name]])
            column, behind = f"frames {fate} (%)", hashes(runs[name])
            yield Row.from_interval(replicas(n), column, printed.get(fate), mean, behind)
    counts = (_troubles(run) for name in REPLICAS.values() for run in runs[name])
    utterances = sorted(sum(counts, Counter[str]()).items())
    listed = ", ".join(f"{trouble} ({count})" for trouble, count in utterances)
    yield f"Utterances in trouble, of all these runs together: {listed or 'none'}."


@unless_missing(Counter[str]())
def _troubles(run: Run) -> Counter[str]:
    """Number of utterances of a run with each trouble."""
    kinds = {key.partition("/")[2]: int(n) for key, n in run.summary.items() if "trouble/" in key}
    return Counter(kinds)


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
        if machine[KEPT] >= 0.9 * PAPER["kept"]:
            return "15% of frames kept"
        return "fewer kept, 200 to 900 updates" if 200 <= machine[UPDATES] <= 900 else ""

    yield from machine_rows(run, SECONDS, STEP, label, *ALL)
    for without in ((UPDATES,), (KEPT,), ()):
        yield describe_allowed(run, *without)
