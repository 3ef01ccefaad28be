"""Predictions about staleness and the optimizer, each with its band, registered before the runs.

``registered.toml`` has the values by theory and by others, and the expected outcome. A claim
holds if all its parts do. The claims registered first cover the first trainings: natural gradient
on the acoustic model, clusters on digits with two optimizers. Later trainings have claims of their
own, and none of their cells is in the first claims (README).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from harness.judge.builders import Runs
from harness.judge.claims import Rule
from harness.judge.conditions import read_conditions
from harness.judge.parts import Precondition, Quantity
from harness.judge.results import Claim
from harness.judge.statistics import Array, Bounds, bounded_difference_ci, mean_ci
from reproductions.makers import Claims, Judged
from reproductions.paper import Subject
from reproductions.run_metrics import summary_values
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
ELSEWHERE = ("text", "digits")
"""Problems on which natural gradient was trained later."""
LATER_PAIRS = tuple((p, o) for o, problems in LATER_ON_CLUSTERS.items() for p in problems)
ORDERED = ("SGD", *ADAPTIVE, NATURAL)


def _conditions(runs: Runs) -> Iterator[Precondition]:
    """A gain to lose on each of a claim's problems."""
    for problem in PROBLEMS:
        if (start := cell(problem, "SGD", 0)) in runs:
            yield CONDITIONS.measure("learns", mean_ci(share_gained(runs[start])), problem)


CLAIMS = Claims(_conditions)


def _judge(
    name: str, statistic: str, needs: Sequence[str]
) -> Callable[..., Callable[[Subject, Runs], Claim]]:
    """Declare the claim of a registered prediction."""
    registered = REGISTERED[name]
    statement, place = registered["statement"], registered["where"]
    note = f"Expected: {registered['expected']}"
    return CLAIMS.declare(f"s.{name}", needs, statement, place, statistic, note)


def _cells(optimizers: Sequence[str], taus: Sequence[int], *problems: str) -> tuple[str, ...]:
    cells = [cell(p, o, t) for p in problems or tuple(PROBLEMS) for o in optimizers for t in taus]
    return tuple(dict.fromkeys(cells))


def _with_start(cells: Sequence[str], *problems: str) -> tuple[str, ...]:
    """The cells and those of the precondition."""
    return tuple(dict.fromkeys([*cells, *_cells(("SGD",), (0,), *problems)]))


