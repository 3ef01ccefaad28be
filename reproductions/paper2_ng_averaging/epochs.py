"""Fit a few free figures of a machine to measured epochs, to predict others.

What is fitted is small and declared; everything else about the machine stays as its file
says. Parameters are positive, so the search is over their logarithms, and the squares it
makes small are those of log(simulated / measured): every figure counts by its relative error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from harness.simulator.cluster import Cluster, Workload
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation

__all__ = ["Epoch", "Fit", "fit", "simulated_epoch"]

SAMPLE = 100
DIGITS = 4


@dataclass(frozen=True)
class Epoch:
    """Seconds of one epoch.

    Attributes:
        workers: how many trained.
        total_s: the whole epoch.
        messages_s: the part in which a worker waits for or takes part in all-reduces (0 for one
            worker).
    """

    workers: int
    total_s: float
    messages_s: float


@dataclass(frozen=True)
class Fit:
    """What came out.

    Attributes:
        free: the fitted parameters by name, rounded to four digits.
        epochs: the epochs simulated with them.
        largest_error: the largest relative error among the figures fitted.
    """

    free: Mapping[str, float]
    epochs: tuple[Epoch, ...]
    largest_error: float


def simulated_epoch(
    cluster: Cluster, protocol: Averaging, workload: Workload, workers: int, seed: int = 0
) -> Epoch:
    """One epoch with a barrier, from its first rounds: they are alike but for jitter.

    Raises:
        ValueError: the cluster's ``parallel.epoch_minibatches`` is 0.
    """
    whole = cluster.parallel.epoch_minibatches
    if whole == 0:
        raise ValueError("an epoch has no length: parallel.epoch_minibatches is 0")
    endless = replace(cluster.parallel, epoch_minibatches=0, epoch_s=0.0)
    machine = replace(cluster, parallel=endless)
    timeline = Simulation(machine, protocol, workload, workers, seed).advance(folds=SAMPLE)
    computing = timeline.spans.where(timeline.spans.kind == timeline.kinds.index("compute"))
    rounds = whole / (workers * protocol.every)
    before = endless.average_s if workers > 1 else 0.0
    waits_s = np.repeat(timeline.folds.time_s, workers) - computing.end_s - before
    messages_s = rounds * float(waits_s.mean()) if workers > 1 else 0.0
    total_s = cluster.parallel.epoch_s + rounds * float(timeline.folds.time_s[-1]) / SAMPLE
    return Epoch(workers, total_s, messages_s)


def fit(
    measured: Sequence[Epoch],
    start: Mapping[str, float],
    simulate: Callable[[Mapping[str, float], int], Epoch],
    most_workers: int,
) -> Fit:
    """Least squares over the free parameters.

    Args:
        measured: epochs to come close to.
        start: the free parameters with a first guess of each, all positive.
        simulate: from parameters and a worker count to the simulated epoch.
        most_workers: no measured epoch may be of more, so that what is to be predicted cannot
            have been fitted.

    Raises:
        ValueError: an epoch of more workers, or more free parameters than measured figures.
    """
    from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

    beyond = [epoch.workers for epoch in measured if epoch.workers > most_workers]
    if beyond:
        raise ValueError(f"{beyond} workers in a fit on at most {most_workers}")
    target = _figures(measured)
    if len(start) > len(target):
        raise ValueError(f"{len(start)} free parameters for {len(target)} measured figures")

    def errors(logs: Any) -> Any:
        named = dict(zip(start, np.exp(logs).tolist(), strict=True))
        return np.log(_figures([simulate(named, e.workers) for e in measured]) / target)

    guess = np.log(list(start.values()))
    found = cast(Any, optimize).least_squares(errors, guess, diff_step=1e-4)
    values = [float(f"{value:.{DIGITS}g}") for value in np.exp(found.x).tolist()]
    free = dict(zip(start, values, strict=True))
    epochs = tuple(simulate(free, epoch.workers) for epoch in measured)
    return Fit(free, epochs, float(np.abs(_figures(epochs) / target - 1.0).max()))


def _figures(epochs: Sequence[Epoch]) -> Any:
    """Totals, and message times where there are messages."""
    totals = [epoch.total_s for epoch in epochs]
    return np.array(totals + [epoch.messages_s for epoch in epochs if epoch.workers > 1])
