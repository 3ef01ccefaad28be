"""How much staleness, delay and churn can *my* training stand, and what does it cost?

    import lagbench
    result = lagbench.compare(model, loss, (X, y), test=(Xt, yt), cluster="my.toml",
        algorithms=["async", "averaging:10", "sync"], workers=[1, 4, 16, 64])
    result.report("out/")       # error and time to target by workers, with intervals

``model`` is any `torch.nn.Module`, or a function that makes one; ``loss(outputs, targets)`` gives
one number a minibatch. Every run is kept in a store by the hash of all it depends on: the same
call again trains nothing twice, and goes on where it was killed. See ``docs/api.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from harness.algorithms.async_sgd import Gradients
from harness.algorithms.contract import Algorithm, Fold, LocalWork, Memory, Server
from harness.algorithms.schedules import Constant, Exponential, Halving, Schedule
from harness.base.errors import UserError
from harness.judge.comparison import build_table
from harness.modules.experiment import (
    Experiment,
    Model,
    Settings,
    check_kind,
    check_number,
    check_whole,
    cluster_of,
    pair_of,
)
from harness.modules.network import Loss
from harness.networks.contract import Minibatch, Network
from harness.runs.idle import idle_lines
from harness.runs.methods import Asked, Method, method_of
from harness.search.comparison import Rates
from harness.search.knobs import knob_of
from harness.search.search import Search, tolerance
from harness.simulator import (
    Averaging,
    Cluster,
    Fault,
    ParameterServer,
    Simulation,
    Timeline,
    Workload,
)
from harness.simulator.protocols.contract import TimingProtocol
from harness.store import Cell, Run, Store
from lagbench.result import Result, Tolerated
from lagbench.stopping import resumable

__all__ = [
    "Algorithm",
    "Averaging",
    "Cluster",
    "Constant",
    "Exponential",
    "Fault",
    "Fold",
    "Gradients",
    "Halving",
    "LocalWork",
    "Memory",
    "Method",
    "Minibatch",
    "Network",
    "ParameterServer",
    "Result",
    "Run",
    "Schedule",
    "Server",
    "Settings",
    "Timeline",
    "TimingProtocol",
    "Tolerated",
    "UserError",
    "Workload",
    "cluster_of",
    "compare",
    "load",
    "simulate",
    "tolerate",
    "train",
]


def simulate(
    cluster: Cluster | str | Path,
    workload: Workload | None = None,
    *,
    protocol: TimingProtocol | str = "parameter_server",
    workers: int | None = None,
    folds: int = 1000,
    seed: int = 0,
) -> Timeline:
    """When each worker reads, computes, sends and is folded: timing alone.

    Args:
        cluster: a cluster, its file, or the name of one that comes along.
        workload: one minibatch; None for the cluster's own.
        protocol: who waits for whom: a protocol, or the name of one or of its class.
        workers: how many; None for all of the cluster.
        folds: how many are simulated.
        seed: of every random duration.

    Raises:
        UserError: a mistake in the cluster, or no workload in it.

    Examples:
        >>> timeline = simulate("k20m-server", workers=4, folds=100)
        >>> len(timeline.folds), float(timeline.staleness()[10:].mean())
        (100, 3.0)
    """
    machine = cluster_of(cluster)
    check_whole("folds", folds)
    check_whole("seed", seed, least=0)
    check_whole("workers", machine.size if workers is None else workers)
    check_kind("workload", workload, (Workload, type(None)), "a lagbench.Workload or None")
    check_kind("protocol", protocol, (TimingProtocol, str), "a protocol or the name of one")
    work = workload or machine.workload
    if work is None:
        raise UserError(f"workload: none given, and cluster {machine.name!r} has none")
    return Simulation(machine, protocol, work, workers, seed).advance(folds=folds)


@resumable
def train(
    model: Model,
    loss: Loss,
    data: Any,
    *,
    cluster: Cluster | str | Path,
    algorithm: Asked = "async",
    workers: int = 1,
    rate: float | None = None,
    **settings: Unpack[Settings],
) -> Result:
    """Train a module as workers of a cluster would have done, once for each seed.

    Args:
        model: a module, from whose parameters every run starts; or what makes one, for each seed.
        loss: of outputs and targets, one number a minibatch; rates are of its gradient.
        data: a pair of arrays, a map-style dataset, an iterable of pairs, or a function that gives
            one of them, of the seed or of nothing.
        cluster: a cluster, its file, or the name of one that comes along.
        algorithm: a name such as ``"async"`` or ``"averaging:10"``, or an `Algorithm`.
        workers: how many.
        rate: of the gradient of ``loss``; None to have it found on development data.
        settings: see `Settings`.

    Raises:
        UserError: a mistake, in one line that says what is allowed.
    """
    with Experiment(model, loss, data, cluster, settings) as experiment:
        found = experiment.run([algorithm], [workers], rate)
    return Result(build_table(found, experiment.settings.target))


@resumable
def compare(
    model: Model,
    loss: Loss,
    data: Any,
    *,
    cluster: Cluster | str | Path,
    algorithms: Sequence[Asked] = ("async", "sync"),
    workers: Sequence[int] = (1, 4, 16),
    rates: Rates | str = "sweep",
    **settings: Unpack[Settings],
) -> Result:
    """Algorithms beside each other with growing numbers of workers, each at a rate of its own.

    Args:
        model: see `train`.
        loss: see `train`.
        data: see `train`.
        cluster: see `train`.
        algorithms: names such as ``"async"`` or ``"averaging:10"``, or `Algorithm` objects.
        workers: numbers of workers.
        rates: ``"sweep"`` finds one for each algorithm and number of workers on development data,
            with a seed that is not reported, from the linear scaling rule's guess; a number holds
            for all; a mapping has one for each algorithm.
        settings: see `Settings`.

    Raises:
        UserError: a mistake, in one line that says what is allowed.
    """
    if isinstance(rates, str):
        if rates != "sweep":
            raise UserError(f"rates: {rates!r}; allowed: 'sweep', a number, or one by algorithm")
        rates = None
    with Experiment(model, loss, data, cluster, settings) as experiment:
        found = experiment.run(algorithms, workers, rates)
    return Result(build_table(found, experiment.settings.target))


@resumable
def tolerate(
    model: Model,
    loss: Loss,
    data: Any,
    *,
    cluster: Cluster | str | Path,
    algorithm: Asked = "async",
    what: str = "workers",
    between: tuple[float, float] | None = None,
    workers: int = 4,
    margin: float = 0.01,
    halvings: int = 6,
    rate: float | None = None,
    **settings: Unpack[Settings],
) -> Tolerated:
    """How much of something training stands: turned up until the error at the end breaks.

    Args:
        model: see `train`.
        loss: see `train`.
        data: see `train`.
        cluster: see `train`.
        algorithm: see `train`.
        what: ``"workers"``, ``"staleness"`` (exactly so many folds, of equal workers), ``"delay"``
            (further seconds that every message is under way) or ``"loss"`` (the share of messages
            that are lost).
        between: the value that quality is compared with, and the largest that is tried; None for
            (1, 64) workers, (0, 64) folds, (0, 1) seconds or a loss of (0, 0.5).
        workers: how many, where they are not what is turned up.
        margin: relative; an error above that of the first value by more counts as broken.
        halvings: of the distance between the logarithms.
        rate: for all values; None to have one found for each.
        settings: see `Settings`.

    Raises:
        UserError: a mistake, in one line that says what is allowed; or training diverged at the
            first value.
    """
    check_kind("what", what, str, "'workers', 'staleness', 'delay' or 'loss'")
    check_whole("workers", workers)
    check_whole("halvings", halvings, least=0)
    check_number("margin", margin)
    knob, method = knob_of(what), method_of(algorithm)
    ends = pair_of("between", between or knob.usual)
    search = Search(knob.name, knob.axis, knob.whole, ends, margin, halvings)
    knob.check(method.algorithm)
    with Experiment(model, loss, data, cluster, settings) as experiment:
        ends = [knob.apply(experiment.machine, workers, value) for value in search.between]
        least, most = (
            experiment.with_cluster(machine).first(method, count) for machine, count in ends
        )
        knob.check_reach(least, most)
        for line in idle_lines([least, most], knob.idle):
            experiment.say(line)

        def cell(value: float) -> Cell:
            machine, count = knob.apply(experiment.machine, workers, value)
            return experiment.with_cluster(machine).run([method], [count], rate)[0]

        return Tolerated(tolerance(search, cell))


def load(run: str | Path) -> Run:
    """A stored run: ``status``, ``summary``, ``curve(metric)``, ``path(file)``.

    Args:
        run: its folder in a store.

    Raises:
        UserError: there is none.
    """
    check_kind("run", run, (str, Path), "the folder of a run in a store")
    folder = Path(run).resolve()
    return Store(folder.parent).load(folder.name)
