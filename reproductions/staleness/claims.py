"""Predictions about staleness and the optimizer, each with its band, registered before the runs.

``registered.toml`` has the values by theory and by others, and the expected outcome. A claim
holds if all its parts do. The claims registered first cover the first trainings: natural gradient
on the acoustic model, clusters on digits with two optimizers. Later trainings have claims of their
own, and none of their cells is in the first claims (README).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from harness.judge.builders import Maker, Runs
from harness.judge.claims import (
    Rule,
    rule_above,
    rule_at_least,
    rule_at_most,
    rule_below,
    rule_between,
)
from harness.judge.conditions import read_conditions
from harness.judge.interval import Interval
from harness.judge.parts import Quantity, claim_of
from harness.judge.results import Claim
from harness.judge.statistics import Bounds, bounded_difference_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.run_metrics import hashes, summary_values
from reproductions.staleness.experiments import (
    CLUSTERS,
    MOMENTUM,
    NATURAL,
    OPTIMIZERS,
    PROBLEMS,
    REGISTERED,
    TAUS,
    cell,
)
from reproductions.staleness.quantities import (
    bounds_of_edge,
    bounds_of_rate,
    bounds_of_slope,
    law_slope,
    mean,
    octaves,
    rank_correlation,
    share_gained,
    share_lost,
    share_lost_to_scatter,
    stable_rate,
)

CONDITIONS = read_conditions(Path(__file__).with_name("registered.toml"))
LATER = TAUS[1:]
MIDDLE, LONGEST = 16, 64
ADAPTIVE = ("AdamW", "Muon")
FIRST_ON_CLUSTERS = tuple(("digits", optimizer) for optimizer in ("SGD", "AdamW"))
LATER_ON_CLUSTERS = {
    optimizer: tuple(p for p in PROBLEMS if (p, optimizer) not in FIRST_ON_CLUSTERS)
    for optimizer in OPTIMIZERS
}
"""Problems by optimizer that were trained on clusters after the first look."""


def rate_law(subject: Subject, runs: Runs) -> Claim:
    """SGD's largest stable rate falls with staleness as on a quadratic."""
    parts = [
        Quantity(name, 1.0, mean(law_slope(runs, name, LATER)), _band("rate-law"), 1.0)
        for name in PROBLEMS
    ]
    left_open = [_open(name, bounds_of_slope(runs, name, LATER)) for name in PROBLEMS]
    told = "slope of log largest stable rate on the log of a delayed quadratic's"
    return _claim("rate-law", told, [*parts, *left_open], runs)


def momentum_rate(subject: Subject, runs: Runs) -> Claim:
    """What momentum stands under staleness is less than what SGD stands, as on a quadratic."""
    parts: list[Quantity] = []
    left_open: list[Quantity] = []
    for name in PROBLEMS:
        for tau in (4, MIDDLE):
            groups = [runs[cell(name, o, tau)] for o in ("SGD", "momentum")]
            plain, heavy = (octaves(group, "edge") for group in groups)
            theory = math.log2(stable_rate(tau) / stable_rate(tau, MOMENTUM))
            label, found = f"{name}, τ = {tau}", mean(plain - heavy)
            parts.append(Quantity(label, round(theory, 2), found, _band("momentum-rate"), theory))
            # The part takes an edge for the middle of its rungs; this one leaves it between them.
            left_open.append(_open(label, *map(bounds_of_edge, groups)))
    told = "SGD's largest stable rate over that with momentum 0.9"
    factors = [replace(each, is_log2=True) for each in (*parts, *left_open)]
    return _claim("momentum-rate", told, factors, runs)


def momentum_begets(subject: Subject, runs: Runs) -> Claim:
    """Momentum is worth less under staleness: asynchrony begets momentum of its own."""

    def momentum_cost(name: str) -> Interval:
        apart = {
            tau: summary_values(runs[cell(name, "momentum", tau)], "loss")
            - summary_values(runs[cell(name, "SGD", tau)], "loss")
            for tau in (0, MIDDLE)
        }
        return mean(apart[MIDDLE] - apart[0])

    told = f"loss with momentum − loss of SGD, at τ = {MIDDLE} less at τ = 0 (nats)"
    return _claim(
        "momentum-begets", told, _problem_quantities("momentum-begets", momentum_cost), runs
    )


def must_sweep(subject: Subject, runs: Runs) -> Claim:
    """SGD does not stand at τ = 16 the rate that is best without staleness."""

    def searches(name: str) -> tuple[Sequence[Run], Sequence[Run]]:
        return runs[cell(name, "SGD", 0)], runs[cell(name, "SGD", MIDDLE)]

    def octaves_above_edge(name: str) -> Interval:
        fresh, stale = searches(name)
        return mean(octaves(fresh, "rate") - octaves(stale, "edge"))

    def open_part(name: str) -> Quantity:
        fresh, stale = searches(name)
        return _open(name, bounds_of_rate(fresh), bounds_of_edge(stale))

    told = f"the best rate at τ = 0 over the largest stable at τ = {MIDDLE}"
    parts = [*_problem_quantities("must-sweep", octaves_above_edge), *map(open_part, PROBLEMS)]
    return _claim("must-sweep", told, [replace(each, is_log2=True) for each in parts], runs)


