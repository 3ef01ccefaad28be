"""Curves and tables of the searches for rates: losses, best and largest stable rates, clusters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from harness.judge.builders import Runs
from harness.judge.results import Row
from harness.judge.statistics import Array, mean_ci
from harness.store import Run
from reproductions.makers import Content, Exhibits
from reproductions.paper import Subject
from reproductions.run_metrics import hashes, summary_values
from reproductions.staleness.experiments import (
    CLUSTER_TAUS,
    CLUSTERS,
    EDGES,
    LADDER,
    OPTIMIZERS,
    PROBLEMS,
    TAUS,
    cell,
)
from reproductions.staleness.quantities import (
    octaves,
    share_lost,
    share_lost_to_scatter,
    stable_rate,
)

PICTURED, DRAWN = "digits", ("SGD", "AdamW")
"""Problem and optimizers with losses on clusters in a figure; the table has all."""
RESOLVED = math.sqrt(LADDER)
"""Factor up to which an edge is known: half a rung of the ladder of rates either way."""
AXIS = "τ + 1: versions a gradient is behind, and its own"
TICKS = {"as": "curves", "x_scale": "log", "x_ticks": [tau + 1 for tau in TAUS]}
FIXED = "Fixed staleness"
EVERY = tuple(cell(p, o, tau) for p in PROBLEMS for o in OPTIMIZERS for tau in TAUS)
EXHIBITS = Exhibits()


def _row(label: str, column: str | float, values: Array, *groups: Sequence[Run]) -> Row:
    return Row.from_interval(label, column, None, mean_ci(values), hashes(*groups))


for _problem, _title in PROBLEMS.items():

    @EXHIBITS.figure(
        f"s.{_problem}", f"Loss at the best rate by staleness: {_title}",
        tuple(cell(_problem, o, tau) for o in OPTIMIZERS for tau in TAUS),
        (AXIS, "development loss (nats)"), FIXED,
        "Each point is at the best rate of its own optimizer, staleness and seed.", TICKS,
    )  # fmt: skip
    def losses(subject: Subject, runs: Runs, problem: str = _problem) -> Content:
        """Development loss at the best rate against staleness, a curve for each optimizer."""
        for optimizer, tau in product(OPTIMIZERS, TAUS):
            group = runs[cell(problem, optimizer, tau)]
            yield _row(optimizer, tau + 1, summary_values(group, "loss"), group)


@EXHIBITS.table(
    "s.lost", "Share of the gain without staleness that staleness takes away (%)", EVERY, FIXED,
    "A gain is the loss at the start less the loss at the end, at the best rate; below 0, "
    "training with staleness ended better.",
)  # fmt: skip
def shares(subject: Subject, runs: Runs) -> Content:
    """The share of each optimizer's gain that staleness takes away."""
    for problem, optimizer, tau in product(PROBLEMS, OPTIMIZERS, TAUS[1:]):
        groups = (runs[cell(problem, optimizer, t)] for t in (0, tau))
        share = 100.0 * share_lost(runs, problem, optimizer, tau)
        yield _row(f"{problem}, {optimizer}", f"τ = {tau}", share, *groups)


@EXHIBITS.table(
    "s.rates", "Best rate (log2)", EVERY, FIXED,
    "Mean over seeds of the base-2 logarithm: one less is half the rate. Rates are of "
    "mean gradients. Each search climbs a ladder of factor 2 until the rates on both sides of "
    "the best are worse.",
)  # fmt: skip
def rates(subject: Subject, runs: Runs) -> Content:
    """Best rates."""
    for problem, optimizer, tau in product(PROBLEMS, OPTIMIZERS, TAUS):
        group = runs[cell(problem, optimizer, tau)]
        yield _row(f"{problem}, {optimizer}", f"τ = {tau}", octaves(group, "rate"), group)


