"""A user's module as a task: configuration, minibatches, and evaluation by loss and metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.algorithms.averaging import GradientAveraging
from harness.algorithms.saved import to_array
from harness.base.errors import UserError
from harness.base.log import LOG
from harness.base.registry import OBJECT, find_object
from harness.base.seeds import stream_key
from harness.base.settings import build, format_seconds, name_keys
from harness.experiment.contract import (
    TASK,
    EvaluationResult,
    RunRequest,
    Table,
    Watch,
    ignore,
)
from harness.experiment.experiment import AnyExperiment, Experiment, plain
from harness.experiment.task import Judged, Problem, Task, one_thread
from harness.modules.buffers import deploy, describe_buffers
from harness.modules.evaluation import (
    LOSS,
    MAXIMISED,
    METRICS,
    SHARES,
    ModuleEvaluator,
    is_maximised,
    is_ours,
    metrics_of,
    remark_direction,
)
from harness.modules.inspection import Counts, Inspection, StepCounter
from harness.modules.network import (
    OWN_LOSS,
    Drawing,
    GradientRules,
    ModuleNetwork,
    preserve_generators,
    trainable_parameters,
)
from harness.modules.parts import Arrays, ModuleParts, measure_skew, partition_of
from harness.modules.reading import RandomExamples, arrays_of
from harness.modules.settings import ModuleTable, call_function, check_module, is_finite
from harness.modules.values import WHOLE, unwrap
from harness.networks.contract import Key, Minibatch, State
from harness.simulator.cluster import Cluster, Device, Workload
from harness.store import Run, Store
from harness.tasks.order import Examples, Laid, Minibatches

SUMMED = "summed over examples"
"""Value in the identity of a loss that sums over examples; its measurements are means."""


@dataclass(frozen=True, kw_only=True)
class Module(GradientRules, Task):
    """A user's module as a task; further fields are those of `GradientRules`.

    Args:
        problem: module, loss, data and metrics, whose digests are part of the identity.
        work: operations and bytes of a minibatch, for which the cluster is charged.

    Raises:
        UserError: settings that do not go together.
    """

    kind: ClassVar[str] = "module"
    # What runs were stored as before tasks were parts of experiments.
    stored_as: ClassVar[str] = "ModuleConfig"
    usual: ClassVar[Mapping[str, Any]] = {"protocol": {}, "passes": 5, "tested": "at the end"}
    follows: ClassVar[Sequence[str]] = ("problem", "work", "stages", "chunk", "device")
    tables: ClassVar[Sequence[type[Any]]] = (ModuleTable,)

    problem: ModuleParts
    work: Workload

    @classmethod
    def read(cls, request: RunRequest, keys: Table) -> tuple[Self, Table]:
        """See `Task`; names of module, loss and data stand for objects in modules of the user."""
        further = {name: keys.pop(name) for name in FURTHER if name in keys}
        settings = build(ModuleTable, keys, str(request.path), TASK)
        with name_keys(request.place):
            objects = find_objects(settings, request.place, request.path.parent)
            parts = problem_of(objects, settings.model, request.place)
        machine = request.table["cluster"]
        parts.inspect(settings.minibatch, request.device)  # finds mistakes in its parts
        with name_keys(request.place):
            check_charge(objects, machine)
            cluster, work = charge(objects, parts, machine)
        cut = {"minibatch": settings.minibatch, "timed_minibatch": settings.minibatch}
        # as `lagbench.train` does, so that identities are equal
        derived = {"cluster": cluster, "stages": [cut]}
        task = build(cls, {"problem": parts, "work": work, **further}, str(request.path), TASK)
        for line in remarks(parts, settings, request.device, task.accumulate):
            LOG.info(line)
        return task, derived

    @classmethod
    def restore(cls, run: Run, settings: Table, where: str, named: AnyExperiment | None) -> Self:
        """See `Task`; module, loss and data are those of the run file."""
        task = cast(Any, named).task if isinstance(named, Experiment) else None
        if not isinstance(task, Module):
            advice = "allowed: with the run file that names them"
            mistake = f"its module, loss and data are code; {advice}"
            raise UserError(f"{run.dir}: {mistake}, as lagbench replay {run.dir} run.toml")
        restored = build(cls, settings | {"problem": task.problem}, where)
        size = task.work.parameter_bytes  # of which the run has what its algorithm sends
        return replace(restored, work=replace(restored.work, parameter_bytes=size))

    def open(
        self, experiment: Experiment[Module], store: Store | None = None, watch: Watch = ignore
    ) -> ModuleProblem:
        """See `Task`."""
        del store, watch
        return ModuleProblem(experiment)

    def workload(self, experiment: Experiment[Module], stage: int = 0) -> Workload:
        """See `Task`."""
        del experiment, stage
        return self.work

    def check(self, experiment: Experiment[Module]) -> None:
        """See `Task`."""
        size = experiment.stage(0).minibatch
        if size % self.accumulate:
            raise UserError(
                f"accumulate: {self.accumulate}; allowed: a divisor of minibatch, {size}"
            )
        if experiment.search:
            raise UserError("schedule: no trial descents of a module; allowed: another schedule")

    def name_keys(self) -> AbstractContextManager[None]:
        """See `Task`."""
        return self.problem.name_keys()

    def inspect(self, experiment: Experiment[Module]) -> Inspection:
        """Properties of the module and its loss."""
        return self.problem.inspect(experiment.stage(0).minibatch, experiment.device)

    def facts(self, experiment: Experiment[Module]) -> dict[str, Any]:
        """See `Task`: whether the loss is a sum, and what is sent."""
        inspection = self.inspect(experiment)
        is_mean = isinstance(experiment.algorithm, GradientAveraging)
        rules = is_mean and (self.clip or self.weight_decay)
        return {
            "work": plain(experiment.workload()),
            **({"loss": SUMMED} if inspection.reduction == "sum" else {}),
            **({"buffers": self.problem.buffers} if inspection.changing else {}),
            **({"rules": "of the mean gradient"} if rules else {}),
        }

    @property
    def judged(self) -> Judged:
        """The first metric on the development set; without one, the loss."""
        problem = self.problem
        return Judged(next(iter(problem.metrics), LOSS), problem.is_share, problem.maximise)

    def example_weight(self, experiment: Experiment[Module]) -> float:
        """See `Task`; shares of right or wrong classes have one."""
        is_counted = is_ours(self.problem.metrics, SHARES)
        return 1.0 / self.count_scored(experiment) if is_counted else 0.0

    def count_scored(self, experiment: Experiment[Module]) -> int:
        """Number of development examples with a target that the first metric counts."""
        classes, targets = self.inspect(experiment).classes, self.problem.dev.y
        is_counted = is_ours(self.problem.metrics, SHARES)
        if not is_counted or classes is None or not isinstance(targets, Tensor):
            return len(self.problem.dev)
        return int(classes.counts(targets).view(len(targets), -1).any(1).sum())

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return self.problem.size

    def shares(self, workers: int, seed: int) -> Sequence[np.ndarray] | None:
        """See `Task`, with a partition."""
        return None if self.problem.partition is None else self.problem.shares(workers, seed)

    def describe_data(self, workers: int, seed: int) -> Mapping[str, float]:
        """How much the workers' data differ, with a partition."""
        shares = self.shares(workers, seed)
        return {} if shares is None else measure_skew(shares, unwrap(self.problem.train.targets))


