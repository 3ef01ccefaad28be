"""The paper's statements about staleness, speed and publication, each with its band.

A claim about scores is read at the kept rate and at each cell's own rate. Where the two answers
differ the verdict is *mixed*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness.judge.builders import Maker, Runs
from harness.judge.claims import Rule, rule_at_least, rule_at_most, rule_below, rule_between
from harness.judge.conditions import read_conditions
from harness.judge.parts import Precondition, Quantity, claim_of
from harness.judge.results import Claim
from harness.judge.statistics import mean_ci
from reproductions.paper import Subject
from reproductions.paper4_async_rl.experiments import (
    BIAS,
    COLLAPSE,
    ETAS,
    PLANS,
    PUBLICATIONS,
    REPORTED,
    cell,
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
from reproductions.run_metrics import hashes

CONDITIONS = read_conditions(Path(__file__).with_name("registered.toml"))
READINGS = {"kept rate": False, "own rate": True}
BROKEN, SLIGHT, BEYOND = (4.0, 8.0, 16.0, math.inf), (1.0, 2.0), math.inf
LOST = "share of the gain without an allowance that is lost"
TABLE = REPORTED["score"]["where"]
HOLDS_MOST = 16.0
"""Allowance at which the condition about staleness is asked."""


def naive_breaks(subject: Subject, runs: Runs) -> Claim:
    """Naive PPO loses at least three tenths of its gain at an allowance of four and more."""
    del subject
    parts = _losses(runs, "naive", BROKEN, rule_at_least(0.30))
    return _claim(
        "naive-breaks", "Naive PPO breaks under staleness", f"{LOST}; at least 0.30", parts, runs
    )


def slight_hurts(subject: Subject, runs: Runs) -> Claim:
    """Slight staleness can degrade naive PPO: read as the text says it, and as the table has it."""
    del subject
    readings = {"text": rule_at_least(0.20), "table": rule_at_most(0.20)}
    parts = [
        _loss(runs, "naive", eta, False, rule, f"as the {name} has it", name)
        for name, rule in readings.items()
        for eta in SLIGHT
    ]
    return _claim(
        "slight-hurts", "Slight staleness can degrade significantly",
        f"{LOST} at the kept rate; text: at least 0.20, table: at most 0.20", parts, runs,
        "The text says that slight staleness can degrade; its table loses 0.02 and 0.16 of the "
        "gain. The two readings exclude one another.",
    )  # fmt: skip


def decoupled_free(subject: Subject, runs: Runs) -> Claim:
    """The decoupled loss loses at most a tenth of the gain up to an allowance of four."""
    del subject
    parts = _losses(runs, "decoupled", (1.0, 2.0, 4.0), rule_at_most(0.10))
    return _claim(
        "decoupled-free", "The decoupled loss bears an allowance of four at no cost",
        f"{LOST}; at most 0.10", parts, runs,
    )  # fmt: skip


def decoupled_inf(subject: Subject, runs: Runs) -> Claim:
    """Without an allowance the decoupled loss loses about two fifths of the gain."""
    del subject
    parts = _losses(runs, "decoupled", (BEYOND,), rule_between(0.20, 0.60))
    return _claim(
        "decoupled-inf", "Without a limit of staleness the decoupled loss loses, too",
        f"{LOST}; 0.20 to 0.60", parts, runs,
    )  # fmt: skip


def monotone(subject: Subject, runs: Runs) -> Claim:
    """Larger allowances consistently degrade naive PPO."""
    del subject
    printed = read_printed_order("naive")
    parts = [
        Quantity(name, round(printed, 2), order_of_scores(runs, "naive", searched),
                 rule_below(0.0), printed, name)
        for name, searched in READINGS.items()
    ]  # fmt: skip
    return _claim(
        "monotone", "More staleness consistently degrades naive PPO",
        "rank correlation of the score with the allowance", parts, runs,
    )  # fmt: skip


def saturates(subject: Subject, runs: Runs) -> Claim:
    """Throughput rises with the allowance and saturates."""
    del subject
    parts = [
        Quantity("η = 4 over 0", None, throughput(runs, 4.0), rule_at_least(1.10)),
        Quantity("η = 16 over 8", None, times_as_fast(runs, timing_name(16.0), timing_name(8.0)),
                 rule_between(0.95, 1.05)),
    ]  # fmt: skip
    return _claim(
        "saturates", "Throughput rises with the allowance and saturates",
        "tokens a second; η = 4 over 0 at least 1.10, 16 over 8 within 5% of 1", parts, runs,
        where="effective throughput by allowance",
    )  # fmt: skip


def twice(subject: Subject, runs: Runs) -> Claim:
    """At equal machines asynchronous training is at least twice as fast."""
    del subject
    parts = [
        Quantity(plan, round(read_printed_speed_up(plan), 2), speed_up(runs, plan),
                 rule_at_least(2.0), read_printed_speed_up(plan))
        for plan in PLANS
    ]  # fmt: skip
    return _claim(
        "twice", "At equal machines asynchronous training is at least twice as fast",
        "synchronous over asynchronous hours; at least 2", parts, runs,
        "Intervals are 95% of the draws of a plan that has the synchronous hours alone.",
        where=REPORTED["hours"]["where"],
    )  # fmt: skip


def interrupt(subject: Subject, runs: Runs) -> Claim:
    """Exchanging weights within rollouts raises the tokens a second by 5 to 25%."""
    del subject
    models = {name: value for name, value in REPORTED["interruptible"].items() if name != "where"}
    printed = sum(models.values()) / len(models)
    parts = [
        Quantity(f"in-flight over {other}", " and ".join(f"{v:g}" for v in models.values()),
                 times_as_fast(runs, publication_name("in-flight"), publication_name(other)),
                 rule_between(1.05, 1.25), printed, other)
        for other in PUBLICATIONS[:2]
    ]  # fmt: skip
    return _claim(
        "interrupt", "Interruptible generation raises throughput by 12 and 17%",
        "tokens a second, exchanges within rollouts over others; 1.05 to 1.25", parts, runs,
        "The page does not say how generators without interruption wait: until all are idle "
        "(drain), or not at all, with new weights for new rollouts (between).",
        where=REPORTED["interruptible"]["where"],
    )  # fmt: skip


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


def law(name: str, subject: Subject, runs: Runs) -> Claim:
    """The exponent of a law of staleness and rate lies within 0.2 of the law's."""
    del subject
    statement, statistic, _, read, clip = LAWS[name]
    true = REPORTED["law"][name]
    rule = rule_between(true - 0.2, true + 0.2)
    parts = [Quantity(label, true, each, rule, true) for label, each in read(runs).items()]
    measured = [CONDITIONS.measure(clip[0], COLLAPSE.clip_share(runs, clip[1]))] if clip else []
    where, told = REPORTED["law"]["where"], f"{statistic}; {true - 0.2:.1f} to {true + 0.2:.1f}"
    return _claim(name, statement, told, parts, runs, where=where, presumes=measured)