@EXHIBITS.figure(
    "s.stable", "Largest stable rate, over that of SGD at τ = 1",
    tuple(cell(p, o, tau) for p in PROBLEMS for o in EDGES for tau in TAUS),
    (AXIS, "largest stable rate (of SGD's at τ = 1)"), FIXED,
    "Predicted is a quadratic's, computed. "
    "A learning rate is stable if training ends with a loss below that of its start. Each "
    "point is the geometric middle of the largest stable rate and the next rate tried. "
    f"A rate is therefore known up to a factor of {RESOLVED:.2f} either way, and a ratio of "
    f"two rates up to a factor of {RESOLVED**2:g}, however short the whisker.",
    {**TICKS, "y_scale": "log"},
)  # fmt: skip
def edges(subject: Subject, runs: Runs) -> Content:
    """Largest stable rates of SGD and momentum against staleness, beside a quadratic's."""
    for (optimizer, momentum), problem, tau in product(EDGES.items(), PROBLEMS, TAUS):
        group, unit = (runs[cell(problem, *place)] for place in ((optimizer, tau), ("SGD", 1)))
        ratio = np.exp2(octaves(group, "edge") - octaves(unit, "edge"))
        # Over SGD's at τ = 1, as the measured ones are: the curvature, not known, cancels.
        theory = stable_rate(tau, momentum) / stable_rate(1)
        row = _row(f"{problem}, {optimizer}", tau + 1, ratio, group, unit)
        yield replace(row, paper=theory)


@EXHIBITS.figure(
    "s.clusters", f"Staleness of clusters: {PROBLEMS[PICTURED]}",
    tuple(cell(PICTURED, *c) for c in product(DRAWN, CLUSTER_TAUS, ("", *CLUSTERS))),
    ("workers, one more than the mean staleness", "development loss (nats)"),
    "Simulated clusters",
    "Of τ + 1 workers with one contribution under way each, staleness is τ in the mean.",
    {**TICKS, "x_ticks": [tau + 1 for tau in CLUSTER_TAUS]},
)  # fmt: skip
def clusters(subject: Subject, runs: Runs) -> Content:
    """Losses on simulated clusters beside those under fixed staleness of the same mean."""
    for optimizer, cluster, tau in product(DRAWN, ("", *CLUSTERS), CLUSTER_TAUS):
        group = runs[cell(PICTURED, optimizer, tau, cluster)]
        label = f"{optimizer}, {cluster or 'fixed'}"
        yield _row(label, tau + 1, summary_values(group, "loss"), group)


def _scatter_cells(tau: int) -> tuple[str, ...]:
    """The cells of a cluster's τ + 1 workers, of the same fixed staleness, and of none."""
    pairs = tuple(product(PROBLEMS, OPTIMIZERS))
    fixed = tuple(cell(*pair, age) for pair in pairs for age in (0, tau))
    return (*fixed, *(cell(*pair, tau, cluster) for pair in pairs for cluster in CLUSTERS))


for _tau in CLUSTER_TAUS:

    @EXHIBITS.table(
        f"s.scattered-{_tau + 1}",
        f"Share of the gain that the staleness of {_tau + 1} workers of a cluster takes away, less "
        f"what τ = {_tau} takes away (points)",
        _scatter_cells(_tau), "Simulated clusters",
        "Below 0, staleness that scatters is better than fixed staleness of the same mean.",
    )  # fmt: skip
    def differing(subject: Subject, runs: Runs, tau: int = _tau) -> Content:
        """Gain lost to a cluster's staleness beyond that lost to fixed one of the same mean."""
        for problem, optimizer, cluster in product(PROBLEMS, OPTIMIZERS, CLUSTERS):
            places = ((0, ""), (tau, ""), (tau, cluster))
            groups = (runs[cell(problem, optimizer, *place)] for place in places)
            share = share_lost_to_scatter(runs, problem, optimizer, tau, cluster)
            yield _row(f"{problem}, {optimizer}", cluster, 100.0 * share, *groups)