def _cluster_cells(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(cell(*pair, MIDDLE, cluster) for pair in pairs for cluster in CLUSTERS)


def _comparison_cells(pairs: Sequence[tuple[str, str]], *problems: str) -> tuple[str, ...]:
    """Cells on clusters, those of the same fixed staleness and none, and the precondition's."""
    fixed = tuple(cell(*pair, tau) for pair in pairs for tau in (0, MIDDLE))
    return _with_start((*fixed, *_cluster_cells(pairs)), *problems)


@_judge(
    "rate-law", "slope of log largest stable rate on the log of a delayed quadratic's",
    _with_start(_cells(("SGD",), LATER)),
)  # fmt: skip
def rate_law(subject: Subject, runs: Runs) -> Judged:
    """SGD's largest stable rate falls with staleness as on a quadratic."""
    for name in PROBLEMS:
        slope = mean_ci(law_slope(runs, name, LATER))
        yield Quantity(name, 1.0, slope, _band("rate-law"), 1.0)
    for name in PROBLEMS:
        yield _open(name, bounds_of_slope(runs, name, LATER))


@_judge(
    "momentum-rate", "SGD's largest stable rate over that with momentum 0.9",
    _with_start(_cells(("SGD", "momentum"), (4, MIDDLE))),
)  # fmt: skip
def momentum_rate(subject: Subject, runs: Runs) -> Judged:
    """What momentum stands under staleness is less than what SGD stands, as on a quadratic."""
    parts = list[Quantity]()
    left_open = list[Quantity]()
    for name in PROBLEMS:
        for tau in (4, MIDDLE):
            groups = [runs[cell(name, o, tau)] for o in ("SGD", "momentum")]
            plain, heavy = (octaves(group, "edge") for group in groups)
            theory = math.log2(stable_rate(tau) / stable_rate(tau, MOMENTUM))
            label, ratio = f"{name}, τ = {tau}", mean_ci(plain - heavy)
            parts.append(Quantity(label, round(theory, 2), ratio, _band("momentum-rate"), theory))
            # The part takes an edge for the middle of its rungs; this one leaves it between them.
            left_open.append(_open(label, *map(bounds_of_edge, groups)))
    yield from (replace(part, is_log2=True) for part in (*parts, *left_open))


@_judge(
    "momentum-begets",
    f"loss with momentum − loss of SGD, at τ = {MIDDLE} less at τ = 0 (nats)",
    _cells(("SGD", "momentum"), (0, MIDDLE)),
)  # fmt: skip
def momentum_begets(subject: Subject, runs: Runs) -> Judged:
    """Momentum is worth less under staleness: asynchrony begets momentum of its own."""
    for name in PROBLEMS:
        stale, current = (
            summary_values(runs[cell(name, "momentum", tau)], "loss")
            - summary_values(runs[cell(name, "SGD", tau)], "loss")
            for tau in (MIDDLE, 0)
        )
        yield _quantity("momentum-begets", name, stale - current)


@_judge(
    "must-sweep", f"the best rate at τ = 0 over the largest stable at τ = {MIDDLE}",
    _cells(("SGD",), (0, MIDDLE)),
)  # fmt: skip
def must_sweep(subject: Subject, runs: Runs) -> Judged:
    """SGD does not stand at τ = 16 the rate that is best without staleness."""
    searches = {n: [runs[cell(n, "SGD", tau)] for tau in (0, MIDDLE)] for n in PROBLEMS}
    for name, (current, stale) in searches.items():
        ratio = octaves(current, "rate") - octaves(stale, "edge")
        yield replace(_quantity("must-sweep", name, ratio), is_log2=True)
    for name, (current, stale) in searches.items():
        left_open = _open(name, bounds_of_rate(current), bounds_of_edge(stale))
        yield replace(left_open, is_log2=True)


@_judge("one-is-free", "share of SGD's gain that is lost at τ = 1", _cells(("SGD",), (0, 1)))
def one_is_free(subject: Subject, runs: Runs) -> Judged:
    """One version of staleness costs SGD next to nothing."""
    for name in PROBLEMS:
        yield _quantity("one-is-free", name, share_lost(runs, name, "SGD", 1))


@_judge("rises", "rank correlation of the loss at the best rate with τ", _cells(OPTIMIZERS, TAUS))
def rises(subject: Subject, runs: Runs) -> Judged:
    """The loss at the best rate rises with staleness, whatever the optimizer."""
    for name, optimizer in product(PROBLEMS, OPTIMIZERS):
        order = rank_correlation(runs, name, optimizer)
        yield Quantity(f"{name}, {optimizer}", None, order, _band("rises"))


@_judge(
    "adaptive", f"share of the gain lost at τ = {MIDDLE}, difference",
    _cells(("SGD", *ADAPTIVE), (0, MIDDLE)),
)  # fmt: skip
def adaptive(subject: Subject, runs: Runs) -> Judged:
    """AdamW and Muon lose less of their gain than SGD."""
    for name, optimizer in product(PROBLEMS, ADAPTIVE):
        difference = _loss_beyond_sgd(runs, name, optimizer, MIDDLE)
        yield _quantity("adaptive", f"{name}, {optimizer} − SGD", difference)


def _declare_natural_gradient(name: str, problems: Sequence[str]) -> None:
    @_judge(
        name, "share of the gain lost, natural gradient − SGD",
        _cells(("SGD", NATURAL), (0, MIDDLE, LONGEST), *problems),
    )  # fmt: skip
    def natural_gradient(subject: Subject, runs: Runs) -> Judged:  # pyright: ignore[reportUnusedFunction]
        """Natural gradient loses less of its gain than SGD."""
        for problem, tau in product(problems, (MIDDLE, LONGEST)):
            difference = _loss_beyond_sgd(runs, problem, NATURAL, tau)
            yield _quantity(name, f"{problem}, τ = {tau}", difference)


_declare_natural_gradient("natural-gradient", ("acoustic",))


@_judge(
    "rate-falls-slower",
    f"octaves by which the best rate falls from τ = 0 to {LONGEST}, AdamW − SGD",
    _with_start(_cells(("SGD", "AdamW"), (0, LONGEST))),
)  # fmt: skip
def rate_falls_slower(subject: Subject, runs: Runs) -> Judged:
    """AdamW's best rate falls by fewer octaves than SGD's."""
    for name in PROBLEMS:
        adamw, sgd = (
            octaves(runs[cell(name, optimizer, 0)], "rate")
            - octaves(runs[cell(name, optimizer, LONGEST)], "rate")
            for optimizer in ("AdamW", "SGD")
        )
        yield _quantity("rate-falls-slower", name, adamw - sgd)


SCATTERED = f"share of the gain lost, {MIDDLE + 1} workers of a cluster − fixed τ = {MIDDLE}, "


@_judge("cluster-mean", f"{SCATTERED}digits", _comparison_cells(FIRST_ON_CLUSTERS, "digits"))
def cluster_mean(subject: Subject, runs: Runs) -> Judged:
    """Staleness that scatters is no worse than fixed staleness with the same mean."""
    for (problem, optimizer), cluster in product(FIRST_ON_CLUSTERS, CLUSTERS):
        share = share_lost_to_scatter(runs, problem, optimizer, MIDDLE, cluster)
        yield _quantity("cluster-mean", f"{optimizer}, {cluster}", share)


_declare_natural_gradient("natural-gradient-others", ELSEWHERE)


@_judge(
    "cluster-mean-others", f"{SCATTERED}mean over clusters and problems",
    _comparison_cells(LATER_PAIRS),
)  # fmt: skip
def cluster_mean_others(subject: Subject, runs: Runs) -> Judged:
    """The same of every optimizer, on what was trained on clusters after the first look."""
    for optimizer in OPTIMIZERS:
        shares = [
            share_lost_to_scatter(runs, problem, optimizer, MIDDLE, cluster)
            for problem, cluster in product(LATER_ON_CLUSTERS[optimizer], CLUSTERS)
        ]
        yield _quantity("cluster-mean-others", optimizer, np.mean(shares, axis=0))


@_judge(
    "cluster-order",
    f"share of the gain lost with {MIDDLE + 1} workers, mean over clusters and problems",
    (*_cells(ORDERED, (0,)), *_cluster_cells(product(PROBLEMS, ORDERED))),
)  # fmt: skip
def cluster_order(subject: Subject, runs: Runs) -> Judged:
    """On clusters too AdamW, Muon and natural gradient lose less of their gain than SGD."""
    for optimizer in ORDERED[1:]:
        differences = [
            _loss_beyond_sgd(runs, problem, optimizer, MIDDLE, cluster)
            for problem, cluster in product(PROBLEMS, CLUSTERS)
        ]
        yield _quantity("cluster-order", f"{optimizer} − SGD", np.mean(differences, axis=0))


def _loss_beyond_sgd(runs: Runs, problem: str, optimizer: str, *place: Any) -> Array:
    """Share of an optimizer's gain lost at a staleness, less that of SGD's, [S]."""
    lost, sgd = (share_lost(runs, problem, o, *place) for o in (optimizer, "SGD"))
    return lost - sgd


def _quantity(name: str, label: str, shares: Array) -> Quantity:
    """A mean over seeds, in the band of a prediction."""
    return Quantity(label, None, mean_ci(shares), _band(name))


def _open(label: str, of: Bounds, less: Bounds | None = None) -> Quantity:
    """Unjudged companion of a part: its interval if an edge lies anywhere between its two rungs."""
    zero = np.zeros(len(of[0]))
    difference = bounded_difference_ci(of, less or (zero, zero))
    return Quantity(f"{label}, with the ladder's rungs", None, difference)


def _band(name: str) -> Rule:
    """Rule for a claim's quantities, from its registered band."""
    [(side, end)] = REGISTERED[name]["band"].items()
    if side == "between":
        return Rule(*end)
    is_lower = {"above": True, "at_least": True, "below": False, "at_most": False}[side]
    ends = (end, math.inf) if is_lower else (-math.inf, end)
    return Rule(*ends, open=side in ("above", "below"))
