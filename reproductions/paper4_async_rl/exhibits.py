"""Scores by loss and allowance, hours, throughput, and what staleness the rollouts have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from harness.judge.builders import Runs, unless_missing
from harness.judge.results import Row
from harness.judge.statistics import mean_ci
from harness.simulator.timeline_file import load_timeline
from harness.store import Run
from harness.store.schema import TIMELINE
from reproductions.makers import Content, Exhibits
from reproductions.paper import Subject
from reproductions.paper4_async_rl.experiments import (
    BIAS,
    COLLAPSE,
    ETAS,
    LOSSES,
    PLANS,
    PUBLICATIONS,
    RATES,
    REPORTED,
    cell,
    format_eta,
    hours,
    publication_name,
    timing_name,
)
from reproductions.paper4_async_rl.quantities import (
    PLACES,
    read_printed_loss,
    read_printed_score,
    read_printed_speed_up,
    scores,
    share_kept,
    speed_up,
    throughput,
    times_as_fast,
    values,
)
from reproductions.run_metrics import hashes

READINGS = {"": False, ", own rate": True}
TRAINED = tuple(
    dict.fromkeys(cell(loss, eta, own) for own in (False, True) for loss in LOSSES for eta in ETAS)
)
DRAWN_ETAS = (1.0, 4.0, 16.0)
AXIS = {
    "x_scale": "log",  # of one more than the allowance, since that may be zero
    "x_ticks": [place + 1.0 for place in PLACES.values()],
    "x_labels": [format_eta(eta).replace("inf", "∞") for eta in PLACES],
}


def _hashes(runs: Runs, loss: str, eta: float, searched: bool) -> tuple[str, ...]:
    return hashes(runs[cell(loss, eta, searched)], runs[cell(loss, 0.0, searched)])


def _tell_rates() -> str:
    texts = [
        f"{loss} {', '.join(f'{rate:g} (η = {eta})' for eta, rate in rates.items())}"
        for loss, rates in RATES.items()
    ]
    return "; ".join(texts)


ALLOWANCE = "allowance η"
EXHIBITS = Exhibits()


@EXHIBITS.table(
    "p4.kept", "Share of the gain without an allowance that is kept (%)", TRAINED,
    "Table 2, AIME24",
    "A gain is the score after training less the score before. Own rates, searched on "
    f"development seeds, are {_tell_rates()}.",
)  # fmt: skip
def gains(subject: Subject, runs: Runs) -> Content:
    """The share of the gain that each cell keeps, beside the paper's."""
    for loss in LOSSES:
        for reading, searched in READINGS.items():
            for eta in ETAS[1:]:
                printed = round(100.0 * (1.0 - read_printed_loss(loss, eta)), 1)
                share = 100.0 * share_kept(runs, loss, eta, searched)
                label, behind = f"{loss}{reading}", _hashes(runs, loss, eta, searched)
                yield Row.from_interval(label, f"η = {format_eta(eta)}", printed, share, behind)


def _score_rows(
    runs: Runs, column: Callable[[float], str | float], paper: Callable[..., float | None]
) -> Iterator[Row]:
    for loss in LOSSES:
        for reading, searched in READINGS.items():
            for eta in ETAS:
                score = 100.0 * mean_ci(scores(runs, loss, eta, searched))
                label, behind = f"{loss}{reading}", _hashes(runs, loss, eta, searched)
                yield Row.from_interval(label, column(eta), paper(loss, eta), score, behind)


@EXHIBITS.table("p4.scores", "Score (%)", TRAINED, "Table 2, AIME24")
def score_table(subject: Subject, runs: Runs) -> Content:
    """Scores, beside those of AIME24."""
    yield from _score_rows(runs, lambda eta: f"η = {format_eta(eta)}", read_printed_score)
    before = mean_ci(values(runs[cell("naive", 0.0)], "score_before"))
    yield (
        f"Before training: {100 * before.estimate:.1f} here, "
        f"{REPORTED['score']['start']['aime24']} in the paper, of another test. Shares of the gain "
        "can be compared, scores cannot."
    )


@EXHIBITS.figure(
    "p4.curves", "Score by allowance", TRAINED, (ALLOWANCE, "score (%)"), "Table 2",
    draw={"as": "curves", **AXIS},
)  # fmt: skip
def curves(subject: Subject, runs: Runs) -> Content:
    """The score after training against the allowance."""
    return _score_rows(runs, lambda eta: PLACES[eta] + 1.0, lambda *_: None)