def one_is_free(subject: Subject, runs: Runs) -> Claim:
    """One version of staleness costs SGD next to nothing."""
    parts = _problem_quantities("one-is-free", lambda name: mean(share_lost(runs, name, "SGD", 1)))
    return _claim("one-is-free", "share of SGD's gain that is lost at τ = 1", parts, runs)


def rises(subject: Subject, runs: Runs) -> Claim:
    """The loss at the best rate rises with staleness, whatever the optimizer."""
    parts = [
        Quantity(
            f"{name}, {optimizer}", None, rank_correlation(runs, name, optimizer), _band("rises")
        )
        for name in PROBLEMS
        for optimizer in OPTIMIZERS
    ]
    return _claim("rises", "rank correlation of the loss at the best rate with τ", parts, runs)


def adaptive(subject: Subject, runs: Runs) -> Claim:
    """AdamW and Muon lose less of their gain than SGD."""
    parts = [
        Quantity(
            f"{name}, {optimizer} − SGD",
            None,
            mean(share_lost(runs, name, optimizer, MIDDLE) - share_lost(runs, name, "SGD", MIDDLE)),
            _band("adaptive"),
        )
        for name in PROBLEMS
        for optimizer in ADAPTIVE
    ]
    return _claim("adaptive", f"share of the gain lost at τ = {MIDDLE}, difference", parts, runs)


def natural_gradient(problems: Sequence[str], id_: str, subject: Subject, runs: Runs) -> Claim:
    """Natural gradient loses less of its gain than SGD."""
    parts = [
        Quantity(
            f"{problem}, τ = {tau}",
            None,
            mean(share_lost(runs, problem, NATURAL, tau) - share_lost(runs, problem, "SGD", tau)),
            _band(id_),
        )
        for problem in problems
        for tau in (MIDDLE, LONGEST)
    ]
    return _claim(id_, "share of the gain lost, natural gradient − SGD", parts, runs)


def rate_falls_slower(subject: Subject, runs: Runs) -> Claim:
    """AdamW's best rate falls by fewer octaves than SGD's."""

    def fall_difference(name: str) -> Interval:
        falls = {
            optimizer: octaves(runs[cell(name, optimizer, 0)], "rate")
            - octaves(runs[cell(name, optimizer, LONGEST)], "rate")
            for optimizer in ("AdamW", "SGD")
        }
        return mean(falls["AdamW"] - falls["SGD"])

    told = f"octaves by which the best rate falls from τ = 0 to {LONGEST}, AdamW − SGD"
    return _claim(
        "rate-falls-slower", told, _problem_quantities("rate-falls-slower", fall_difference), runs
    )


def cluster_mean(subject: Subject, runs: Runs) -> Claim:
    """Staleness that scatters is no worse than fixed staleness with the same mean."""
    parts = [
        Quantity(
            f"{optimizer}, {cluster}",
            None,
            mean(share_lost_to_scatter(runs, problem, optimizer, MIDDLE, cluster)),
            _band("cluster-mean"),
        )
        for problem, optimizer in FIRST_ON_CLUSTERS
        for cluster in CLUSTERS
    ]
    told = f"share of the gain lost, {MIDDLE + 1} workers of a cluster − fixed τ = {MIDDLE}, digits"
    return _claim("cluster-mean", told, parts, runs)


def cluster_mean_others(subject: Subject, runs: Runs) -> Claim:
    """The same of every optimizer, on what was trained on clusters after the first look."""

    def mean_lost_to_scatter(optimizer: str) -> Interval:
        apart = [
            share_lost_to_scatter(runs, problem, optimizer, MIDDLE, cluster)
            for problem in LATER_ON_CLUSTERS[optimizer]
            for cluster in CLUSTERS
        ]
        return mean(np.mean(apart, axis=0))

    parts = [
        Quantity(optimizer, None, mean_lost_to_scatter(optimizer), _band("cluster-mean-others"))
        for optimizer in OPTIMIZERS
    ]
    told = (
        f"share of the gain lost, {MIDDLE + 1} workers of a cluster − fixed τ = {MIDDLE}, mean "
        "over clusters and problems"
    )
    return _claim("cluster-mean-others", told, parts, runs)


def cluster_order(subject: Subject, runs: Runs) -> Claim:
    """On clusters too AdamW, Muon and natural gradient lose less of their gain than SGD."""

    def difference_from_sgd(optimizer: str) -> Interval:
        apart = [
            share_lost(runs, problem, optimizer, MIDDLE, cluster)
            - share_lost(runs, problem, "SGD", MIDDLE, cluster)
            for problem in PROBLEMS
            for cluster in CLUSTERS
        ]
        return mean(np.mean(apart, axis=0))

    parts = [
        Quantity(f"{optimizer} − SGD", None, difference_from_sgd(optimizer), _band("cluster-order"))
        for optimizer in (*ADAPTIVE, NATURAL)
    ]
    told = f"share of the gain lost with {MIDDLE + 1} workers, mean over clusters and problems"
    return _claim("cluster-order", told, parts, runs)


