"""Stampede with its free figures, fitted to paper 2's timings on 1, 2 and 4 GPUs.

Four figures are free: the K20's speed, the bandwidth MPI achieves, the fixed time of an epoch,
and the parallel program's excess: the timings on 2 and 4 GPUs outside MPI add up to more than the
work of one. They do not determine whether that excess belongs to every minibatch or to every
average. The first reading is judged; it was chosen because an average outside MPI has no work of
that size (a quarter of ten minibatches). The second is reported beside it.

MPI's all-reduce of long messages is Rabenseifner's algorithm (Thakur, Rabenseifner and Gropp
2005), and that is what is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from harness.base.settings import load_toml
from harness.simulator.cluster import Cluster, Workload, load_cluster
from harness.simulator.protocols.averaging import Averaging

FOLDER = Path(__file__).parent
REPORTED = load_toml(FOLDER / "reported.toml")
CLUSTER = FOLDER.parent / "clusters" / "stampede.toml"
FITTED_UP_TO = 4
EVERY: int = REPORTED["paper"]["every"]
COLLECTIVE = "rabenseifner"
FITTED = FOLDER / "fitted.toml"


class FitResult(NamedTuple):
    """The free figures by name, and the largest relative error among the timings fitted to."""

    free: dict[str, float]
    largest_error: float


def averaging(every: int = EVERY) -> Averaging:
    """The paper's protocol."""
    return Averaging(every, overlap=False, collective=COLLECTIVE)


def workload() -> Workload:
    """The paper's network and minibatch."""
    return Workload.of_network(REPORTED["paper"]["layers"], REPORTED["paper"]["minibatch"])


def cluster(free: Mapping[str, float]) -> Cluster:
    """Stampede with the free figures in place of the file's."""
    machine = load_cluster(CLUSTER)
    assert machine.network is not None
    device = replace(machine.devices["K20"], achieved_flops_per_s=free["flops_per_s"])
    level = replace(machine.network.levels[0], bandwidth_bytes_per_s=free["bytes_per_s"])
    # Each reading has one of slowdown and average_s; the other keeps its neutral value.
    parallel = replace(
        machine.parallel,
        slowdown=free.get("slowdown", 1.0),
        average_s=free.get("average_s", 0.0),
        epoch_s=free["epoch_s"],
    )
    return replace(
        machine,
        devices={"K20": device},
        network=replace(machine.network, levels=(level,)),
        parallel=parallel,
    )


def predict_naively(minutes: Mapping[int, float], n: int) -> dict[str, float]:
    """Speed-ups on ``n`` GPUs by rules without a simulator, from minutes on 1, 2 and 4 GPUs.

    Amdahl's law is a + b / n minutes through those on 2 and 4; the efficiency is that on 4; the
    power is what the doubling from 2 to 4 gained.
    """
    alone, two, four = (minutes[gpus] for gpus in (1, 2, 4))
    work = 4.0 * (two - four)
    return {
        "Amdahl's law": alone / (two - work / 2 + work / n),
        "constant efficiency": alone / four * n / 4,
        "power per doubling": alone / four * (two / four) ** math.log2(n / 4),
    }


@lru_cache
def load_fit(reading: str = "minibatch") -> FitResult:
    """The fit for one reading of the excess, ``"minibatch"`` or ``"average"``."""
    fit = load_toml(FITTED)[reading]
    return FitResult(fit["free"], fit["largest_error"])
