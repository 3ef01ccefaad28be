"""A scan of the machines that a paper may have had, over the figures that it does not print.

A plan has these figures, each with a range and its source, and the printed timings, each as a band.
Machines are drawn over all ranges at once, and timed; `reproductions.machines` judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.base.settings import Spec, load_spec, load_toml, setting
from harness.experiment.contract import Configuration, Watch
from harness.simulator.cluster import Cluster, Workload, cluster_from, with_catalogue
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline
from harness.store import Run, RunWriter, Store
from reproductions.predictions.uncertain import Uncertain, draws, with_values

CLUSTERS = Path(__file__).parent / "clusters"
FORMAT = 1
"""Version of a run's figures: incremented when the same configuration gives other ones."""
SEED = 0
"""Of the draws, and of every simulation: machines differ in their figures alone."""

Figures = Mapping[str, float]
"""Figures of a machine or of a run, by name."""


@dataclass(frozen=True)
class Printed(Spec):
    """A printed timing.

    Attributes:
        name: of the machines' figure that it is about.
        low, high: ends of the band in which a machine agrees with it.
        where: section or table, and the reason for the band.
    """

    name: str = setting()
    low: float = setting()
    high: float = setting()
    where: str = setting()


@dataclass(frozen=True)
class Machines(Spec):
    """A plan.

    Attributes:
        cluster: name of the file among ``clusters`` that the machines are variants of.
        run: figures of the run that the timing reads.
        unprinted: figures of the machine, under ``cluster``, and of the run, under ``run``.
        printed: what every allowed machine agrees with.
    """

    cluster: str = setting()
    run: dict[str, float] = setting()
    unprinted: tuple[Uncertain, ...] = setting()
    printed: tuple[Printed, ...] = setting()


@dataclass(frozen=True)
class MachinesConfig(Configuration):
    """A scan: machines drawn over a plan's unprinted figures, each timed.

    Args:
        plan: the plan's file.
        time: the timings of a machine, with the run's figures.
        count: number of machines.
    """

    plan: Path
    time: Callable[[Cluster, Figures], Figures]
    count: int

    @property
    def _spec(self) -> Machines:
        return load_spec(Machines, self.plan)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        files = {"plan": self.plan, "cluster": CLUSTERS / self._spec.cluster}
        time = f"{self.time.__module__}.{self.time.__qualname__}"
        settings = {"time": time, "count": self.count, "format": FORMAT}
        tables = {name: load_toml(path) for name, path in files.items()}
        return {"is": "MachinesConfig", **tables, **settings}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`: every figure of every machine, in the order of the draws."""
        del watch  # it takes minutes at most
        return store.obtain(self.to_dict(), self._scan)

    def _scan(self, writer: RunWriter) -> None:
        plan = self._spec
        path = CLUSTERS / plan.cluster
        with_catalogue(cluster := load_toml(path))
        table: dict[str, Any] = {"cluster": cluster, "run": plan.run}
        for number, values in enumerate(draws(plan.unprinted, self.count, SEED).tolist()):
            drawn = [*zip(plan.unprinted, values, strict=True)]
            changed = with_values(table, drawn, str(self.plan))
            machine = cluster_from(changed["cluster"], path)
            figures = {figure.key: value for figure, value in drawn}
            for name, value in (figures | dict(self.time(machine, changed["run"]))).items():
                writer.log(name, value, fold=number, time_s=0.0, epoch=0.0)
        writer.finish("done", {"machines": self.count})


def simulate(
    cluster: Cluster, protocol: TimingProtocol, workload: Workload, workers: int, steps: int
) -> Timeline:
    """The timeline of ``steps`` folds for each worker."""
    simulation = Simulation(cluster, protocol, workload, workers, SEED)
    return simulation.advance(folds=steps * workers)


def minibatches_per_s(timeline: Timeline) -> float:
    """Minibatches a second over the second half, in which every worker has as many folds."""
    times_s, rows = timeline.folds.time_s, timeline.folded()
    workers = 1 + int(rows.worker.max())
    # Equal workers fold together: a stretch that is no multiple of them counts one too many.
    late = workers * (len(times_s) // (2 * workers))
    return late * float(rows.steps.mean()) / float(times_s[-1] - times_s[-1 - late])
