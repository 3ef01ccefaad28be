"""The paper's statements about staleness, speed and publication, each with its band.

A claim about scores is read at the kept rate and at each cell's own rate. Where the two answers
differ the verdict is *mixed*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.judge.builders import Runs
from harness.judge.claims import Rule
from harness.judge.conditions import read_conditions
from harness.judge.interval import Interval
from harness.judge.parts import Precondition, Quantity
from harness.judge.statistics import mean_ci
from reproductions.makers import Claims, Judged
from reproductions.paper import Subject
from reproductions.paper4_async_rl.experiments import (
    BIAS,
    COLLAPSE,
    ETAS,
    PLANS,
    PRESETS,
    PUBLICATIONS,
    REPORTED,
    cell,
    count_parameters,
    format_eta,
    hours,
    publication_name,
    timing_name,
)
from reproductions.paper4_async_rl.quantities import (
    gains,
    order_of_scores,
    read_printed_loss,
    read_printed_order,
    read_printed_speed_up,
    share_lost,
    speed_up,
    throughput,
    times_as_fast,
    values,
)

READINGS = {"kept rate": False, "own rate": True}
LOST = "share of the gain without an allowance that is lost"
TABLE = REPORTED["score"]["where"]
HOLDS_MOST = 16.0
"""Allowance at which the condition about staleness is asked."""
CONDITIONS = read_conditions(Path(__file__).with_name("registered.toml"))


def _conditions(runs: Runs) -> Iterator[Precondition]:
    """The conditions that a claim's runs tell."""
    for reading, searched in READINGS.items():
        if cell("naive", 0.0, searched) in runs:
            gain = mean_ci(gains(runs, "naive", 0.0, searched))
            yield CONDITIONS.measure("learns", gain, reading)
    if (stale := cell("naive", HOLDS_MOST)) in runs:
        yield CONDITIONS.measure("is-stale", mean_ci(values(runs[stale], "staleness_tokens")))


CLAIMS = Claims(_conditions)


def _cells(
    loss: str, etas: Sequence[float], readings: Sequence[bool] = (False, True)
) -> tuple[str, ...]:
    """Those cells, and the ones without an allowance."""
    cells = [cell(loss, eta, searched) for searched in readings for eta in (0.0, *etas)]
    return tuple(dict.fromkeys(cells))


def _losses(runs: Runs, loss: str, etas: Sequence[float], rule: Rule) -> Judged:
    for name, searched in READINGS.items():
        for eta in etas:
            yield _loss(runs, loss, eta, searched, rule, name, name)


def _loss(
    runs: Runs, loss: str, eta: float, searched: bool, rule: Rule, reading: str, measure: str
) -> Quantity:
    """Share of the gain that a cell loses, beside the paper's."""
    share, printed = share_lost(runs, loss, eta, searched), read_printed_loss(loss, eta)
    label = f"η = {format_eta(eta)}, {reading}"
    return Quantity(label, round(printed, 2), share, rule, printed, measure)


BROKEN, SLIGHT, BEYOND = (4.0, 8.0, 16.0, math.inf), (1.0, 2.0), math.inf


@CLAIMS.declare(
    "p4.naive-breaks", _cells("naive", BROKEN), "Naive PPO breaks under staleness", TABLE,
    f"{LOST}; at least 0.30",
)  # fmt: skip
def naive_breaks(subject: Subject, runs: Runs) -> Judged:
    """Naive PPO loses at least three tenths of its gain at an allowance of four and more."""
    yield from _losses(runs, "naive", BROKEN, Rule(low=0.30))
    preset = PRESETS[subject.scale]
    yield CONDITIONS.measure("as-long", Interval.exact(preset.updates))
    yield CONDITIONS.measure("as-large", Interval.exact(count_parameters(preset.policy)))


@CLAIMS.declare(
    "p4.slight-hurts", _cells("naive", SLIGHT, (False,)),
    "Slight staleness can degrade significantly", TABLE,
    f"{LOST} at the kept rate; text: at least 0.20, table: at most 0.20",
    "The text says that slight staleness can degrade; its table loses 0.02 and 0.16 of the "
    "gain. The two readings exclude one another.",
)  # fmt: skip
def slight_hurts(subject: Subject, runs: Runs) -> Judged:
    """Slight staleness can degrade naive PPO: read as the text says it, and as the table has it."""
    for name, rule in {"text": Rule(low=0.20), "table": Rule(high=0.20)}.items():
        for eta in SLIGHT:
            yield _loss(runs, "naive", eta, False, rule, f"as the {name} has it", name)


@CLAIMS.declare(
    "p4.decoupled-free", _cells("decoupled", (1.0, 2.0, 4.0)),
    "The decoupled loss bears an allowance of four at no cost", TABLE, f"{LOST}; at most 0.10",
)  # fmt: skip
def judge_decoupled_free(subject: Subject, runs: Runs) -> Judged:
    """The decoupled loss loses at most a tenth of the gain up to an allowance of four."""
    return _losses(runs, "decoupled", (1.0, 2.0, 4.0), Rule(high=0.10))


