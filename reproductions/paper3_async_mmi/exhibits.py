"""Paper 3's figures and tables, and exhibits beyond it, from finished runs.

Beyond the paper are the tuning, the age of gradients, fetch intervals and frames that cancel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.base.seeds import identity
from harness.judge.builders import NO_ROWS, UNKNOWN, Maker, Runs, unless_missing
from harness.judge.interval import Interval
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci
from harness.judge.utterances import rate_ci
from harness.simulator.timeline_file import load_timeline
from harness.store import Run
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


def fig1(subject: Subject, runs: Runs) -> Exhibit:
    """The architecture with its three paths of staleness, each with its simulated lag."""
    rows: list[Row] = []
    for name in LABELS:
        for path, label in PATHS.items():
            for unit, key in (("s", "lag_s_mean"), ("updates", "staleness_mean")):
                mean = mean_ci([summary_value(run, f"{path}_{key}") for run in runs[name]])
                column = f"{LABELS[name]}, {unit}"
                rows.append(Row.from_interval(label, column, None, mean, hashes(runs[name])))
    return Exhibit(
        "p3.fig1", "figure", "Asynchronous sequence training: three independent paths of staleness",
        tuple(rows), axes={}, draw={"as": "architecture", "column": LABELS["ten"]},
        paper_label="Figure 1",
        note="Mean ages in our own runs, whose minibatches are smaller than the paper's; the "
        "paper's own sizes are timed in p3.lags. Drawn for 10 replicas.",
    )  # fmt: skip


def fig2(subject: Subject, runs: Runs) -> Exhibit:
    """Utterance in each slot of one replica's minibatches, step by step."""
    run = runs["one"][0]
    slots = _slots(run)
    rows = [
        Row(f"slot {i + 1}", step, None, int(utterance), None, (run.hash,))
        for i, lane in enumerate(slots)
        for step, utterance in lane
    ]
    return Exhibit(
        "p3.fig2", "figure",
        "On-the-fly shuffling: each minibatch has one frame of each slot's utterance",
        tuple(rows), axes={"x": "minibatch of one replica", "y": "slot"}, draw={"as": "slots"},
        paper_label="Figure 2",
        note="Read off the timeline that drove a run: an utterance's length here is what was "
        "left of it after rejection and cancellation. Numbers count decoded utterances.",
    )  # fmt: skip


def fig3(subject: Subject, runs: Runs) -> Exhibit:
    """The criterion and its auxiliary function along the way from start to end of a training."""
    del subject
    run = runs["line"][0]
    behind = (run.hash, identity(run.config["training"]))
    rows = [
        Row(label, float(x), None, float(y), None, behind)
        for label, name in (("criterion", "criterion"), ("auxiliary function", "auxiliary"))
        for x, y in zip(*run.curve(name)[:2], strict=True)
    ]
    return Exhibit(
        "p3.fig3", "figure", "The auxiliary function touches the criterion at the start",
        tuple(rows),
        axes={"x": "way from the start (0) to the trained model (1)", "y": "nats a frame"},
        draw={"as": "curves"}, paper_label="Figure 3",
        note="Computed in double precision along the straight line through parameter space, "
        "first seed. The paper's left sketch; a lower bound (right) is not constructed there.",
    )  # fmt: skip


def shuffling(subject: Subject, runs: Runs) -> Exhibit:
    """Test word error without shuffling, with shuffling on the fly, and in full."""
    rows = [
        _error_row(subject, label, "word error (%)", runs[name], REPORTED["shuffling"][label])
        for label, name in SHUFFLED.items()
    ]
    return Exhibit(
        "p3.shuffling", "table", "Test word error (%) by how training frames are shuffled",
        tuple(rows), paper_label="Section 4.2, Data shuffling",
        note=f"Cross-entropy training from scratch, one replica, {error_note(subject)}",
    )  # fmt: skip


