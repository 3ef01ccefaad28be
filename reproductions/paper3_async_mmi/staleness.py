"""Paper 3's claims on staleness: how old gradients are, and how old they may be."""

from __future__ import annotations

import math

import numpy as np

from harness.judge.claims import above, at_most, between
from harness.judge.makers import Maker, Runs
from harness.judge.missing import unless_missing
from harness.judge.parts import Quantity, claim_of, side_of_zero
from harness.judge.results import Claim
from harness.judge.statistics import Interval, bounded_difference_ci, mean_ci
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import SWEEPS, fetch_name, fetch_s, map_name
from reproductions.paper3_async_mmi.presets import INTERVALS, PRESETS, RATES, REPORTED
from reproductions.paper3_async_mmi.quantities import (
    COSTS_NOTHING,
    in_updates,
    known_loss,
    largest_stable,
    tolerated,
)
from reproductions.readings import hashes, of_summary

FIGURES = REPORTED["claims"]


def staleness_50(subject: Subject, runs: Runs) -> Claim:
    """Age of the outer gradients with fifty replicas, in seconds and in updates."""
    group = runs["timing 50"]
    lag = mean_ci([of_summary(run, "outer_lag_s_mean") for run in group])
    updates = mean_ci([of_summary(run, "outer_staleness_mean") for run in group])
    parts: list[Quantity] = [
        Quantity("seconds", FIGURES["lag_s"], lag, between(30.0, 120.0), FIGURES["lag_s"]),
        Quantity("updates", "a few hundred", updates, between(200.0, 900.0), 300.0),
    ]
    return claim_of(
        "p3.staleness-50", "With 50 replicas outer gradients are about a minute old",
        "Section 3.2", "simulated mean age of outer gradients; 30 to 120 s, 200 to 900 updates",
        parts, hashes(group),
        "The paper names no machine. Updates follow from slots and kept frames alone, whatever "
        "the machine; seconds are updates times the assumed machine's step.",
    )  # fmt: skip


def async_rate(subject: Subject, runs: Runs) -> Claim:
    """The largest stable rate with one replica above that with fifty."""
    count = len(next(iter(runs.values())))
    seeds = [{name: group[i] for name, group in runs.items()} for i in range(count)]
    stable = {n: [largest_stable(subject, seed, n) for seed in seeds] for n in (1, 50)}
    with np.errstate(divide="ignore"):  # the logarithm of 0 is the open bound it stands for
        one, fifty = (np.log2(np.array(stable[n], np.float64)).T for n in (1, 50))
    difference = bounded_difference_ci((one[0], one[1]), (fifty[0], fifty[1]))
    told = "; ".join(f"{n} replicas: {_between(stable[n])}" for n in stable)
    return claim_of(
        "p3.async-rate", "One replica is stable at larger rates than fifty",
        "Section 4.2, SGD vs. ASGD",
        "log2 of the largest stable rate, 1 − 50 replicas, each known up to a step of the map",
        [side_of_zero("", difference, "above")],
        hashes(*(runs[name] for name in _map(1, 50))), f"Seed by seed, {told}.",
    )  # fmt: skip


def fetch_tolerance(subject: Subject, runs: Runs) -> Claim:
    """Up to some interval T* nothing is lost, beyond it something is."""
    intervals = PRESETS[subject.scale].fetch
    short, long = (known_loss(runs, "last", i) for i in (1, len(intervals)))
    parts: list[Quantity] = [
        Quantity(f"loss of gain, every {intervals[0]:g} passes", "nothing", short,
                 at_most(COSTS_NOTHING), 0.0),
        Quantity(f"loss of gain, every {intervals[-1]:g} passes", "some", long,
                 above(COSTS_NOTHING)),
    ]  # fmt: skip
    return claim_of(
        "p3.fetch-tolerance", "Decoders may fetch rarely, up to some interval, at no cost",
        "Section 4.2, Figure 5",
        f"share of the criterion's gain that is lost; up to {COSTS_NOTHING:.0%} counts as nothing",
        parts, hashes(*(runs[name] for name in _sweep("last"))),
        f"T* in updates: {_updates(subject, runs)} (the paper: 15 minutes of ten replicas).",
    )  # fmt: skip