class ModuleMinibatches(Minibatches):
    """Minibatches with seeds for what is drawn at random.

    The draws of a module's layers depend on the run's seed, the worker and the step alone; those of
    a data set (`RandomExamples`) on the run's seed, the pass and the example.

    Args:
        order_of: from the number of a stage to its order.
        examples: the training data on its device.
        seed: the run's seed.
        draws: whether layers draw.
    """

    def __init__(
        self, order_of: Callable[[int], Laid], examples: Examples, seed: int, *, draws: bool
    ) -> None:
        super().__init__(order_of, examples)
        self._seed, self._draws = seed, draws

    def fetch(self, keys: Sequence[Key]) -> Minibatch:
        """See `Minibatches`."""
        minibatch = super().fetch(keys)
        if not self._draws:
            return minibatch
        seeds = [stream_key(self._seed, "layers", *key) >> 65 for key in keys]
        return Minibatch(cast(Tensor, Drawing(minibatch.x, seeds)), minibatch.targets)

    def gather(self, keys: Sequence[Key]) -> Minibatch:
        """See `Minibatches`."""
        if not isinstance(self._examples, RandomExamples):
            return super().gather(keys)
        rows, passes = self.order.rows_of(keys), self.order.passes_of(keys)
        return self._examples.ask(rows, passes, self._seed)