def fig4(subject: Subject, runs: Runs) -> Exhibit:
    """Gain of the held-out criterion against simulated time, for 1, 10 and 50 replicas."""
    del subject
    return _replicas_figure(
        "p3.fig4", "MMI criterion on held-out speech, change from the start, by simulated time",
        "gain, share of what the start lacks (%)", CRITERION, runs,
        f"Upper part of the figure; the lower is p3.fig4-wer. {PAIRED}",
    )  # fmt: skip


def fig4_wer(subject: Subject, runs: Runs) -> Exhibit:
    """Change of held-out word error against simulated time, for 1, 10 and 50 replicas."""
    del subject
    return _replicas_figure(
        "p3.fig4-wer", "Word error on held-out speech, change from the start, by simulated time",
        "word error, relative change (%)", WORD_ERROR, runs, PAIRED,
    )  # fmt: skip


PAIRED = (
    "Corpora differ more than settings do, so each seed's curve is its change from its own start, "
    "the cross-entropy model that all replicas begin from. Differences are of readings after "
    "equally many utterances, so at different times."
)


def _replicas_figure(
    id_: str, title: str, unit: str, metric: str, runs: Runs, note: str = ""
) -> Exhibit:
    rows = [
        row
        for name, label in LABELS.items()
        for row in _time_rows(label, runs[name], metric, 1.0, change=True)
    ]
    return Exhibit(
        id_, "figure", title, tuple(rows), axes={"x": "simulated time (h)", "y": unit},
        draw={"as": "curves", "x_scale": "log", "against": LABELS["one"]},
        paper_label="Figure 4", note=note,
    )  # fmt: skip


def fig5(subject: Subject, runs: Runs) -> Exhibit:
    """Held-out criterion against time while decoders fetch every so often."""
    intervals = PRESETS[subject.scale].fetch["last"]
    rows: list[Row] = []
    for i in range(INTERVALS + 1):
        group = runs[fetch_name("last", i)]
        label = "each utterance"
        if i:
            seconds = group[0].config["fetch_s"]
            label = f"every {seconds / 60:.3g} min ({intervals[i - 1]:g} passes)"
        rows += _time_rows(label, group, CRITERION, 100.0)
    return Exhibit(
        "p3.fig5", "figure", "Fetch interval of the decoders' parameters: criterion, last layer",
        tuple(rows), axes={"x": "simulated time (h)", "y": "criterion (nats a second)"},
        draw={"as": "curves", "against": "each utterance"}, paper_label="Figure 5",
        note="Ten replicas, last layer updated. All fetch after the same moments, each as its next "
        "utterance begins. The paper's lower part, word error, is not drawn: no words are "
        "recognised in the sweeps.",
    )  # fmt: skip


def fig6(subject: Subject, runs: Runs) -> Exhibit:
    """Frame error against word error while the criterion improves."""
    rows: list[Row] = []
    for label, name in (("frame error", FRAME_ERROR), ("word error, unigram", WORD_ERROR)):
        rows += _epoch_rows(label, runs["ten"], name, 100.0)
    return Exhibit(
        "p3.fig6", "figure", "Frame error and word error on held-out speech while MMI improves",
        tuple(rows), axes={"x": "passes over the training set", "y": "change from the start (%)"},
        draw={"as": "curves"}, paper_label="Figure 6",
        note="Differences from the start in points, so that both fit one axis. Ten replicas.",
    )  # fmt: skip


def fig7(subject: Subject, runs: Runs) -> Exhibit:
    """Held-out criterion when all layers or the last one are updated."""
    del subject
    return _layers_figure(
        "p3.fig7", "Criterion on held-out speech: all layers or the last one updated",
        "criterion (nats a second)", CRITERION, runs,
        "Upper part of the figure; the lower is p3.fig7-wer.",
    )  # fmt: skip


