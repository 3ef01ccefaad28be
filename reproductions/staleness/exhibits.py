"""Curves and tables of the searches for rates: losses, best and largest stable rates, clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from harness.judge.builders import Maker, Runs
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Array, mean_ci
from harness.store import Run
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


def losses(problem: str, subject: Subject, runs: Runs) -> Exhibit:
    """Development loss at the best rate against staleness, a curve for each optimizer."""
    del subject
    rows = [
        _row(optimizer, tau + 1, summary_values(runs[cell(problem, optimizer, tau)], "loss"),
             runs[cell(problem, optimizer, tau)])
        for optimizer in OPTIMIZERS
        for tau in TAUS
    ]  # fmt: skip
    return Exhibit(
        f"s.{problem}", "figure", f"Loss at the best rate by staleness: {PROBLEMS[problem]}",
        tuple(rows), axes={"x": AXIS, "y": "development loss (nats)"}, draw=TICKS,
        paper_label="Fixed staleness",
        note="Each point is at the best rate of its own optimizer, staleness and seed.",
    )  # fmt: skip


def shares(subject: Subject, runs: Runs) -> Exhibit:
    """The share of each optimizer's gain that staleness takes away."""
    del subject
    rows = [
        _row(f"{problem}, {optimizer}", f"τ = {tau}",
             100.0 * share_lost(runs, problem, optimizer, tau),
             runs[cell(problem, optimizer, 0)], runs[cell(problem, optimizer, tau)])
        for problem in PROBLEMS
        for optimizer in OPTIMIZERS
        for tau in TAUS[1:]
    ]  # fmt: skip
    return Exhibit(
        "s.lost", "table", "Share of the gain without staleness that staleness takes away (%)",
        tuple(rows), paper_label="Fixed staleness",
        note="A gain is the loss at the start less the loss at the end, at the best rate; below 0, "
        "training with staleness ended better.",
    )  # fmt: skip


def rates(subject: Subject, runs: Runs) -> Exhibit:
    """Best rates."""
    del subject
    rows = [
        _row(f"{problem}, {optimizer}", f"τ = {tau}",
             octaves(runs[cell(problem, optimizer, tau)], "rate"),
             runs[cell(problem, optimizer, tau)])
        for problem in PROBLEMS
        for optimizer in OPTIMIZERS
        for tau in TAUS
    ]  # fmt: skip
    return Exhibit(
        "s.rates", "table", "Best rate (log2)", tuple(rows), paper_label="Fixed staleness",
        note="Mean over seeds of the base-2 logarithm: one less is half the rate. Rates are of "
        "mean gradients. Each search climbs a ladder of factor 2 until the rates on both sides of "
        "the best are worse.",
    )  # fmt: skip


def edges(subject: Subject, runs: Runs) -> Exhibit:
    """Largest stable rates of SGD and momentum against staleness, beside a quadratic's."""
    del subject
    rows: list[Row] = []
    for optimizer, momentum in EDGES.items():
        # Over SGD's at τ = 1, as the measured ones are: the curvature, not known, cancels.
        theory = {tau: stable_rate(tau, momentum) / stable_rate(1) for tau in TAUS}
        for problem in PROBLEMS:
            rows += [replace(_edge(runs, problem, optimizer, tau), paper=theory[tau])
                     for tau in TAUS]  # fmt: skip
    return Exhibit(
        "s.stable", "figure", "Largest stable rate, over that of SGD at τ = 1", tuple(rows),
        axes={"x": AXIS, "y": "largest stable rate (of SGD's at τ = 1)"},
        draw={**TICKS, "y_scale": "log"},
        paper_label="Fixed staleness",
        note="Predicted is a quadratic's, computed. "
        "A learning rate is stable if training ends with a loss below that of its start. Each "
        "point is the geometric middle of the largest stable rate and the next rate tried. "
        f"A rate is therefore known up to a factor of {RESOLVED:.2f} either way, and a ratio of "
        f"two rates up to a factor of {RESOLVED**2:g}, however short the whisker.",
    )  # fmt: skip


