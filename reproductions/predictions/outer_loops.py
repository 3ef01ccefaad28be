"""Time per step of training with infrequent synchronisation, with prediction intervals.

A plan names a cluster file, algorithms with the steps between two of their synchronisations, the
bandwidths of the links, and figures of the file with uncertain values. Each cell is simulated once
for each draw of those figures, like a short measured run: a number of
steps, the first of which are discarded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, load_spec, load_toml, setting, size
from harness.cluster_keys import put
from harness.simulator.cluster import Cluster, cluster_from
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation
from reproductions.predictions.uncertain import Uncertain, draws, with_values

COLUMNS = (
    *("algorithm", "H", "bandwidth_bits_per_s"),
    *("ms_per_step", "ms_low", "ms_high", "computing_share"),
)
LINK = "network.levels[{}].bandwidth_bytes_per_s"
BITS = 8.0


@dataclass(frozen=True)
class OuterLoop(Spec):
    """The timing of an algorithm.

    Attributes:
        name: for the table.
        every: steps between two synchronisations; one row for each.
        buckets: of gradients that are sent while others are computed, as for averaging.
        broadcast_bytes: bytes that one worker sends to all others before each synchronisation, down
            a chain, as DDP does with a module's buffers; nothing else happens meanwhile.
    """

    name: str = setting()
    every: tuple[int, ...] = setting(at_least=1, at_most=2**30)
    buckets: tuple[float, ...] = setting((), at_least=1.0, at_most=1e21)
    broadcast_bytes: float = size(0.0)


@dataclass(frozen=True)
class OuterLoops(Spec):
    """A plan: the rows to predict, and their settings.

    Attributes:
        cluster: a cluster file, relative to this one.
        bandwidths_bits_per_s: of a link of the network's highest level; one row for each.
        steps: length of a run; it ends with the last synchronisation in them.
        discarded_steps: at its beginning; synchronisations in them are not counted.
        algorithms: the algorithms to time.
        uncertain: figures of the cluster file that are drawn.
        draws: number of simulations of a row.
        interval: the share of the draws between a row's low and high figure.
        seed: of the draws and of all durations.
    """

    cluster: str = setting()
    bandwidths_bits_per_s: tuple[float, ...] = setting(at_least=1e-5, at_most=1e21)
    steps: int = setting(at_least=1, at_most=2**30)
    discarded_steps: int = setting(0, at_least=0, at_most=2**30)
    algorithms: tuple[OuterLoop, ...] = ()
    uncertain: tuple[Uncertain, ...] = ()
    draws: int = setting(101, at_least=1, at_most=10_000)
    interval: float = setting(0.9, above=0.0, at_most=1.0)
    seed: int = setting(0, at_least=0, at_most=2**62)

    def trouble(self) -> tuple[str, str] | None:
        """A run without a synchronisation after the discarded steps."""
        for every in {every for loop in self.algorithms for every in loop.every}:
            if self.steps // every <= self.discarded_steps // every:
                reason = f"{self.steps} is not allowed; allowed: so many that one is counted"
                return "steps", f"{reason} of the synchronisations every {every} steps"
        return None


@dataclass(frozen=True)
class Cell:
    """A row of the prediction.

    Attributes:
        algorithm, every, bandwidth_bits_per_s: the row's settings.
        ms_per_step: mean over the draws of milliseconds per step, synchronisations included.
        ms_low, ms_high: ends of the interval of the draws.
        computing_share: share of the time in which a worker computes.
    """

    algorithm: str
    every: int
    bandwidth_bits_per_s: float
    ms_per_step: float
    ms_low: float
    ms_high: float
    computing_share: float


def build_table(path: Path, progress: Callable[[str], None]) -> Iterator[Sequence[str]]:
    """The prediction of a plan's file, its header first; see `predict_steps`."""
    yield COLUMNS
    yield from map(format_row, predict_steps(load_spec(OuterLoops, path), path, progress))


