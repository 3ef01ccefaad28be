"""Predictions about staleness and the optimizer, each with its band, registered before the runs.

What theory or others say is in ``registered.toml``, with what was expected to come out. Every part
is one problem; a claim holds if all do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from harness.judge.claims import Rule, above, at_least, at_most, below, between
from harness.judge.interval import Interval
from harness.judge.makers import Maker, Runs
from harness.judge.parts import Precondition, Quantity, claim_of
from harness.judge.results import Claim
from reproductions.paper import Subject
from reproductions.readings import hashes
from reproductions.staleness.presets import (
    CLUSTERED,
    CLUSTERS,
    MOMENTUM,
    NATURAL,
    ON_THEM,
    PROBLEMS,
    REGISTERED,
    TAUS,
    cell,
    optimizers_of,
)
from reproductions.staleness.quantities import (
    gained,
    law_slope,
    lost,
    mean,
    octaves,
    of_search,
    rising,
)
from reproductions.staleness.theory import stable_rate

LEARNS = 0.25
"""The share of the loss that SGD must take away without staleness, for anything to be lost."""
LATER = TAUS[1:]
MIDDLE, LONGEST = 16, 64
ADAPTIVE = ("AdamW", "Muon")


def rate_law(subject: Subject, runs: Runs) -> Claim:
    """SGD's largest stable rate falls with staleness as on a quadratic."""
    parts = [
        Quantity(name, 1.0, mean(law_slope(runs, name, LATER)), _band("rate-law"), 1.0)
        for name in PROBLEMS
    ]
    told = "slope of log largest stable rate on the log of a delayed quadratic's"
    return _claim("rate-law", told, parts, runs)


def momentum_rate(subject: Subject, runs: Runs) -> Claim:
    """What momentum stands under staleness is less than what SGD stands, as on a quadratic."""
    parts: list[Quantity] = []
    for name in PROBLEMS:
        for tau in (4, MIDDLE):
            plain, heavy = (octaves(runs[cell(name, o, tau)], "edge") for o in ("SGD", "momentum"))
            theory = math.log2(stable_rate(tau) / stable_rate(tau, MOMENTUM))
            label, found = f"{name}, τ = {tau}", mean(plain - heavy)
            parts.append(Quantity(label, round(theory, 2), found, _band("momentum-rate"), theory))
    told = "log2 of SGD's largest stable rate over that with momentum 0.9"
    return _claim("momentum-rate", told, parts, runs)


def momentum_begets(subject: Subject, runs: Runs) -> Claim:
    """Momentum is worth less under staleness: asynchrony begets momentum of its own."""

    def found(name: str) -> Interval:
        apart = {
            tau: of_search(runs[cell(name, "momentum", tau)], "loss")
            - of_search(runs[cell(name, "SGD", tau)], "loss")
            for tau in (0, MIDDLE)
        }
        return mean(apart[MIDDLE] - apart[0])

    told = f"loss with momentum − loss of SGD, at τ = {MIDDLE} less at τ = 0 (nats)"
    return _claim("momentum-begets", told, _of_problems("momentum-begets", found), runs)


def must_sweep(subject: Subject, runs: Runs) -> Claim:
    """SGD does not stand at τ = 16 the rate that is best without staleness."""

    def found(name: str) -> Interval:
        best, edge = (runs[cell(name, "SGD", tau)] for tau in (0, MIDDLE))
        return mean(octaves(best, "rate") - octaves(edge, "edge"))

    told = f"log2 of the best rate at τ = 0 over the largest stable at τ = {MIDDLE}"
    return _claim("must-sweep", told, _of_problems("must-sweep", found), runs)


def one_is_free(subject: Subject, runs: Runs) -> Claim:
    """One version of staleness costs SGD next to nothing."""
    parts = _of_problems("one-is-free", lambda name: mean(lost(runs, name, "SGD", 1)))
    return _claim("one-is-free", "share of SGD's gain that is lost at τ = 1", parts, runs)


def rises(subject: Subject, runs: Runs) -> Claim:
    """The loss at the best rate rises with staleness, whatever the optimizer."""
    parts = [
        Quantity(f"{name}, {optimizer}", None, rising(runs, name, optimizer), _band("rises"))
        for name in PROBLEMS
        for optimizer in optimizers_of(name)
    ]
    return _claim("rises", "rank correlation of the loss at the best rate with τ", parts, runs)


def adaptive(subject: Subject, runs: Runs) -> Claim:
    """AdamW and Muon lose less of their gain than SGD."""
    parts = [
        Quantity(
            f"{name}, {optimizer} − SGD",
            None,
            mean(lost(runs, name, optimizer, MIDDLE) - lost(runs, name, "SGD", MIDDLE)),
            _band("adaptive"),
        )
        for name in PROBLEMS
        for optimizer in ADAPTIVE
    ]
    return _claim("adaptive", f"share of the gain lost at τ = {MIDDLE}, difference", parts, runs)


