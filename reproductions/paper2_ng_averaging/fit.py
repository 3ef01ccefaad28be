"""Fit Stampede's free figures to paper 2's timings on 1, 2 and 4 GPUs, and to no others.

    python -m reproductions.paper2_ng_averaging.fit

The outcome is written to ``fitted.toml``, which the experiments read.

The few free parameters are declared here; all others are the cluster file's. Parameters are
positive, so the search is over their logarithms. It minimises the squares of
log(simulated / measured): every figure counts by its relative error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from harness.simulator.cluster import Cluster, Workload
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation
from harness.store.files import write_bytes
from reproductions.paper2_ng_averaging.prediction import (
    FITTED,
    FITTED_UP_TO,
    REPORTED,
    averaging,
    cluster,
    workload,
)

__all__ = [
    "Epoch",
    "Fit",
    "epochs_from_timings",
    "fit",
    "fit_to",
    "format_fits",
    "main",
    "simulate_epoch",
]

COMMON = {"flops_per_s": 1.5e12, "bytes_per_s": 1.0e9, "epoch_s": 100.0}

READINGS = {
    "minibatch": {**COMMON, "slowdown": 1.1},
    "average": {**COMMON, "average_s": 0.1},
}
"""Free parameters with first guesses, by the place of the parallel program's excess time."""


def epochs_from_timings(timings: Mapping[str, Any], most_workers: int) -> list[Epoch]:
    """The epochs of at most ``most_workers`` in a table of the authors' timings."""
    columns = zip(timings["gpus"], timings["total_min"], timings["mpi_min"], strict=True)
    return [Epoch(n, 60.0 * t, 60.0 * m) for n, t, m in columns if n <= most_workers]


def fit_to(epochs: Sequence[Epoch], start: Mapping[str, float]) -> Fit:
    """The fit to some epochs.

    Raises:
        ValueError: an epoch is of more workers than may be fitted to.
    """

    def simulate(free: Mapping[str, float], workers: int) -> Epoch:
        return simulate_epoch(cluster(free), averaging(), workload(), workers)

    return fit(epochs, start, simulate, FITTED_UP_TO)


def format_fits(found: Mapping[str, Fit]) -> str:
    """The fit of each reading as TOML."""
    lines = [
        "# Free figures of Stampede that come closest to the authors' timings on 1, 2 and 4 GPUs.",
        "# Made by python -m reproductions.paper2_ng_averaging.fit; not edited by hand.",
    ]
    for reading, each in found.items():
        lines += ["", f"[{reading}]", f"largest_error = {each.largest_error:.4g}"]
        lines += [f"free.{name} = {value!r}" for name, value in each.free.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Fit both readings; returns the exit code."""
    epochs = epochs_from_timings(REPORTED["timings"], FITTED_UP_TO)
    found = {reading: fit_to(epochs, start) for reading, start in READINGS.items()}
    write_bytes(FITTED, format_fits(found).encode())
    return 0


SAMPLE = 100

DIGITS = 4


@dataclass(frozen=True)
class Epoch:
    """Seconds of one epoch.

    Attributes:
        workers: number of workers.
        total_s: the whole epoch.
        messages_s: the part in which a worker waits for or takes part in all-reduces (0 for one
            worker).
    """

    workers: int
    total_s: float
    messages_s: float


@dataclass(frozen=True)
class Fit:
    """Result of a fit.

    Attributes:
        free: the fitted parameters by name, rounded to four digits.
        epochs: the epochs simulated with them.
        largest_error: the largest relative error among the figures fitted.
    """

    free: Mapping[str, float]
    epochs: tuple[Epoch, ...]
    largest_error: float


def simulate_epoch(
    cluster: Cluster, protocol: Averaging, workload: Workload, workers: int, seed: int = 0
) -> Epoch:
    """One epoch with a barrier, from its first rounds: they are alike but for jitter.

    Raises:
        ValueError: the cluster's ``parallel.epoch_minibatches`` is 0.
    """
    whole = cluster.parallel.epoch_minibatches
    if whole == 0:
        raise ValueError("an epoch has no length: parallel.epoch_minibatches is 0")
    # Without ends of epochs, so that the first rounds give the mean time of a round.
    endless = replace(cluster.parallel, epoch_minibatches=0, epoch_s=0.0)
    machine = replace(cluster, parallel=endless)
    timeline = Simulation(machine, protocol, workload, workers, seed).advance(folds=SAMPLE)
    computing = timeline.spans.where(timeline.spans.kind == timeline.kinds.index("compute"))
    rounds = whole / (workers * protocol.every)
    before = endless.average_s if workers > 1 else 0.0
    # From the end of a worker's computation to the fold, less the time of an average outside MPI.
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
        measured: epochs to fit.
        start: the free parameters with a first guess of each, all positive.
        simulate: from parameters and a worker count to the simulated epoch.
        most_workers: limit for measured epochs, so that a predicted epoch cannot have been fitted.

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


if __name__ == "__main__":
    sys.exit(main())
