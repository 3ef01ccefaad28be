"""Seconds of asynchronous training for each allowance, from those of synchronous training alone.

A plan has the seconds of a measured synchronous run (allowance 0), and settings of the protocol
`Rollouts` with unknown seconds. Three shares divide a synchronous update: generation, until
its last rollout is complete; the copy of new weights; and the trainer's step, which is the rest.
Uncertain figures are drawn, and each draw is simulated at allowance 0 and at those that are asked
for. The ratio of two simulated runs times the measured seconds is the draw's prediction, so the
unit of simulated time does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.base.settings import Spec, build, load_spec, load_toml, setting
from harness.experiment.contract import Configuration, Watch
from harness.rollouts.protocol import PUBLICATIONS, Rollouts
from harness.simulator.cluster import Cluster, Workload
from harness.simulator.simulation import Simulation
from harness.store import Run, RunWriter, Store
from reproductions.predictions.uncertain import Uncertain, draws, with_values

COLUMNS = ("allowance", "seconds", "low", "high")
FORMAT = 1
"""Version of a run's figures: incremented when the same configuration gives other ones."""


@dataclass(frozen=True)
class Shares(Spec):
    """Division of a synchronous update's time, and of a decode step's.

    Attributes:
        generation: share of an update until its last rollout is complete.
        copies: share of an update in which weights are copied to the generators.
        reading: share of a decode step that does not depend on the number of rollouts in it, with
            an equal part of a batch in each generator.
    """

    generation: float = setting(0.5, above=0.0, at_most=1.0)
    copies: float = setting(0.0, at_least=0.0, at_most=1.0)
    reading: float = setting(0.5, at_least=0.001, at_most=1.0)

    def trouble(self) -> tuple[str, str] | None:
        """Shares of more than a whole update."""
        if self.generation + self.copies > 1.0:
            allowed = f"at most {1.0 - self.generation:g}, the rest of an update"
            return "copies", f"{self.copies:g} is not allowed; allowed: {allowed}"
        return None


@dataclass(frozen=True)
class Allowances(Spec):
    """A plan: a measured synchronous run, and the allowances to predict.

    Attributes:
        synchronous_s: measured seconds of the run without any allowance.
        updates: number of updates of the run.
        generators: number of engines that generate.
        allowances: allowances to predict, in versions.
        shared: number of engines of the measured run, if all of them both generate and train, one
            after the other. With an allowance those beyond ``generators`` train, so that a step of
            the trainer takes longer in proportion.
        publish: exchanges of weights that are possible; the draws take them in turn.
        rollouts: settings of the protocol; ``eta``, ``publish`` and the seconds of decoding,
            training and copies follow from the plan.
        shares: see `Shares`.
        uncertain: keys of ``rollouts`` and ``shares`` that are drawn.
        draws: number of draws.
        interval: share of the draws between the low and the high figure.
        seed: of the draws and of all lengths.
    """

    synchronous_s: float = setting(above=0.0, at_most=1e12)
    updates: int = setting(at_least=1, at_most=1_000_000)
    generators: int = setting(at_least=1, at_most=100_000)
    allowances: tuple[int, ...] = setting(at_least=1, at_most=1_000_000)
    shared: int | None = setting(None, at_least=2, at_most=100_000)
    publish: tuple[str, ...] = setting(("between",), one_of=PUBLICATIONS)
    rollouts: Rollouts = field(default_factory=Rollouts)
    shares: Shares = Shares()
    uncertain: tuple[Uncertain, ...] = ()
    draws: int = setting(101, at_least=1, at_most=10_000)
    interval: float = setting(0.9, above=0.0, at_most=1.0)
    seed: int = setting(0, at_least=0, at_most=2**62)

    def trouble(self) -> tuple[str, str] | None:
        """No engine is left to train."""
        if self.shared is not None and self.shared <= self.generators:
            allowed = f"more than the {self.generators} that generate with an allowance"
            return "shared", f"{self.shared} is not allowed; allowed: {allowed}"
        return None


@dataclass(frozen=True)
class Allowance:
    """A row of the prediction.

    Attributes:
        allowance: in versions.
        seconds: median over the draws of the run's seconds.
        low, high: ends of the interval of the draws.
    """

    allowance: int
    seconds: float
    low: float
    high: float


