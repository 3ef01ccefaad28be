"""Quantities of the searches for rates, one value a seed, and the largest stable rate by theory.

Theory is the largest stable rate of delayed gradient descent with momentum on a quadratic:
``m_{t+1} = beta m_t + lambda theta_{t - tau}``, ``theta_{t+1} = theta_t - rate m_{t+1}``. With
x = rate lambda, iterates are sums of powers of the roots of ``z^tau (z - 1)(z - beta) + x z``, and
the rate is stable while these lie within the unit circle. Without momentum the end is known in
closed form, ``x = 2 sin(pi / (2 (2 tau + 1)))``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from harness.judge.builders import Runs
from harness.judge.interval import Interval
from harness.judge.statistics import Array, Bounds, rank_correlation_ci
from harness.store import Run
from reproductions.run_metrics import summary_values
from reproductions.staleness.experiments import TAUS, cell

HALVINGS, ROUNDING = 50, 1e-9


@cache
def stable_rate(tau: int, momentum: float = 0.0) -> float:
    """The largest stable rate, times the curvature.

    Args:
        tau: versions that a gradient is late.
        momentum: beta, below 1.

    Example:
        >>> [round(stable_rate(tau), 4) for tau in (0, 1, 4)]
        [2.0, 1.0, 0.3473]
    """
    # At tau = 0 the end is 2 (1 + beta), below 4.
    low, high = 0.0, 4.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        stable = _radius(middle, tau, momentum) < 1.0 + ROUNDING
        low, high = (middle, high) if stable else (low, middle)
    return low


def _radius(x: float, tau: int, momentum: float) -> float:
    """Modulus of the largest root of ``z^tau (z - 1)(z - momentum) + x z``."""
    polynomial = np.zeros(tau + 3)
    polynomial[:3] = 1.0, -1.0 - momentum, momentum
    polynomial[tau + 1] += x
    return float(np.abs(np.roots(polynomial)).max())


def octaves(runs: Sequence[Run], key: str) -> Array:
    """log2 of ``rate``, or of ``edge``, the middle of the stable and the unstable rung, [S]."""
    if key != "edge":
        return np.log2(summary_values(runs, key))
    return (
        np.log2(summary_values(runs, "stable")) + np.log2(summary_values(runs, "diverged"))
    ) / 2.0


def bounds_of_edge(runs: Sequence[Run]) -> Bounds:
    """log2 of the largest stable rate and of the next rung; the edge is between them, [S]."""
    return _open_bounds(*(np.log2(summary_values(runs, key)) for key in ("stable", "diverged")))


def bounds_of_rate(runs: Sequence[Run]) -> Bounds:
    """log2 of the best rate as both bounds; unbounded where a search is missing, [S]."""
    rates = octaves(runs, "rate")
    return _open_bounds(rates, rates)


def _open_bounds(low: Array, high: Array) -> Bounds:
    """Bounds; where one was not found its side is open."""
    return np.where(np.isnan(low), -math.inf, low), np.where(np.isnan(high), math.inf, high)


def share_lost(runs: Runs, problem: str, optimizer: str, tau: int, cluster: str = "") -> Array:
    """Share of an optimizer's gain without staleness that is lost to staleness, [S].

    A gain is the development loss at the start less that at the end, at the best rate of each.
    """
    group = runs[cell(problem, optimizer, 0)]
    best = summary_values(group, "loss")
    stale = summary_values(runs[cell(problem, optimizer, tau, cluster)], "loss")
    return (stale - best) / (summary_values(group, "first_loss") - best)


def share_lost_to_scatter(
    runs: Runs, problem: str, optimizer: str, tau: int, cluster: str
) -> Array:
    """Share of the gain lost to a cluster's staleness, less that lost to fixed staleness, [S]."""
    return share_lost(runs, problem, optimizer, tau, cluster) - share_lost(
        runs, problem, optimizer, tau
    )


def share_gained(runs: Sequence[Run]) -> Array:
    """Share of the loss at the start that training removes, [S]."""
    return 1.0 - summary_values(runs, "loss") / summary_values(runs, "first_loss")


def law_slope(runs: Runs, problem: str, taus: Sequence[int]) -> Array:
    """Slope of SGD's edge on that of delayed descent on a quadratic, in logarithms, [S]."""
    edges = [octaves(runs[cell(problem, "SGD", tau)], "edge") for tau in taus]
    return _weights(taus) @ np.stack(edges)


def bounds_of_slope(runs: Runs, problem: str, taus: Sequence[int]) -> Bounds:
    """The smallest and the largest `law_slope` that the ladder of rates leaves open, [S]."""
    low = high = np.zeros(())
    for weight, tau in zip(_weights(taus), taus, strict=True):
        ends = sorted(bounds_of_edge(runs[cell(problem, "SGD", tau)]), key=lambda e: weight * e[0])
        low, high = low + weight * ends[0], high + weight * ends[1]
    return low, high


def _weights(taus: Sequence[int]) -> Array:
    """Weights of the edges in a least-squares slope."""
    theory = np.log2([stable_rate(tau) for tau in taus])
    centred = theory - theory.mean()
    return centred / float(centred @ centred)


def rank_correlation(runs: Runs, problem: str, optimizer: str) -> Interval:
    """Rank correlation of the loss at the best rate with staleness."""
    losses = [summary_values(runs[cell(problem, optimizer, tau)], "loss") for tau in TAUS]
    return rank_correlation_ci(TAUS, np.stack(losses, axis=1))