def fig7_wer(subject: Subject, runs: Runs) -> Exhibit:
    """Held-out word error when all layers or the last one are updated."""
    del subject
    return _layers_figure(
        "p3.fig7-wer", "Word error on held-out speech: all layers or the last one updated",
        "word error, unigram (%)", WORD_ERROR, runs,
        "The paper prints 10.9% test word error for both; see p3.all-layers.",
    )  # fmt: skip


def _layers_figure(id_: str, title: str, unit: str, metric: str, runs: Runs, note: str) -> Exhibit:
    rows = [
        row
        for label, name in (("all layers", "ten"), ("last layer", "last"))
        for row in _time_rows(label, runs[name], metric, 100.0)
    ]
    return Exhibit(
        id_, "figure", title, tuple(rows), axes={"x": "simulated time (h)", "y": unit},
        draw={"as": "curves", "against": "last layer"}, paper_label="Figure 7", note=note,
    )  # fmt: skip


def table1(subject: Subject, runs: Runs) -> Exhibit:
    """Test word error of cross-entropy and MMI training on both tasks."""
    tasks = {"small": ("ce", "ten")}
    if subject.corpus.name == SMALL:
        tasks["large"] = ("large ce", "large")
    rows: list[Row] = []
    for label, which in (("CE", 0), ("MMI", 1)):
        for task, names in tasks.items():
            printed = REPORTED["table1"][task][label.lower()]
            group = runs[names[which]]
            rows.append(_error_row(subject, label, f"{task} task", group, printed))
    return Exhibit(
        "p3.table1", "table", "Test word error (%)", tuple(rows), paper_label="Table 1",
        note=f"Ten replicas, the large task for one pass; {error_note(subject)}",
    )  # fmt: skip


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
            found = [scale * values[i] for _, values, _ in curves]
            if change:
                found = [100.0 * (v[i] - v[0]) / abs(v[0]) for _, v, _ in curves]
            rows.append(
                Row.from_interval(label, round(hours, 6), None, mean_ci(found), hashes(runs))
            )
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
    lanes: list[list[tuple[int, int]]] = [[] for _ in range(run.config["slots"])]
    for i in np.flatnonzero((decodes.worker == 0) & (decodes.first_step < DRAWN_STEPS)).tolist():
        first = int(decodes.first_step[i])
        until = min(first + int(decodes.steps[i]), DRAWN_STEPS)
        utterance = int(decodes.utterance[i])
        lanes[int(decodes.slot[i])] += [(step, utterance) for step in range(first, until)]
    return lanes


THREE = tuple(REPLICAS.values())

SWEEP = tuple(fetch_name("last", i) for i in range(INTERVALS + 1))

EXHIBITS = (
    Maker("p3.fig1", THREE, fig1),
    Maker("p3.fig2", ("one",), fig2, timelines=1),
    Maker("p3.fig3", ("line",), fig3),
    Maker("p3.shuffling", tuple(SHUFFLED.values()), shuffling),
    Maker("p3.fig4", THREE, fig4),
    Maker("p3.fig4-wer", THREE, fig4_wer),
    Maker("p3.fig5", SWEEP, fig5, divergence=True),
    Maker("p3.fig6", ("ten",), fig6),
    Maker("p3.fig7", ("ten", "last"), fig7),
    Maker("p3.fig7-wer", ("ten", "last"), fig7_wer),
    Maker("p3.table1", ("ce", "ten", "large ce", "large"), table1),
)

LOSS = "dev_loss/iterate"
"""Metric that chooses the rates of cross-entropy training."""