def build_table(path: Path, progress: Callable[[str], None]) -> Iterator[Sequence[str]]:
    """The prediction of a plan's file in whole seconds, its header first."""
    yield COLUMNS
    for row in predict_allowances(load_spec(Allowances, path), path, progress):
        figures = (f"{seconds:.0f}" for seconds in (row.seconds, row.low, row.high))
        yield [str(row.allowance), *figures]


def predict_allowances(
    plan: Allowances, path: Path, progress: Callable[[str], None] = lambda line: None
) -> Iterator[Allowance]:
    """Predict every allowance of a plan.

    Args:
        plan: the plan.
        path: its file, for messages.
        progress: called with a description of the next draws.

    Raises:
        UserError: a drawn figure is not allowed.
    """
    table = load_toml(path)
    figures = draws(plan.uncertain, plan.draws, plan.seed)
    seconds = np.empty((plan.draws, len(plan.allowances)))
    for number, values in enumerate(figures.tolist()):
        if number % 10 == 0:
            progress(f"draws from {number + 1} to {min(number + 10, plan.draws)} of {plan.draws}")
        changed = with_values(table, zip(plan.uncertain, values, strict=True), str(path))
        seconds[number] = (
            _ratios(build(Allowances, changed, str(path)), number) * plan.synchronous_s
        )
    tail = (1.0 - plan.interval) / 2.0
    for allowance, column in zip(plan.allowances, seconds.T, strict=True):
        low, middle, high = np.quantile(column, [tail, 0.5, 1.0 - tail]).tolist()
        yield Allowance(allowance, middle, low, high)


def _ratios(plan: Allowances, number: int) -> np.ndarray:
    """[A] seconds for each allowance, over those of the synchronous run, in one draw."""
    rules, shares = plan.rollouts, plan.shares
    machines = plan.shared or plan.generators
    parallel = min(rules.slots, max(1.0, rules.batch * rules.group / machines))
    rules = replace(
        rules,
        decode_s=shares.reading,
        sequence_s=(1.0 - shares.reading) / parallel,
        steps=1,
        train_s=0.0,
        token_s=0.0,
        sync_s=0.0,
    )
    alone = replace(rules, eta=0.0, rule="admission", publish="between")
    generating_s = _simulate(plan, alone, number, machines)
    update_s = generating_s / plan.updates / shares.generation
    training = 1.0 - shares.generation - shares.copies
    seconds = {"train_s": training * update_s, "sync_s": shares.copies * update_s}
    rules, alone = replace(rules, **seconds), replace(alone, **seconds)
    whole_s = _simulate(plan, alone, number, machines)
    if machines > plan.generators:
        rules = replace(rules, train_s=rules.train_s * machines / (machines - plan.generators))
    publish = plan.publish[number % len(plan.publish)]
    later = [
        replace(rules, eta=float(eta), room=min(rules.room, eta + 1), publish=publish)
        for eta in plan.allowances
    ]
    return np.array([_simulate(plan, rule, number, plan.generators) for rule in later]) / whole_s


def _simulate(plan: Allowances, rules: Rollouts, number: int, generators: int) -> float:
    """Simulated seconds of all updates."""
    machine = Cluster.of(generators, step_s=1.0)
    simulation = Simulation(machine, rules, Workload(1, 1.0, 1.0), seed=plan.seed + number)
    simulation.advance(folds=plan.updates)
    return simulation.now_s


@dataclass(frozen=True)
class AllowanceConfig(Configuration):
    """A prediction of seconds by allowance; see `predict_allowances`.

    Args:
        path: the plan's file.
        draws: number of draws, in place of the plan's.
        seed: of the draws, in place of the plan's.
    """

    path: Path
    draws: int
    seed: int
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        plan = load_toml(self.path)
        settings = {"draws": self.draws, "seed": self.seed, "format": self.format}
        return {"is": "AllowanceConfig", "plan": plan, **settings}

    def execute(self, store: Store, watch: Watch) -> Run:
        """See `Configuration`.

        The summary has ``measured_s`` of the plan, and for each allowance ``seconds/A``, ``low/A``
        and ``high/A``.
        """
        del watch  # it takes a minute at most
        plan = replace(load_spec(Allowances, self.path), draws=self.draws, seed=self.seed)

        def execute(writer: RunWriter) -> None:
            summary = {"measured_s": plan.synchronous_s}
            for row in predict_allowances(plan, self.path):
                summary[f"seconds/{row.allowance}"] = row.seconds
                summary[f"low/{row.allowance}"] = row.low
                summary[f"high/{row.allowance}"] = row.high
            writer.finish("done", summary)

        return store.obtain(self.to_dict(), execute)
