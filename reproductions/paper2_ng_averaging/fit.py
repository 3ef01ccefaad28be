"""Fit Stampede's free figures to paper 2's timings on 1, 2 and 4 GPUs, and to no others.

    python -m reproductions.paper2_ng_averaging.fit

The outcome is written to ``fitted.toml``, which the experiments read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness.store.files import write_bytes
from reproductions.paper2_ng_averaging.epochs import Epoch, Fit, fit, simulated_epoch
from reproductions.paper2_ng_averaging.prediction import (
    FITTED,
    FITTED_UP_TO,
    REPORTED,
    averaging,
    cluster,
    workload,
)

COMMON = {"flops_per_s": 1.5e12, "bytes_per_s": 1.0e9, "epoch_s": 100.0}
READINGS = {
    "minibatch": {**COMMON, "slowdown": 1.1},
    "average": {**COMMON, "average_s": 0.1},
}
"""Where the excess of the parallel program belongs: the free parameters with first guesses."""


def measured_epochs(timings: Mapping[str, Any], most_workers: int) -> list[Epoch]:
    """The epochs of at most so many workers in a table of the authors' timings."""
    columns = zip(timings["gpus"], timings["total_min"], timings["mpi_min"], strict=True)
    return [Epoch(n, 60.0 * t, 60.0 * m) for n, t, m in columns if n <= most_workers]


def fit_to(epochs: Sequence[Epoch], start: Mapping[str, float]) -> Fit:
    """The fit to some epochs.

    Raises:
        ValueError: an epoch is of more workers than may be fitted to.
    """

    def simulate(free: Mapping[str, float], workers: int) -> Epoch:
        return simulated_epoch(cluster(free), averaging(), workload(), workers)

    return fit(epochs, start, simulate, FITTED_UP_TO)


def written(found: Mapping[str, Fit]) -> str:
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
    epochs = measured_epochs(REPORTED["timings"], FITTED_UP_TO)
    found = {reading: fit_to(epochs, start) for reading, start in READINGS.items()}
    write_bytes(FITTED, written(found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