def _edge(runs: Runs, problem: str, optimizer: str, tau: int) -> Row:
    group, unit = (runs[cell(problem, *each)] for each in ((optimizer, tau), ("SGD", 1)))
    found = np.exp2(octaves(group, "edge") - octaves(unit, "edge"))
    return _row(f"{problem}, {optimizer}", tau + 1, found, group, unit)


def clusters(subject: Subject, runs: Runs) -> Exhibit:
    """Losses on simulated clusters beside those under fixed staleness of the same mean."""
    del subject
    rows: list[Row] = []
    for optimizer in DRAWN:
        for where in ("", *CLUSTERS):
            for tau in CLUSTER_TAUS:
                group = runs[cell(PICTURED, optimizer, tau, where)]
                label = f"{optimizer}, {where or 'fixed'}"
                rows.append(_row(label, tau + 1, summary_values(group, "loss"), group))
    return Exhibit(
        "s.clusters", "figure", f"Staleness of clusters: {PROBLEMS[PICTURED]}", tuple(rows),
        axes={"x": "workers, one more than the mean staleness", "y": "development loss (nats)"},
        draw={**TICKS, "x_ticks": [tau + 1 for tau in CLUSTER_TAUS]},
        paper_label="Simulated clusters",
        note="Of τ + 1 workers with one contribution under way each, staleness is τ in the mean.",
    )  # fmt: skip


def differing(tau: int, subject: Subject, runs: Runs) -> Exhibit:
    """Gain lost to a cluster's staleness beyond that lost to fixed staleness of the same mean."""
    del subject
    rows = [
        _row(f"{problem}, {optimizer}", cluster,
             100.0 * share_lost_to_scatter(runs, problem, optimizer, tau, cluster),
             runs[cell(problem, optimizer, 0)], runs[cell(problem, optimizer, tau)],
             runs[cell(problem, optimizer, tau, cluster)])
        for problem, optimizer in product(PROBLEMS, OPTIMIZERS)
        for cluster in CLUSTERS
    ]  # fmt: skip
    return Exhibit(
        f"s.scattered-{tau + 1}", "table",
        f"Share of the gain that the staleness of {tau + 1} workers of a cluster takes away, less "
        f"what τ = {tau} takes away (points)",
        tuple(rows), paper_label="Simulated clusters",
        note="Below 0, staleness that scatters is better than fixed staleness of the same mean.",
    )  # fmt: skip


def _row(label: str, column: str | float, values: Array, *groups: Sequence[Run]) -> Row:
    return Row.from_interval(label, column, None, mean_ci(values), hashes(*groups))


def _problem_cells(problem: str) -> tuple[str, ...]:
    return tuple(cell(problem, o, tau) for o in OPTIMIZERS for tau in TAUS)


def _figure(problem: str) -> Callable[[Subject, Runs], Exhibit]:
    return partial(losses, problem)


EVERY = tuple(name for problem in PROBLEMS for name in _problem_cells(problem))
HELD = tuple(cell(p, o, tau) for p in PROBLEMS for o in EDGES for tau in TAUS)
SEEN = tuple(
    cell(PICTURED, o, tau, c) for o in DRAWN for c in ("", *CLUSTERS) for tau in CLUSTER_TAUS
)


def _scatter_cells(tau: int) -> tuple[str, ...]:
    """The cells of a cluster's τ + 1 workers, of the same fixed staleness, and of none."""
    pairs = tuple(product(PROBLEMS, OPTIMIZERS))
    fixed = tuple(cell(*pair, each) for pair in pairs for each in (0, tau))
    return (*fixed, *(cell(*pair, tau, cluster) for pair in pairs for cluster in CLUSTERS))


EXHIBITS = (
    *(Maker(f"s.{problem}", _problem_cells(problem), _figure(problem)) for problem in PROBLEMS),
    Maker("s.lost", EVERY, shares),
    Maker("s.rates", EVERY, rates),
    Maker("s.stable", HELD, edges),
    Maker("s.clusters", SEEN, clusters),
    *(
        Maker(f"s.scattered-{tau + 1}", _scatter_cells(tau), partial(differing, tau))
        for tau in CLUSTER_TAUS
    ),
)