@CLAIMS.declare(
    "p4.decoupled-inf", _cells("decoupled", (BEYOND,)),
    "Without a limit of staleness the decoupled loss loses, too", TABLE, f"{LOST}; 0.20 to 0.60",
)  # fmt: skip
def judge_decoupled_inf(subject: Subject, runs: Runs) -> Judged:
    """Without an allowance the decoupled loss loses about two fifths of the gain."""
    return _losses(runs, "decoupled", (BEYOND,), Rule(0.20, 0.60))


@CLAIMS.declare(
    "p4.monotone", _cells("naive", ETAS[1:]), "More staleness consistently degrades naive PPO",
    TABLE, "rank correlation of the score with the allowance",
)  # fmt: skip
def monotone(subject: Subject, runs: Runs) -> Judged:
    """Larger allowances consistently degrade naive PPO."""
    printed = read_printed_order("naive")
    for name, searched in READINGS.items():
        order = order_of_scores(runs, "naive", searched)
        yield Quantity(name, round(printed, 2), order, Rule(high=0.0, open=True), printed, name)


@CLAIMS.declare(
    "p4.saturates", tuple(timing_name(eta) for eta in (0.0, 4.0, 8.0, 16.0)),
    "Throughput rises with the allowance and saturates", "effective throughput by allowance",
    "tokens a second; η = 4 over 0 at least 1.10, 16 over 8 within 5% of 1",
)  # fmt: skip
def saturates(subject: Subject, runs: Runs) -> Judged:
    """Throughput rises with the allowance and saturates."""
    yield Quantity("η = 4 over 0", None, throughput(runs, 4.0), Rule(low=1.10))
    ratio = times_as_fast(runs, timing_name(16.0), timing_name(8.0))
    yield Quantity("η = 16 over 8", None, ratio, Rule(0.95, 1.05))


@CLAIMS.declare(
    "p4.twice", tuple(map(hours, PLANS)),
    "At equal machines asynchronous training is at least twice as fast",
    REPORTED["hours"]["where"], "synchronous over asynchronous hours; at least 2",
    "Intervals are 95% of the draws of a plan that has the synchronous hours alone.",
)  # fmt: skip
def twice(subject: Subject, runs: Runs) -> Judged:
    """At equal machines asynchronous training is at least twice as fast."""
    for plan in PLANS:
        printed, rule = read_printed_speed_up(plan), Rule(low=2.0)
        yield Quantity(plan, round(printed, 2), speed_up(runs, plan), rule, printed)


@CLAIMS.declare(
    "p4.interrupt", tuple(map(publication_name, PUBLICATIONS)),
    "Interruptible generation raises throughput by 12 and 17%", REPORTED["interruptible"]["where"],
    "tokens a second, exchanges within rollouts over others; 1.05 to 1.25",
    undetermined="The page does not say how generators without interruption wait: until all are "
    "idle (drain), or not at all, with new weights for new rollouts (between). That each waits for "
    "itself is not simulated.",
)  # fmt: skip
def interrupt(subject: Subject, runs: Runs) -> Judged:
    """Exchanging weights within rollouts raises the tokens a second by 5 to 25%."""
    models = [ratio for name, ratio in REPORTED["interruptible"].items() if name != "where"]
    printed, rule = sum(models) / len(models), Rule(1.05, 1.25)
    paper = " and ".join(f"{ratio:g}" for ratio in models)
    for publication in PUBLICATIONS[:2]:
        ratio = times_as_fast(runs, publication_name("in-flight"), publication_name(publication))
        yield Quantity(f"in-flight over {publication}", paper, ratio, rule, printed, publication)


LAWS = {
    "bias": ("The bias of the stale gradient grows like staleness × rate",
             "exponent of the norm of the bias", BIAS.names, BIAS.exponents, ()),
    "collapse": ("Updates until the collapse × rate are constant while the clip is not reached",
                 "exponent of the updates on the rate", COLLAPSE.fast_names, COLLAPSE.exponents,
                 ("within-clip", COLLAPSE.etas)),
    "limit": ("Where the clip is reached, the largest stable rate falls like 1/staleness",
              "exponent of the rate on the allowance", COLLAPSE.names, COLLAPSE.limit,
              ("beyond-clip", COLLAPSE.etas[-1:])),
}  # fmt: skip


for _name, (_statement, _statistic, _needs, *_) in LAWS.items():
    _true = REPORTED["law"][_name]

    @CLAIMS.declare(
        f"p4.{_name}", _needs, _statement, REPORTED["law"]["where"],
        f"{_statistic}; {_true - 0.2:.1f} to {_true + 0.2:.1f}",
    )  # fmt: skip
    def law(subject: Subject, runs: Runs, name: str = _name) -> Judged:
        """The exponent of a law of staleness and rate lies within 0.2 of the law's."""
        *_, exponents, clip = LAWS[name]
        true = REPORTED["law"][name]
        for label, exponent in exponents(runs).items():
            rule = Rule(true - 0.2, true + 0.2)
            yield Quantity(label, true, exponent, rule, true)
        if clip:
            yield CONDITIONS.measure(clip[0], COLLAPSE.clip_share(runs, clip[1]))
