"""What paper 3 does not show and its reader would ask: what was tuned, how old, at what cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from harness.judge.makers import NO_ROWS, Maker, Runs, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import rate_name
from reproductions.paper3_async_mmi.law import LAW
from reproductions.paper3_async_mmi.presets import (
    INTERVALS,
    PRESETS,
    REPORTED,
    SWEEPS,
    TRIED,
    TUNED,
    replicas,
)
from reproductions.paper3_async_mmi.quantities import WORD_ERROR, gain, left, sweep_of
from reproductions.paper3_async_mmi.rivals import BESIDE
from reproductions.paper3_async_mmi.tolerance import exponential, shape_told, tolerances
from reproductions.paper3_async_mmi.trainings import REPLICAS, UNLIKE, fetch_name
from reproductions.readings import hashes, of_summary

LOSS = "dev_loss/iterate"
"""Of cross-entropy training, what its rates are chosen by."""


def rates(subject: Subject, runs: Runs) -> Exhibit:
    """What was tried for every rate that was chosen, on the development seed and corpus."""
    chosen = PRESETS[subject.scale].rates
    rows: list[Row] = []
    for name in TUNED:
        crossed = name in ("full", *UNLIKE)
        label = f"cross-entropy, {name}: loss" if crossed else f"MMI, {name}: gain"
        rows.append(Row(label, "rate", None, chosen[name]))
        for i, factor in enumerate(TRIED):
            group = runs[rate_name(name, i)]  # one run, whatever the seed
            found = [_loss(run) if crossed else 100.0 * _gain(run) for run in group]
            column = f"{factor:g} × rate"
            rows.append(Row(label, column, None, float(np.mean(found)), None, hashes(group)))
    return Exhibit(
        "p3.rates", "table",
        "Rates that were tried on development data: gain of the criterion in a pass of MMI (nats a "
        "second), final loss of cross-entropy training (nats a frame)",
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
            mean = mean_ci([of_summary(run, name) for run in group])
            paper = REPORTED["claims"]["lag_s"] if (n, column) == (50, "outer, s") else None
            label = replicas(n)
            rows.append(Row.of(label, column, paper, mean, hashes(group)))
    return Exhibit(
        "p3.lags", "table", "Mean age of gradients at the fold, with the paper's own sizes",
        tuple(rows), paper_label="Beyond the paper",
        note="32 slots, utterances of 240 frames of which 15% are kept, 26.7 MB of parameters "
        "over a gigabit a second to every machine, which the paper does not say.",
    )  # fmt: skip


def fetching(subject: Subject, runs: Runs) -> Exhibit:
    """What a fetch interval leaves of the criterion's gain, in the three sweeps."""
    rows: list[Row] = []
    sweeps = {name: sweep_of(subject, runs, name) for name in SWEEPS}
    for sweep, label in SWEEPS.items():
        found = sweeps[sweep]
        for i in range(1, INTERVALS + 1):
            group, passes = runs[fetch_name(sweep, i)], float(found.intervals[i])
            rows.append(Row.of(label, passes, None, 100.0 * left(found, i), hashes(group)))
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
    """How many frames cancel, against the word error of whoever decodes them."""
    del subject
    rows: list[Row] = []
    for label, name in (("small task", "ten"), ("large task", "large")):
        rows += _cancelled(label, runs[name])
    rows.append(Row("paper", REPORTED["table1"]["small"]["ce"], None, 100 * PAPER_SHARE))
    return Exhibit(
        "p3.cancel-curve", "figure", "Frames that cancel, by word error while MMI trains",
        tuple(rows),
        axes={"x": "word error, unigram (%), held-out speech", "y": "frames cancelled (%)"},
        draw={"as": "curves"}, paper_label="Beyond the paper",
        note="The paper's point stands at its cross-entropy word error, of its test set.",
    )  # fmt: skip


@unless_missing(NO_ROWS)
def _cancelled(label: str, runs: Sequence[Run]) -> tuple[Row, ...]:
    """Shares of frames between two readings, at the mean word error of the later one."""
    epochs = runs[0].curve("cancelled_frames")[0]
    shares = np.array([run.curve("cancelled_frames")[1] for run in runs])
    errors = np.array([np.interp(epochs, *run.curve(WORD_ERROR)[:2]) for run in runs])
    return tuple(
        Row.of(label, round(100.0 * float(x), 4), None, mean_ci(100.0 * y), hashes(runs))
        for x, y in zip(errors.mean(axis=0), shares.T, strict=True)
    )


PAPER_SHARE: float = REPORTED["claims"]["cancelled"]


def troubles(subject: Subject, runs: Runs) -> Exhibit:
    """What happened to the frames and utterances of the main runs."""
    rows: list[Row] = []
    for n, name in REPLICAS.items():
        group = runs[name]
        for column in ("kept", "rejected", "cancelled"):
            mean = mean_ci([100.0 * of_summary(run, f"{column}_frames") for run in group])
            paper = None
            if column != "rejected":
                share = REPORTED["paper"]["kept"] if column == "kept" else PAPER_SHARE
                paper = 100.0 * share
            label = replicas(n)
            rows.append(Row.of(label, f"frames {column} (%)", paper, mean, hashes(group)))
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
    """How many utterances of a run had each trouble."""
    kinds = {key.partition("/")[2]: int(n) for key, n in run.summary.items() if "trouble/" in key}
    return Counter(kinds)


SWEPT = tuple(fetch_name(sweep, i) for sweep in SWEEPS for i in range(INTERVALS + 1))
TUNING = tuple(rate_name(name, i) for name in TUNED for i in range(len(TRIED)))
BEYOND = (
    Maker("p3.rates", TUNING, rates, divergence=True),
    Maker("p3.lags", tuple(f"timing {n}" for n in REPLICAS), lags),
    Maker("p3.fetching", SWEPT, fetching, divergence=True),
    Maker("p3.frames", tuple(REPLICAS.values()), troubles),
    Maker("p3.cancel-curve", ("ten", "large"), cancelling),
    *LAW,
    BESIDE,
)
