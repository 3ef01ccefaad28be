"""Scores by loss and allowance, hours, throughput, and what staleness the rollouts have."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from harness.judge.builders import Maker, Runs, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import mean_ci
from harness.simulator.timeline_file import load_timeline
from harness.store import Run
from harness.store.schema import TIMELINE
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
    RULES,
    cell,
    format_eta,
    hours,
    pacing_name,
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
AXIS = {"x_scale": "log", "x_ticks": [eta + 1.0 for eta in PLACES.values()]}


def gains(subject: Subject, runs: Runs) -> Exhibit:
    """The share of the gain that each cell keeps, beside the paper's."""
    del subject
    rows = [
        Row.from_interval(
            f"{loss}{told}", f"η = {format_eta(eta)}",
            round(100.0 * (1.0 - read_printed_loss(loss, eta)), 1),
            100.0 * share_kept(runs, loss, eta, searched), _hashes(runs, loss, eta, searched),
        )
        for loss in LOSSES
        for told, searched in READINGS.items()
        for eta in ETAS[1:]
    ]  # fmt: skip
    return Exhibit(
        "p4.kept", "table", "Share of the gain without an allowance that is kept (%)", tuple(rows),
        paper_label="Table 2, AIME24",
        note="A gain is the score after training less the score before. Own rates, searched on "
        f"development seeds, are {_tell_rates()}.",
    )  # fmt: skip


def _score_rows(
    runs: Runs, column: Callable[[float], str | float], paper: Callable[..., float | None]
) -> list[Row]:
    return [
        Row.from_interval(
            f"{loss}{told}", column(eta), paper(loss, eta),
            100.0 * mean_ci(scores(runs, loss, eta, searched)), _hashes(runs, loss, eta, searched),
        )
        for loss in LOSSES
        for told, searched in READINGS.items()
        for eta in ETAS
    ]  # fmt: skip


def score_table(subject: Subject, runs: Runs) -> Exhibit:
    """Scores, beside those of AIME24."""
    del subject
    rows = _score_rows(runs, lambda eta: f"η = {format_eta(eta)}", read_printed_score)
    before = mean_ci(values(runs[cell("naive", 0.0)], "score_before"))
    return Exhibit(
        "p4.scores", "table", "Score (%)", tuple(rows), paper_label="Table 2, AIME24",
        note=f"Before training: {100 * before.estimate:.1f} here, "
        f"{REPORTED['score']['start']['aime24']} in the paper, of another test. Shares of the gain "
        "can be compared, scores cannot.",
    )  # fmt: skip


def curves(subject: Subject, runs: Runs) -> Exhibit:
    """The score after training against the allowance."""
    del subject
    rows = _score_rows(runs, lambda eta: PLACES[eta] + 1.0, lambda *_: None)
    return Exhibit(
        "p4.curves", "figure", "Score by allowance", tuple(rows),
        axes={"x": "η + 1; 34 without an allowance", "y": "score (%)"},
        draw={"as": "curves", **AXIS}, paper_label="Table 2",
    )  # fmt: skip


def hour_table(subject: Subject, runs: Runs) -> Exhibit:
    """Hours of 1,000 updates with an allowance, from the synchronous hours alone."""
    del subject
    rows: list[Row] = []
    for plan in PLANS:
        found, printed = speed_up(runs, plan), REPORTED["hours"][plan]
        given, name = printed["synchronous"], hashes(runs[hours(plan)])
        ends = (given / found.high, given / found.low) if math.isfinite(found.high) else None
        rows += [
            Row(plan, "synchronous, given", given, given, None, name),
            Row(plan, "asynchronous", printed["asynchronous"], given / found.estimate, ends, name),
            Row.from_interval(
                plan, "times as fast", round(read_printed_speed_up(plan), 2), found, name
            ),
        ]
    return Exhibit(
        "p4.hours", "table", "Hours of 1,000 updates", tuple(rows), paper_label="Table 3",
        note="Intervals hold 95% of the draws of what is not known: shares of an update, lengths.",
    )  # fmt: skip


def throughputs(subject: Subject, runs: Runs) -> Exhibit:
    """Tokens a second against the allowance."""
    del subject
    rows = [
        Row.from_interval("tokens a second", PLACES[eta] + 1.0, None, throughput(runs, eta),
                          hashes(runs[timing_name(eta)], runs[timing_name(0.0)]))
        for eta in ETAS
    ]  # fmt: skip
    return Exhibit(
        "p4.throughput", "figure", "Throughput by allowance", tuple(rows),
        axes={"x": "η + 1; 34 without an allowance", "y": "tokens a second (of η = 0)"},
        draw={"as": "curves", **AXIS}, paper_label="Throughput",
        note="Simulated: 12 generators, 2,048 rollouts a batch with heavy-tailed lengths.",
    )  # fmt: skip


