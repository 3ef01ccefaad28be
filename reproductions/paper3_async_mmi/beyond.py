"""What paper 3 does not show and its reader would ask: what is stable, how old, at what cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from harness.judge.makers import Maker, Runs
from harness.judge.missing import UNKNOWN, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Interval, mean_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import REPLICAS, SWEEPS, fetch_name, map_name
from reproductions.paper3_async_mmi.presets import INTERVALS, KEPT, PRESETS, RATES, REPORTED
from reproductions.paper3_async_mmi.quantities import CRITERION, gain, known_loss, last
from reproductions.readings import hashes, of_summary


def stability(subject: Subject, runs: Runs) -> Exhibit:
    """Rate against replicas: what one pass gains in the criterion, or that it diverged."""
    rows: list[Row] = []
    for replicas in REPLICAS:
        for i, rate in enumerate(PRESETS[subject.scale].rates):
            group = runs[map_name(replicas, i)]
            label = f"{replicas} replica{'s' * (replicas > 1)}"
            mean, names = _mean_gain(group), hashes(group)
            rows.append(Row.of(label, f"gain at {rate:g}", None, mean, names))
            rows.append(Row(label, f"diverged at {rate:g}", None, _diverged(group), None, names))
    return Exhibit(
        "p3.stability", "table",
        "One pass of MMI by rate and replicas: gain of the criterion (nats a second), and how "
        "many seeds diverged",
        tuple(rows), paper_label="Beyond the paper",
        note=f"The paper: largest stable rates {REPORTED['paper']['rate_one']} with one replica, "
        f"{REPORTED['paper']['rate_many']} with 10 and 50. A gain is given where no seed diverged. "
        "Diverged means no numbers, or twice the nats of the start.",
    )  # fmt: skip


@unless_missing(UNKNOWN)
def _mean_gain(runs: Sequence[Run]) -> Interval:
    return mean_ci([100.0 * gain(run) for run in runs])


@unless_missing(math.nan)
def _diverged(runs: Sequence[Run]) -> float:
    return sum(run.status == "diverged" for run in runs)


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
            label = f"{n} replica{'s' * (n > 1)}"
            rows.append(Row.of(label, column, paper, mean, hashes(group)))
    return Exhibit(
        "p3.lags", "table", "Mean age of gradients at the fold, with the paper's own sizes",
        tuple(rows), paper_label="Beyond the paper",
        note="32 slots, utterances of 240 frames of which 15% are kept, 26.7 MB of parameters "
        "over a gigabit a second to every machine, which the paper does not say.",
    )  # fmt: skip


def fetching(subject: Subject, runs: Runs) -> Exhibit:
    """What a fetch interval costs of the criterion's gain, in the three sweeps."""
    intervals = PRESETS[subject.scale].fetch
    rows: list[Row] = []
    for sweep, label in SWEEPS.items():
        for i in range(1, len(intervals) + 1):
            loss, group = known_loss(runs, sweep, i), runs[fetch_name(sweep, i)]
            left = 100.0 * (1 - loss)
            seconds = group[0].config["fetch_s"]
            column = f"every {seconds / 60:.3g} min ({intervals[i - 1]:g})"
            rows.append(Row.of(label, column, None, left, hashes(group)))
    return Exhibit(
        "p3.fetching", "table",
        "Gain of the criterion (%) by fetch interval, of the gain when fetching at each utterance",
        tuple(rows), paper_label="Beyond the paper",
        note=f"In brackets the interval in passes over the corpus, if {KEPT:.0%} of the frames are "
        "kept. "
        "Each decoder fetches as its next utterance begins after the common moment. A run that "
        "diverged or ended below its start gained nothing.",
    )  # fmt: skip


def troubles(subject: Subject, runs: Runs) -> Exhibit:
    """What happened to the frames and utterances of the main runs."""
    rows: list[Row] = []
    for n, name in REPLICAS.items():
        group = runs[name]
        for column in ("kept", "rejected", "cancelled"):
            mean = mean_ci([100.0 * of_summary(run, f"{column}_frames") for run in group])
            paper = None
            if column != "rejected":
                share = REPORTED["paper"]["kept"] if column == "kept" else 0.85
                paper = 100.0 * share
            label = f"{n} replica{'s' * (n > 1)}"
            rows.append(Row.of(label, f"frames {column} (%)", paper, mean, hashes(group)))
    every = (_troubles(run) for name in REPLICAS.values() for run in runs[name])
    found = sum(every, Counter[str]())
    told = ", ".join(f"{trouble} {count}" for trouble, count in sorted(found.items()))
    return Exhibit(
        "p3.frames", "table", "What became of the decoded frames (%)", tuple(rows),
        paper_label="Beyond the paper",
        note=f"Utterances with something to tell, in all these runs: {told or 'none'}.",
    )  # fmt: skip


@unless_missing(Counter[str]())
def _troubles(run: Run) -> Counter[str]:
    """How many utterances of a run had each trouble."""
    kinds = {key.partition("/")[2]: int(n) for key, n in run.summary.items() if "trouble/" in key}
    return Counter(kinds)


def final_criterion(subject: Subject, runs: Runs) -> Exhibit:
    """Held-out criterion at the end of each shuffling."""
    labels = {"unshuffled": "none", "ten": "on the fly", "full": "full"}
    rows: list[Row] = []
    for name, label in labels.items():
        mean = mean_ci(100.0 * last(runs[name], CRITERION))
        column = "criterion (nats a second)"
        rows.append(Row.of(label, column, None, mean, hashes(runs[name])))
    return Exhibit(
        "p3.shuffling-criterion", "table", "Final criterion on held-out speech by shuffling",
        tuple(rows), paper_label="Beyond the paper",
    )  # fmt: skip


MAP = tuple(map_name(n, i) for n in REPLICAS for i in range(RATES))
SWEPT = tuple(fetch_name(sweep, i) for sweep in SWEEPS for i in range(INTERVALS + 1))
BEYOND = (
    Maker("p3.stability", MAP, stability, divergence=True),
    Maker("p3.lags", tuple(f"timing {n}" for n in REPLICAS), lags),
    Maker("p3.fetching", SWEPT, fetching, divergence=True),
    Maker("p3.frames", tuple(REPLICAS.values()), troubles),
    Maker("p3.shuffling-criterion", ("unshuffled", "ten", "full"), final_criterion),
)