def problem_of(table: ModuleTable, called: str = "", place: str = "") -> ModuleParts:
    """Module, loss, data and metrics of what a user says.

    Args:
        table: with the objects themselves.
        called: name of the model in a run file.
        place: what precedes keys in messages, of a run file.

    Raises:
        UserError: a mistake in one of them.
    """
    check_module(table)
    train = arrays_of(table.data, "data")
    if not isinstance(table.dev, float | int):
        dev = arrays_of(table.dev, "dev")
    elif 0.0 < table.dev < 1.0:
        train, dev = train.split(table.dev)
    else:
        raise UserError(f"dev: {table.dev}; allowed: a share between 0 and 1, or data")
    test = None if table.test is None else arrays_of(table.test, "test")
    metrics = metrics_of(table.metric, train, table.loss)
    name, meaning = next(iter(metrics), LOSS), (table.maximise, table.share)
    is_named = isinstance(table.metric, dict)  # by the user, who so says which way is better
    if name in METRICS and not (is_named or is_ours(metrics)) and meaning == (None, None):
        mistake = f"a function named {name!r}, as one of ours"
        raise UserError(f"metric: {mistake}; allowed: another name, or maximise or share beside it")
    is_more = is_named and table.maximise is None and name in MAXIMISED
    maximise = True if is_more else table.maximise
    return ModuleParts(
        table.model,
        table.loss,
        train,
        dev,
        test,
        metrics,
        called,
        place,
        maximise=is_maximised(maximise, metrics),
        is_share=is_ours(metrics, SHARES) if table.share is None else table.share,
        partition=partition_of(table.partition),
        buffers=table.buffers,
        autocast=table.autocast,
    )


def remarks(parts: ModuleParts, table: ModuleTable, device: str, accumulate: int) -> Iterator[str]:
    """Notes on facts of a module that a user may not expect, a line each.

    Raises:
        UserError: a mistake in one of the parts.
    """
    inspection = parts.inspect(table.minibatch, device)
    if line := describe_buffers(inspection.changing, table.buffers):
        yield line
    yield from remark_direction(parts.maximise or table.maximise, parts.metrics)
    if inspection.reduction == "sum":
        yield "loss: summed over a minibatch; what is reported of it is the mean over examples"
    if accumulate > 1 and inspection.axes is None:
        yield WHOLE