@EXHIBITS.table(
    "p4.hours", "Hours of 1,000 updates", tuple(map(hours, PLANS)), "Table 3",
    "Intervals hold 95% of the draws of what is not known: shares of an update, lengths.",
)  # fmt: skip
def hour_table(subject: Subject, runs: Runs) -> Content:
    """Hours of 1,000 updates with an allowance, from the synchronous hours alone."""
    for plan in PLANS:
        ratio, printed = speed_up(runs, plan), REPORTED["hours"][plan]
        behind = hashes(runs[hours(plan)])
        sync, printed_ratio = printed["synchronous"], round(read_printed_speed_up(plan), 2)
        ends = (sync / ratio.high, sync / ratio.low) if math.isfinite(ratio.high) else None
        yield Row(plan, "synchronous, given", sync, sync, None, behind)
        took = sync / ratio.estimate
        yield Row(plan, "asynchronous", printed["asynchronous"], took, ends, behind)
        yield Row.from_interval(plan, "times as fast", printed_ratio, ratio, behind)


@EXHIBITS.figure(
    "p4.throughput", "Throughput by allowance", tuple(map(timing_name, ETAS)),
    (ALLOWANCE, "tokens a second (of η = 0)"), "Throughput",
    "Simulated: 12 generators, 2,048 rollouts a batch with heavy-tailed lengths.",
    {"as": "curves", **AXIS},
)  # fmt: skip
def throughputs(subject: Subject, runs: Runs) -> Content:
    """Tokens a second against the allowance."""
    for eta in ETAS:
        behind = hashes(runs[timing_name(eta)], runs[timing_name(0.0)])
        ratio = throughput(runs, eta)
        yield Row.from_interval("tokens a second", PLACES[eta] + 1.0, None, ratio, behind)


@EXHIBITS.table(
    "p4.publications", "Throughput with exchanges within rollouts, over others",
    tuple(map(publication_name, PUBLICATIONS)), "Interruptible generation",
    "The paper's figure is the mean of its two models.",
)  # fmt: skip
def publications(subject: Subject, runs: Runs) -> Content:
    """Tokens a second by kind of publication."""
    models = [value for name, value in REPORTED["interruptible"].items() if name != "where"]
    paper, in_flight = sum(models) / len(models), publication_name("in-flight")
    for name in PUBLICATIONS[:2]:
        setting, label = publication_name(name), f"in-flight over {name}"
        ratio, behind = (
            times_as_fast(runs, in_flight, setting),
            hashes(runs[in_flight], runs[setting]),
        )
        yield Row.from_interval(label, "tokens a second", paper, ratio, behind)


Share = tuple[float, float]
"""A staleness and its share of the trained rollouts."""
NO_SHARES = tuple[Share, ...]()


@unless_missing(NO_SHARES)
def _shares(run: Run) -> tuple[Share, ...]:
    """Staleness by a rollout's first token; with the rule of the cells every one is trained on."""
    rows = load_timeline(run.path(TIMELINE)).own.get("rollouts")
    if rows is None:  # a timeline without one fold
        return NO_SHARES
    columns = rows.columns()
    ages = columns["trained_version"] - columns["oldest_version"]
    values, counts = np.unique(ages, return_counts=True)
    return tuple(zip(values.tolist(), (counts / len(ages)).tolist(), strict=True))


@EXHIBITS.figure(
    "p4.staleness", "Staleness of trained rollouts",
    tuple(cell("naive", eta) for eta in DRAWN_ETAS),
    ("versions between a rollout's first token and its training", "rollouts (%)"), "Staleness",
    timelines=1,
)  # fmt: skip
def staleness(subject: Subject, runs: Runs) -> Content:
    """Shares of trained rollouts by staleness, of the first seed."""
    for eta in DRAWN_ETAS:
        run = runs[cell("naive", eta)][0]
        for age, share in _shares(run):
            yield Row(f"η = {format_eta(eta)}", age, None, 100.0 * share, None, (run.hash,))


LAWS: tuple[tuple[str, tuple[str, ...], Callable[[Runs], tuple[Row, ...]], str, str, str], ...] = (
    ("bias", BIAS.names, BIAS.rows, "1,000 × staleness × rate", "norm of the bias",
     "The expected gradient of naive PPO on rollouts of an older version, less that on fresh ones "
     "of the same prompts. The law has one line of slope 1."),
    ("collapse", COLLAPSE.fast_names, COLLAPSE.collapse_rows, "1,000 × rate",
     "updates until the collapse × rate", "A training has collapsed when sampled answers earn half "
     "of the reward before training. Without Adam. The law has level lines."),
    ("limit", COLLAPSE.names, COLLAPSE.limit_rows, "η", "1,000 × largest stable rate",
     "The largest of five rates that does not collapse. The law has a line of slope -1."),
)  # fmt: skip


for _name, _needs, _rows, *_axes, _note in LAWS:

    @EXHIBITS.figure(
        f"p4.{_name}-law", f"Law of staleness: {_axes[1]}", _needs, _axes, "Law", _note,
        {"as": "curves", "x_scale": "log", "y_scale": "log"},
    )  # fmt: skip
    def law(
        subject: Subject, runs: Runs, rows: Callable[[Runs], tuple[Row, ...]] = _rows
    ) -> Content:
        """A law of staleness and rate, drawn on logarithmic scales."""
        yield from rows(runs)