@unless_missing("not known")
def _updates(subject: Subject, runs: Runs) -> str:
    """T* of the last layer, in updates."""
    star = tolerated(subject, runs, "last")
    return _star(in_updates(star, runs[fetch_name("last", 0)], fetch_s(subject, 1.0)))


def fetch_all_layers(subject: Subject, runs: Runs) -> Claim:
    """T* where all layers are updated over T* where the last one is."""
    return _tolerances(
        subject, runs, "p3.fetch-all-layers", "all", "fetch_all_layers", (0.3, 0.8),
        "Updating all layers halves the largest fetch interval",
    )  # fmt: skip


def fetch_no_silence(subject: Subject, runs: Runs) -> Claim:
    """T* where silence is not updated over T* where it is."""
    return _tolerances(
        subject, runs, "p3.fetch-no-silence", "no silence", "fetch_no_silence", (1.3, 3.0),
        "Not updating the silence model doubles the largest fetch interval",
    )  # fmt: skip


def _tolerances(
    subject: Subject, runs: Runs, id_: str, sweep: str, figure: str,
    band: tuple[float, float], statement: str,
) -> Claim:  # fmt: skip
    """T* of a sweep over that of the last layer, from the ends that both surely have."""
    stars = {s: tolerated(subject, runs, s) for s in (sweep, "last")}
    a, b = stars[sweep], stars["last"]
    low = a.low / b.high or -math.inf
    high = a.high / b.low if b.low > 0 else math.inf
    ratio = Interval(a.estimate / b.estimate, low, high)
    told = "; ".join(f"{SWEEPS[s]}: {_star(t)}" for s, t in stars.items())
    return claim_of(
        id_, statement, "Section 4.2, Fetch interval",
        f"T* over T* of the last layer; {band[0]:g} to {band[1]:g}",
        [Quantity("", FIGURES[figure], ratio, between(*band), FIGURES[figure])],
        hashes(*(runs[name] for s in (sweep, "last") for name in _sweep(s))),
        f"T* in passes over the corpus; {told}. It lies above the intervals that cost nothing and "
        "below those that cost something, each by its own 95% interval over all seeds; two such "
        "brackets bound their ratio only roughly.",
    )  # fmt: skip


def _star(star: Interval) -> str:
    """T* in words."""
    found = {
        "about": star.estimate if math.isfinite(star.estimate) else 0.0,
        "at least": star.low,
        "at most": star.high if math.isfinite(star.high) else 0.0,
    }
    told = (f"{word} {x:,.0f}" if x > 100 else f"{word} {x:.3g}" for word, x in found.items() if x)
    return ", ".join(told) or "not bounded"


def _between(bounds: list[tuple[float, float]]) -> str:
    """A rate of each seed in words."""
    return ", ".join(
        f"below {high:g}" if low == 0 else f"{low:g} or more" if high == math.inf
        else f"{low:g} to {high:g}"
        for low, high in bounds
    )  # fmt: skip


def _sweep(sweep: str) -> tuple[str, ...]:
    return tuple(fetch_name(sweep, i) for i in range(INTERVALS + 1))


def _map(*replicas: int) -> tuple[str, ...]:
    return tuple(map_name(n, i) for n in replicas for i in range(RATES))


STALENESS = (
    Maker("p3.staleness-50", ("timing 50",), staleness_50),
    Maker("p3.async-rate", _map(1, 50), async_rate, divergence=True),
    Maker("p3.fetch-tolerance", _sweep("last"), fetch_tolerance, divergence=True),
    Maker("p3.fetch-all-layers", _sweep("last") + _sweep("all"), fetch_all_layers, divergence=True),
    Maker(
        "p3.fetch-no-silence",
        _sweep("last") + _sweep("no silence"),
        fetch_no_silence,
        divergence=True,
    ),
)