def publications(subject: Subject, runs: Runs) -> Exhibit:
    """Tokens a second by kind of publication."""
    del subject
    models = [value for name, value in REPORTED["interruptible"].items() if name != "where"]
    rows = [
        Row.from_interval(
            f"in-flight over {other}", "tokens a second", sum(models) / len(models),
            times_as_fast(runs, publication_name("in-flight"), publication_name(other)),
            hashes(runs[publication_name("in-flight")], runs[publication_name(other)]),
        )
        for other in PUBLICATIONS[:2]
    ]  # fmt: skip
    return Exhibit(
        "p4.publications", "table", "Throughput with exchanges within rollouts, over others",
        tuple(rows), paper_label="Interruptible generation",
        note="The paper's figure is the mean of its two models.",
    )  # fmt: skip


PACED = {
    "thrown away (%)": ("thrown_away", 100.0),
    "thrown away, one digit (%)": ("thrown_away/1", 100.0),
    "thrown away, two digits (%)": ("thrown_away/2", 100.0),
    "tokens a second": ("tokens_per_s", 1.0),
    "staleness of a token": ("staleness_tokens", 1.0),
    "largest staleness of a rollout": ("staleness_most", 1.0),
    "tokens of a trained rollout": ("trained_tokens", 1.0),
    "tokens of one thrown away": ("thrown_tokens", 1.0),
    "reward of a trained rollout (%)": ("trained_reward", 100.0),
    "reward of one thrown away (%)": ("thrown_reward", 100.0),
    "score (%)": ("score", 100.0),
    "score, one digit (%)": ("score/1", 100.0),
    "score, two digits (%)": ("score/2", 100.0),
}
"""Rows of the comparison of two rules: key of a run's summary, and unit."""


def pacing(subject: Subject, runs: Runs) -> Exhibit:
    """Rollouts held back against rollouts thrown away, at the same allowance."""
    del subject
    rows = [
        Row.from_interval(label, rule, None, unit * mean_ci(values(group, key)), hashes(group))
        for label, (key, unit) in PACED.items()
        for rule in RULES
        for group in [runs[pacing_name(rule)]]
        if rule != RULES[0] or "thrown away" not in label or key == "thrown_away"
    ]
    return Exhibit(
        "p4.pacing", "table", "Holding rollouts back or throwing them away, at η = 4", tuple(rows),
        paper_label="Beyond the paper",
        note="Environments take heavy-tailed seconds. Admission throws nothing away, and a "
        "straggler may be much older than η; discard throws a whole group away once one token is.",
    )  # fmt: skip


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


def law(number: int, subject: Subject, runs: Runs) -> Exhibit:
    """A law of staleness and rate, drawn on logarithmic scales."""
    del subject
    name, _, rows, x, y, note = LAWS[number]
    return Exhibit(
        f"p4.{name}-law", "figure", f"Law of staleness: {y}", rows(runs), axes={"x": x, "y": y},
        draw={"as": "curves", "x_scale": "log", "y_scale": "log"}, paper_label="Law", note=note,
    )  # fmt: skip


def staleness(subject: Subject, runs: Runs) -> Exhibit:
    """Shares of trained rollouts by staleness, of the first seed."""
    del subject
    rows = [
        Row(f"η = {format_eta(eta)}", age, None, 100.0 * share, None,
            hashes(runs[cell("naive", eta)][:1]))
        for eta in DRAWN_ETAS
        for age, share in _shares(runs[cell("naive", eta)][0])
    ]  # fmt: skip
    return Exhibit(
        "p4.staleness", "figure", "Staleness of trained rollouts", tuple(rows),
        axes={"x": "versions between a rollout's first token and its training",
              "y": "rollouts (%)"},
        draw={"as": "curves"}, paper_label="Staleness",
    )  # fmt: skip


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
    found, counts = np.unique(ages, return_counts=True)
    return tuple(zip(found.tolist(), (counts / len(ages)).tolist(), strict=True))


def _hashes(runs: Runs, loss: str, eta: float, searched: bool) -> tuple[str, ...]:
    return hashes(runs[cell(loss, eta, searched)], runs[cell(loss, 0.0, searched)])


def _tell_rates() -> str:
    told = [
        f"{loss} {', '.join(f'{rate:g} (η = {eta})' for eta, rate in found.items())}"
        for loss, found in RATES.items()
    ]
    return "; ".join(told)


EXHIBITS = (
    Maker("p4.kept", TRAINED, gains),
    Maker("p4.scores", TRAINED, score_table),
    Maker("p4.curves", TRAINED, curves),
    Maker("p4.hours", tuple(map(hours, PLANS)), hour_table),
    Maker("p4.throughput", tuple(map(timing_name, ETAS)), throughputs),
    Maker("p4.publications", tuple(map(publication_name, PUBLICATIONS)), publications),
    Maker("p4.pacing", tuple(map(pacing_name, RULES)), pacing),
    Maker("p4.staleness", tuple(cell("naive", eta) for eta in DRAWN_ETAS), staleness, timelines=1),
    *(Maker(f"p4.{each[0]}-law", each[1], partial(law, k)) for k, each in enumerate(LAWS)),
)