def rates(subject: Subject, runs: Runs) -> Exhibit:
    """The tried multiples of every chosen rate, on the development seed and corpus."""
    chosen = PRESETS[subject.scale].rates
    rows: list[Row] = []
    for name in TUNED:
        crossed = name in ("full", *UNLIKE)
        what = f"cross-entropy, {name}: loss" if crossed else f"MMI, {name}: gain"
        label = f"{what}, at {chosen[name]:g}"
        for i, factor in enumerate(TRIED):
            group = runs[rate_name(name, i)]  # one run, whatever the seed
            found = [_loss(run) if crossed else 100.0 * _gain(run) for run in group]
            column = f"{factor:g} × rate"
            rows.append(Row(label, column, None, float(np.mean(found)), None, hashes(group)))
    return Exhibit(
        "p3.rates", "table",
        "Multiples of the chosen rates on development data: gain of the criterion in a pass of MMI "
        "(nats a second), final loss of cross-entropy training (nats a frame)",
        tuple(rows), paper_label="Beyond the paper",
        note="One seed and its corpus, which no verdict uses. A dash is a run that diverged: no "
        "numbers, or twice the nats of the start. A rate is at most half of the smallest that "
        f"diverged. The paper: {REPORTED['paper']['rate_one']} with one replica, "
        f"{REPORTED['paper']['rate_many']} with 10 and 50.",
    )  # fmt: skip


_gain = unless_missing(math.nan)(gain)


@unless_missing(math.nan)
def _loss(run: Run) -> float:
    return run.summary[LOSS] if run.status == "done" else math.nan


def lags(subject: Subject, runs: Runs) -> Exhibit:
    """The paper's own sizes on its cluster: ages of gradients by replicas, simulated."""
    rows: list[Row] = []
    columns = {
        "outer, s": "outer_lag_s_mean",
        "outer, updates": "outer_staleness_mean",
        "inner, s": "mean_lag_s",
        "inner, updates": "mean_staleness",
        "updates a second": "throughput_per_s",
    }
    for n in REPLICAS:
        group = runs[f"timing {n}"]
        for column, name in columns.items():
            mean = mean_ci([summary_value(run, name) for run in group])
            paper = REPORTED["claims"]["lag_s"] if (n, column) == (50, "outer, s") else None
            label = replicas(n)
            rows.append(Row.from_interval(label, column, paper, mean, hashes(group)))
    return Exhibit(
        "p3.lags", "table", "Mean age of gradients at the fold, with the paper's own sizes",
        tuple(rows), paper_label="Beyond the paper",
        note="32 slots, utterances of 240 frames of which 15% are kept, 26.7 MB of parameters "
        "over a gigabit a second to every machine, which the paper does not say.",
    )  # fmt: skip


def fetching(subject: Subject, runs: Runs) -> Exhibit:
    """Share of the criterion's gain left by each fetch interval, in the three sweeps."""
    rows: list[Row] = []
    sweeps = {name: sweep_of(subject, runs, name) for name in SWEEPS}
    for sweep, label in SWEEPS.items():
        found = sweeps[sweep]
        for i in range(1, INTERVALS + 1):
            group, passes = runs[fetch_name(sweep, i)], float(found.intervals[i])
            rows.append(
                Row.from_interval(label, passes, None, 100.0 * gain_left(found, i), hashes(group))
            )
    stars = map(exponential, tolerances(list(sweeps.values())))
    alone = ", ".join(shape_told([found]) for found in sweeps.values())
    told = ", ".join(
        f"{label} {star.estimate:.3g} [{star.low:.3g}, {star.high:.3g}]"
        if math.isfinite(star.estimate)
        else f"{label} not found"
        for label, star in zip(SWEEPS.values(), stars, strict=True)
    )
    return Exhibit(
        "p3.fetching", "figure",
        "Gain of the criterion by fetch interval, of the gain when fetching at each utterance",
        tuple(rows), axes={"x": "fetch interval (passes)", "y": "gain left (%)"},
        draw={"as": "curves", "x_scale": "log"}, paper_label="Beyond the paper",
        note=f"Fitted T* in passes: {told}. The loss goes with T to the power of "
        f"{shape_told(list(sweeps.values()))}, by each sweep alone {alone}. Each decoder fetches "
        "as its next utterance begins after the common moment. A run that diverged or ended below "
        "its start gained nothing.",
    )  # fmt: skip