def _losses(runs: Runs, loss: str, etas: Sequence[float], rule: Rule) -> list[Quantity]:
    return [
        _loss(runs, loss, eta, searched, rule, name, name)
        for name, searched in READINGS.items()
        for eta in etas
    ]


def _loss(
    runs: Runs, loss: str, eta: float, searched: bool, rule: Rule, told: str, measure: str
) -> Quantity:
    """Share of the gain that a cell loses, beside the paper's."""
    found, printed = share_lost(runs, loss, eta, searched), read_printed_loss(loss, eta)
    label = f"η = {format_eta(eta)}, {told}"
    return Quantity(label, round(printed, 2), found, rule, printed, measure)


def _claim(
    name: str,
    statement: str,
    statistic: str,
    parts: Sequence[Quantity],
    runs: Runs,
    note: str = "",
    where: str = TABLE,
    presumes: Sequence[Precondition] = (),
) -> Claim:
    """A claim of its parts, with the conditions that its runs tell."""
    presumes = [
        *presumes,
        *(
            CONDITIONS.measure("learns", mean_ci(gains(runs, "naive", 0.0, searched)), reading)
            for reading, searched in READINGS.items()
            if cell("naive", 0.0, searched) in runs
        ),
    ]
    stale = cell("naive", HOLDS_MOST)
    if stale in runs:
        found = mean_ci(values(runs[stale], "staleness_tokens"))
        presumes.append(CONDITIONS.measure("is-stale", found))
    return claim_of(
        f"p4.{name}", statement, where, statistic, parts, hashes(*runs.values()), note,
        presumes=presumes,
    )  # fmt: skip


def _cells(loss: str, etas: Sequence[float], readings: Sequence[bool]) -> tuple[str, ...]:
    """Those cells, and the ones without an allowance."""
    every = [cell(loss, eta, searched) for searched in readings for eta in (0.0, *etas)]
    return tuple(dict.fromkeys(every))


BOTH = (False, True)
CLAIMS = (
    Maker("p4.naive-breaks", _cells("naive", BROKEN, BOTH), naive_breaks),
    Maker("p4.slight-hurts", _cells("naive", SLIGHT, (False,)), slight_hurts),
    Maker("p4.decoupled-free", _cells("decoupled", (1.0, 2.0, 4.0), BOTH), decoupled_free),
    Maker("p4.decoupled-inf", _cells("decoupled", (BEYOND,), BOTH), decoupled_inf),
    Maker("p4.monotone", _cells("naive", ETAS[1:], BOTH), monotone),
    Maker("p4.saturates", tuple(timing_name(eta) for eta in (0.0, 4.0, 8.0, 16.0)), saturates),
    Maker("p4.twice", tuple(map(hours, PLANS)), twice),
    Maker("p4.interrupt", tuple(map(publication_name, PUBLICATIONS)), interrupt),
    *(Maker(f"p4.{name}", each[2], partial(law, name)) for name, each in LAWS.items()),
)