def _problem_quantities(name: str, found: Callable[[str], Interval]) -> list[Quantity]:
    return [Quantity(problem, None, found(problem), _band(name)) for problem in PROBLEMS]


def _open(label: str, of: Bounds, less: Bounds | None = None) -> Quantity:
    """Unjudged companion of a part: its interval if an edge lies anywhere between its two rungs."""
    zero = np.zeros(len(of[0]))
    found = bounded_difference_ci(of, less or (zero, zero))
    return Quantity(f"{label}, with the ladder's rungs", None, found)


def _band(name: str) -> Rule:
    """Rule for a claim's quantities, from its registered band."""
    band = REGISTERED[name]["band"]
    one_sided = {
        "below": rule_below,
        "above": rule_above,
        "at_most": rule_at_most,
        "at_least": rule_at_least,
    }
    [(side, end)] = band.items()
    return rule_between(*end) if side == "between" else one_sided[side](end)


def _claim(name: str, statistic: str, parts: Sequence[Quantity], runs: Runs) -> Claim:
    """A claim of its parts; it presumes a gain to lose on each of its problems."""
    registered = REGISTERED[name]
    learns = [
        CONDITIONS.measure("learns", mean(share_gained(runs[cell(problem, "SGD", 0)])), problem)
        for problem in PROBLEMS
        if cell(problem, "SGD", 0) in runs
    ]
    return claim_of(
        f"s.{name}", registered["statement"], registered["where"], statistic, parts,
        hashes(*runs.values()), f"Expected: {registered['expected']}", presumes=learns,
    )  # fmt: skip


def _cells(optimizers: Sequence[str], taus: Sequence[int], *problems: str) -> tuple[str, ...]:
    named = [cell(p, o, t) for p in problems or tuple(PROBLEMS) for o in optimizers for t in taus]
    return tuple(dict.fromkeys(named))


def _with_start(named: Sequence[str], *problems: str) -> tuple[str, ...]:
    """The cells and those of the precondition."""
    return tuple(dict.fromkeys([*named, *_cells(("SGD",), (0,), *problems)]))


def _cluster_cells(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(cell(*pair, MIDDLE, cluster) for pair in pairs for cluster in CLUSTERS)


def _comparison_cells(pairs: Sequence[tuple[str, str]], *problems: str) -> tuple[str, ...]:
    """Cells on clusters, those of the same fixed staleness and none, and the precondition's."""
    fixed = tuple(cell(*pair, tau) for pair in pairs for tau in (0, MIDDLE))
    return _with_start((*fixed, *_cluster_cells(pairs)), *problems)


ELSEWHERE = ("text", "digits")
"""Problems on which natural gradient was trained later."""
LATER_PAIRS = tuple((p, o) for o, problems in LATER_ON_CLUSTERS.items() for p in problems)
ORDERED = ("SGD", *ADAPTIVE, NATURAL)
CLAIMS = (
    Maker("s.rate-law", _with_start(_cells(("SGD",), LATER)), rate_law),
    Maker(
        "s.momentum-rate", _with_start(_cells(("SGD", "momentum"), (4, MIDDLE))), momentum_rate
    ),
    Maker("s.momentum-begets", _cells(("SGD", "momentum"), (0, MIDDLE)), momentum_begets),
    Maker("s.must-sweep", _cells(("SGD",), (0, MIDDLE)), must_sweep),
    Maker("s.one-is-free", _cells(("SGD",), (0, 1)), one_is_free),
    Maker("s.rises", _cells(OPTIMIZERS, TAUS), rises),
    Maker("s.adaptive", _cells(("SGD", *ADAPTIVE), (0, MIDDLE)), adaptive),
    Maker(
        "s.natural-gradient",
        _cells(("SGD", NATURAL), (0, MIDDLE, LONGEST), "acoustic"),
        partial(natural_gradient, ("acoustic",), "natural-gradient"),
    ),
    Maker("s.rate-falls-slower", _with_start(_cells(("SGD", "AdamW"), (0, LONGEST))),
          rate_falls_slower),
    Maker("s.cluster-mean", _comparison_cells(FIRST_ON_CLUSTERS, "digits"), cluster_mean),
    Maker(
        "s.natural-gradient-others",
        _cells(("SGD", NATURAL), (0, MIDDLE, LONGEST), *ELSEWHERE),
        partial(natural_gradient, ELSEWHERE, "natural-gradient-others"),
    ),
    Maker("s.cluster-mean-others", _comparison_cells(LATER_PAIRS), cluster_mean_others),
    Maker(
        "s.cluster-order",
        (*_cells(ORDERED, (0,)), *_cluster_cells(product(PROBLEMS, ORDERED))),
        cluster_order,
    ),
)  # fmt: skip