def cancelling(subject: Subject, runs: Runs) -> Exhibit:
    """Share of frames that cancel, as MMI training goes on."""
    del subject
    rows, told = list[Row](), list[str]()
    for label, name, paper in (
        ("small task", "ten", 100 * PAPER_SHARE),
        ("large task", "large", None),
    ):
        rows += _cancellation_rows(label, runs[name], paper)
        told.append(_describe_errors(label, runs[name]))
    return Exhibit(
        "p3.cancel-curve", "figure", "Frames that cancel while MMI trains", tuple(rows),
        axes={"x": "passes over the training data", "y": "frames cancelled (%)"},
        draw={"as": "curves"}, paper_label="Beyond the paper",
        note=f"{' '.join(told)} The paper's share is of the small task, without a time.",
    )  # fmt: skip


@unless_missing(NO_ROWS)
def _cancellation_rows(label: str, runs: Sequence[Run], paper: float | None) -> tuple[Row, ...]:
    """Shares of frames since the reading before; the paper's beside the last."""
    epochs = runs[0].curve("cancelled_frames")[0]
    shares = 100.0 * np.array([run.curve("cancelled_frames")[1] for run in runs])
    at = zip(epochs, shares.T, strict=True)
    rows = [
        Row.from_interval(label, round(float(x), 4), None, mean_ci(y), hashes(runs)) for x, y in at
    ]
    return (*rows[:-1], replace(rows[-1], paper=paper))


@unless_missing("")
def _describe_errors(label: str, runs: Sequence[Run]) -> str:
    """Sentence with the word errors at the ends of training."""
    first, last = (
        100.0 * float(np.mean([run.curve(WORD_ERROR)[1][end] for run in runs])) for end in (0, -1)
    )
    return f"On the {label} held-out word error goes from {first:.1f} to {last:.1f}%."


PAPER_SHARE: float = REPORTED["claims"]["cancelled"]


def troubles(subject: Subject, runs: Runs) -> Exhibit:
    """Kept, rejected and cancelled frames of the main runs, and troubles of their utterances."""
    rows: list[Row] = []
    for n, name in REPLICAS.items():
        group = runs[name]
        for column in ("kept", "rejected", "cancelled"):
            mean = mean_ci([100.0 * summary_value(run, f"{column}_frames") for run in group])
            paper = None
            if column != "rejected":
                share = REPORTED["paper"]["kept"] if column == "kept" else PAPER_SHARE
                paper = 100.0 * share
            label = replicas(n)
            rows.append(
                Row.from_interval(label, f"frames {column} (%)", paper, mean, hashes(group))
            )
    every = (_troubles(run) for name in REPLICAS.values() for run in runs[name])
    found = sum(every, Counter[str]())
    told = ", ".join(f"{trouble} ({count})" for trouble, count in sorted(found.items()))
    return Exhibit(
        "p3.frames", "table", "What became of the decoded frames (%)", tuple(rows),
        paper_label="Beyond the paper",
        note=f"Utterances in trouble, of all these runs together: {told or 'none'}.",
    )  # fmt: skip


@unless_missing(Counter[str]())
def _troubles(run: Run) -> Counter[str]:
    """Number of utterances of a run with each trouble."""
    kinds = {key.partition("/")[2]: int(n) for key, n in run.summary.items() if "trouble/" in key}
    return Counter(kinds)


SWEPT = tuple(fetch_name(sweep, i) for sweep in SWEEPS for i in range(INTERVALS + 1))

TUNING = tuple(rate_name(name, i) for name in TUNED for i in range(len(TRIED)))

BEYOND = (
    Maker("p3.rates", TUNING, rates, divergence=True, searches=True),
    Maker("p3.lags", tuple(f"timing {n}" for n in REPLICAS), lags),
    Maker("p3.fetching", SWEPT, fetching, divergence=True),
    Maker("p3.frames", tuple(REPLICAS.values()), troubles),
    Maker("p3.cancel-curve", ("ten", "large"), cancelling),
)