def format_row(cell: Cell) -> list[str]:
    """A cell as a row of the table, times with six digits and the share with four."""
    figures = (cell.ms_per_step, cell.ms_low, cell.ms_high)
    settings = [cell.algorithm, str(cell.every), f"{cell.bandwidth_bits_per_s:.0f}"]
    return [*settings, *(f"{figure:.6g}" for figure in figures), f"{cell.computing_share:.4g}"]


def predict_steps(
    plan: OuterLoops, path: Path, progress: Callable[[str], None] = lambda line: None
) -> Iterator[Cell]:
    """Predict every row of a plan.

    Args:
        plan: the plan.
        path: its file; the cluster file is relative to its folder.
        progress: called with a description of the next row.

    Raises:
        UserError: the cluster file is wrong, or a drawn figure is not allowed in it.
    """
    file = path.parent / plan.cluster
    table, figures = load_toml(file), draws(plan.uncertain, plan.draws, plan.seed)
    for loop in plan.algorithms:
        for every in loop.every:
            progress(f"{loop.name}, a synchronisation every {every} steps")
            for bandwidth in plan.bandwidths_bits_per_s:
                rules = Averaging(every, buckets=loop.buckets)
                runs = [
                    _run(plan, _machine(plan, table, file, loop, bandwidth, values), rules, number)
                    for number, values in enumerate(figures.tolist())
                ]
                yield _cell(plan, loop.name, every, bandwidth, np.array(runs))


def _machine(
    plan: OuterLoops,
    table: dict[str, Any],
    file: Path,
    loop: OuterLoop,
    bandwidth: float,
    values: list[float],
) -> Cluster:
    """The cluster of one draw."""
    levels = table.get("network", {}).get("levels", [None])
    limited = copy.deepcopy(table)
    put(limited, LINK.format(len(levels) - 1), bandwidth / BITS, str(file))
    figures = [
        (figure, value)
        for figure, value in zip(plan.uncertain, values, strict=True)
        if not figure.algorithms or loop.name in figure.algorithms
    ]
    changed = with_values(limited, figures, str(file))
    return _with_broadcast(cluster_from(changed, file), loop.broadcast_bytes)


def _with_broadcast(machine: Cluster, size_bytes: float) -> Cluster:
    """The cluster with a broadcast over its highest links before each average.

    Every worker but the last passes the bytes on as they arrive, so they take the time of one link
    and the latencies of all.
    """
    if not size_bytes or machine.network is None:
        return machine
    link = machine.network.levels[-1]
    took_s = size_bytes / link.away_bytes_per_s + (machine.size - 1) * link.latency_s
    parallel = replace(machine.parallel, average_s=machine.parallel.average_s + took_s)
    return replace(machine, parallel=parallel)


def _run(plan: OuterLoops, machine: Cluster, rules: Averaging, number: int) -> tuple[float, float]:
    """Seconds per step of one draw, and the seconds of computing in them."""
    if machine.workload is None:
        raise UserError(f"{plan.cluster}: workload: missing; needed for a prediction")
    simulation = Simulation(machine, rules, machine.workload, seed=plan.seed + number)
    # Whole rounds only: discarded steps after the last synchronisation in them are measured.
    skipped = plan.discarded_steps // rules.every
    simulation.advance(folds=skipped)
    begins_s, rounds = simulation.now_s, plan.steps // rules.every - skipped
    timeline = simulation.advance(folds=rounds)
    spans = timeline.spans.where(timeline.spans.kind == timeline.kinds.index("compute"))
    steps = rounds * rules.every
    computing_s = float((spans.end_s - spans.start_s).sum()) / machine.size
    return (simulation.now_s - begins_s) / steps, computing_s / steps


def _cell(plan: OuterLoops, name: str, every: int, bandwidth: float, runs: Any) -> Cell:
    """The row of a prediction from its draws [D, 2]."""
    mean_s, computing_s = runs.mean(axis=0).tolist()
    tail = (1.0 - plan.interval) / 2.0
    low, high = np.quantile(1e3 * runs[:, 0], [tail, 1.0 - tail]).tolist()
    return Cell(name, every, bandwidth, 1e3 * mean_s, low, high, computing_s / mean_s)