def charge(
    table: ModuleTable,
    problem: ModuleParts,
    machine: Cluster,
    *,
    accumulate: int = 1,
    work: Workload | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Cluster, Workload]:
    """The cluster to simulate, and its workload; see `check_charge`.

    Args:
        table: what the user says of the module, ``charge_for`` among it.
        problem: the trained problem.
        machine: the user's cluster.
        accumulate: microbatches of a minibatch, each of them a counted step.
        work: the workload for ``"cluster"``; None for that of ``machine``.
        say: receives a line on devices without a rate.
    """
    charged, size, step_s = table.charge_for, table.minibatch, table.step_seconds
    if charged == "cluster":
        charged = work or machine.workload
    if isinstance(charged, Workload):
        return machine, charged
    if charged is not None:
        problem = ModuleParts(charged, problem.loss, problem.train, problem.dev, None, {})
    travels = problem.bytes_of_number * problem.parameters().count
    if isinstance(step_s, int | float):
        same = {name: Device(launch_s=float(step_s)) for name in machine.devices}
        return replace(machine, devices=same), Workload(size, 0.0, travels)
    if all(d.achieved_flops_per_s is None for d in machine.devices.values()):
        steps = " or ".join({format_seconds(d.launch_s): 0 for d in machine.devices.values()})
        if "worker" not in machine.devices:  # that of `Cluster.of`, where step_s says the same
            text = f"a step takes {steps} on {machine.name!r} whatever the model"
            say(f"{text}: no achieved_flops_per_s")
        return machine, Workload(size, 0.0, travels)
    counts = count_step(problem, size // accumulate)
    return machine, Counts(*(accumulate * count for count in counts)).workload(size, travels)


def check_charge(table: ModuleTable, machine: Cluster) -> None:
    """Reject charges that the cluster cannot have, and contradictory ones.

    Raises:
        UserError: a value that is not allowed.
    """
    charged, step_s = table.charge_for, table.step_seconds
    if charged == "cluster" and machine.workload is None:
        reason = f"cluster {machine.name!r} has no [workload]"
        raise UserError(f"charge_for: 'cluster'; {reason}; allowed: a module or a Workload")
    if not isinstance(charged, nn.Module | Workload | None) and charged != "cluster":
        reason = "allowed: a torch.nn.Module, a Workload, or 'cluster'"
        raise UserError(f"charge_for: {charged!r}; {reason}")
    if step_s != "count" and not (is_finite(step_s) and step_s >= 0.0):
        raise UserError(f"step_seconds: {step_s!r}; allowed: 'count' or seconds, from 0")
    if step_s != "count" and isinstance(charged, Workload | str):
        reason = "allowed: without charge_for, which says it already"
        raise UserError(f"step_seconds: {step_s!r}; {reason}")


def count_step(problem: ModuleParts, minibatch: int) -> Counts:
    """Counts of a plain step on the CPU (forward, backward, SGD), the same on every machine."""
    network, model = problem.network(0, minibatch, "cpu"), problem.initial(0)
    module, examples = network.bind_parameters(model), problem.train[:minibatch]
    examples = examples.to("cpu", model.dtype)
    # The update is one operator, as on a GPU.
    optimizer = torch.optim.SGD(trainable_parameters(module).values(), 1e-6, foreach=True)
    with StepCounter() as counter:
        optimizer.zero_grad()
        network.loss_of(module, examples.x, examples.y).backward()  # pyright: ignore[reportUnknownMemberType]
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
    return counter.counts


FURTHER = tuple(entry.name for entry in fields(GradientRules))
"""Keys of ``[task]`` that are settings of steps, not of module or data."""


def find_objects(table: ModuleTable, place: str, folder: Path) -> ModuleTable:
    """The table of a run file, with objects in place of their names ``my_module:name``.

    Args:
        table: the table.
        place: what precedes keys in messages.
        folder: folder of the file.

    Raises:
        UserError: a name cannot be imported, its module has no such name, or a function of the data
            raises an error.
    """

    def find(key: str, name: Any) -> Any:
        if not isinstance(name, str):
            raise UserError(f"{key}: {name!r} is not allowed; allowed: {OBJECT}")
        return find_object(name, place + key, folder)

    def find_named(key: str, value: Any) -> Any:
        is_name = isinstance(value, str) and ":" in value and not value.startswith("dirichlet:")
        return find(key, value) if is_name else value

    def load(key: str, name: Any) -> Any:
        data = find(key, name)
        is_function = callable(data) and not hasattr(data, "__getitem__")
        return call_function(key, data, name=name) if is_function else data

    metric, workload = table.metric, find_named("charge_for", table.charge_for)
    if callable(workload) and not isinstance(workload, nn.Module):
        workload = call_function("charge_for", workload, name=table.charge_for)
    if isinstance(metric, list | tuple):
        metric = [find_named("metric", name) for name in cast("list[Any]", metric)]
    return replace(
        table,
        model=find("model", table.model),
        loss=table.loss if table.loss == OWN_LOSS else find("loss", table.loss),
        data=load("data", table.data),
        test=None if table.test is None else load("test", table.test),
        dev=load("dev", table.dev) if isinstance(table.dev, str) else table.dev,
        metric=find_named("metric", metric),
        partition=find_named("partition", table.partition),
        charge_for=workload,
    )


FEW, SAME = 16, 1e-4
"""Development examples that are evaluated twice at first, and the difference that is rounding."""


class ModuleProblem(Problem):
    """An opened module; see `Problem`.

    Args:
        experiment: the experiment.
    """

    def __init__(self, experiment: Experiment[Module]) -> None:
        self.experiment, self.parts = experiment, experiment.task.problem
        self._states: Callable[[], Mapping[int, State]] = dict

    @cached_property
    def pieces(self) -> Arrays:
        """See `Problem`."""
        return self.parts.train

    @cached_property
    def network(self) -> ModuleNetwork:
        """See `Problem`."""
        return self._make_network()

    def _make_network(self) -> ModuleNetwork:
        experiment, task = self.experiment, self.experiment.task
        rules = GradientRules(task.clip, task.weight_decay, task.accumulate)
        size = experiment.stage(0).minibatch
        return self.parts.network(experiment.seed, size, experiment.device, rules)

    @cached_property
    def examples(self) -> Arrays:
        """See `Problem`."""
        return self._upload(self.parts.train)

    def initial(self) -> Tensor:
        """See `Problem`."""
        return self._start

    def minibatches(self, experiment: AnyExperiment) -> Minibatches:
        """See `Problem`; modules and data sets that draw random numbers get their seeds."""
        draws = self.experiment.task.inspect(experiment).draws
        order_of = partial(experiment.order, train=self.pieces)
        return ModuleMinibatches(order_of, self.examples, experiment.seed, draws=draws)

    @contextmanager
    def computing(self, *, alone: bool) -> Generator[None]:
        """See `Problem`; one thread, as results depend on their number in the last bits."""
        del alone
        with one_thread(), preserve_generators():
            yield

    def _upload(self, examples: Arrays) -> Arrays:
        return examples.to(self.experiment.device, self.like.dtype)

    # -- measurements --------------------------------------------------------------------

    @cached_property
    def _start(self) -> Tensor:
        return self.parts.initial(self.experiment.seed).to(self.experiment.device)

    @cached_property
    def _dev(self) -> Arrays:
        return self._upload(self.parts.dev)

    @cached_property
    def _evaluator(self) -> tuple[ModuleEvaluator, State]:
        """That of loss and metrics, and the state before training."""
        classes = self.experiment.task.inspect(self.experiment).classes
        network = self._make_network()
        state = network.fresh_state()
        self._check_evaluation(ModuleEvaluator(network, self.parts, classes, {}), state)
        return ModuleEvaluator(network, self.parts, classes, self.parts.metrics), state

    def _check_evaluation(self, losses: ModuleEvaluator, state: State) -> None:
        """Refuse targets that do not count, and scores that differ from call to call.

        Raises:
            UserError: there are such.
        """
        if not self.experiment.task.count_scored(self.experiment):
            mistake = "no target is a class that the loss counts"
            raise UserError(f"dev: {mistake}; allowed: one or more")
        examples = self._dev[:FEW]
        once, again = (losses.scores(self._start, examples, state)[LOSS] for _ in range(2))
        if not math.isclose(once, again, rel_tol=SAME) and math.isfinite(once):
            mistake = f"two evaluations of one model give {once:.6g} and {again:.6g}"
            allowed = "draws from the global generators of torch, numpy or random alone"
            raise UserError(f"loss: {mistake}; allowed: {allowed}")

    def evaluate(self, model: Tensor) -> Mapping[str, float]:
        """See `Problem`."""
        return self._evaluator[0].scores(model, self._dev, self._deploy_state())

    def test(self, model: Tensor, name: str) -> EvaluationResult:
        """The same measurements on the test set, if there is one."""
        if self.parts.test is None:
            return EvaluationResult({})
        examples = self._upload(self.parts.test)
        measured = self._evaluator[0].scores(model, examples, self._deploy_state())
        return EvaluationResult({f"test_{m}/{name}": value for m, value in measured.items()})

    def take_states(self, states: Callable[[], Mapping[int, State]]) -> None:
        """See `Problem`."""
        self._states = states

    def _deploy_state(self) -> State:
        return deploy(self._states(), self._evaluator[1], self.parts.buffers)

    def state(self) -> dict[str, np.ndarray]:
        """See `Problem`."""
        return {name: to_array(tensor) for name, tensor in self._deploy_state().items()}