def natural_gradient(subject: Subject, runs: Runs) -> Claim:
    """Natural gradient loses less of its gain than SGD."""
    parts = [
        Quantity(
            f"τ = {tau}",
            None,
            mean(lost(runs, "acoustic", NATURAL, tau) - lost(runs, "acoustic", "SGD", tau)),
            _band("natural-gradient"),
        )
        for tau in (MIDDLE, LONGEST)
    ]
    told = "share of the gain lost, natural gradient − SGD, acoustic model"
    return _claim("natural-gradient", told, parts, runs)


def rate_falls_slower(subject: Subject, runs: Runs) -> Claim:
    """AdamW's best rate falls by fewer octaves than SGD's."""

    def found(name: str) -> Interval:
        falls = {
            optimizer: octaves(runs[cell(name, optimizer, 0)], "rate")
            - octaves(runs[cell(name, optimizer, LONGEST)], "rate")
            for optimizer in ("AdamW", "SGD")
        }
        return mean(falls["AdamW"] - falls["SGD"])

    told = f"octaves by which the best rate falls from τ = 0 to {LONGEST}, AdamW − SGD"
    return _claim("rate-falls-slower", told, _of_problems("rate-falls-slower", found), runs)


def cluster_mean(subject: Subject, runs: Runs) -> Claim:
    """Staleness that scatters is no worse than fixed staleness with the same mean."""
    parts = [
        Quantity(
            f"{optimizer}, {cluster}",
            None,
            mean(
                lost(runs, CLUSTERED, optimizer, MIDDLE, cluster)
                - lost(runs, CLUSTERED, optimizer, MIDDLE)
            ),
            _band("cluster-mean"),
        )
        for optimizer in ON_THEM
        for cluster in CLUSTERS
    ]
    told = f"share of the gain lost, {MIDDLE + 1} workers of a cluster − fixed τ = {MIDDLE}, digits"
    return _claim("cluster-mean", told, parts, runs)


def _of_problems(name: str, found: Callable[[str], Interval]) -> list[Quantity]:
    return [Quantity(problem, None, found(problem), _band(name)) for problem in PROBLEMS]


def _band(name: str) -> Rule:
    """Where a claim's quantities must lie."""
    band = REGISTERED[name]["band"]
    one_sided = {"below": below, "above": above, "at_most": at_most, "at_least": at_least}
    [(side, end)] = band.items()
    return between(*end) if side == "between" else one_sided[side](end)


def _claim(name: str, statistic: str, parts: Sequence[Quantity], runs: Runs) -> Claim:
    """A claim of its parts; it presumes that there is something to lose wherever it looks."""
    registered = REGISTERED[name]
    learns = [
        Precondition(
            f"{problem}: share of the loss that SGD takes away at τ = 0",
            mean(gained(runs[cell(problem, "SGD", 0)])),
            at_least(LEARNS),
        )
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


ALL = tuple(cell(p, o, t) for p in PROBLEMS for o in optimizers_of(p) for t in TAUS)
SCATTERED = tuple(cell(CLUSTERED, o, MIDDLE, c) for o in ON_THEM for c in CLUSTERS)
CLAIMS = (
    Maker("s.rate-law", _with_start(_cells(("SGD",), LATER)), rate_law),
    Maker(
        "s.momentum-rate", _with_start(_cells(("SGD", "momentum"), (4, MIDDLE))), momentum_rate
    ),
    Maker("s.momentum-begets", _cells(("SGD", "momentum"), (0, MIDDLE)), momentum_begets),
    Maker("s.must-sweep", _cells(("SGD",), (0, MIDDLE)), must_sweep),
    Maker("s.one-is-free", _cells(("SGD",), (0, 1)), one_is_free),
    Maker("s.rises", ALL, rises),
    Maker("s.adaptive", _cells(("SGD", *ADAPTIVE), (0, MIDDLE)), adaptive),
    Maker(
        "s.natural-gradient",
        _cells(("SGD", NATURAL), (0, MIDDLE, LONGEST), "acoustic"),
        natural_gradient,
    ),
    Maker("s.rate-falls-slower", _with_start(_cells(("SGD", "AdamW"), (0, LONGEST))),
          rate_falls_slower),
    Maker(
        "s.cluster-mean",
        (*_cells(ON_THEM, (0, MIDDLE), CLUSTERED), *SCATTERED),
        cluster_mean,
    ),
)  # fmt: skip
