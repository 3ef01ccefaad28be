"""Experiments of `import lagbench`: a user's module on a cluster, method by method.

`Experiment` turns the arguments of `lagbench.compare` and its siblings into runs.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

import torch
from torch import nn

from harness.algorithms.descent import PLAIN
from harness.algorithms.schedules import Constant, Schedule
from harness.algorithms.torch_optimizers import Grouped
from harness.base.errors import RAISED, UserError, describe_raised
from harness.base.files import DEFAULT_STORE, cluster_file
from harness.base.log import LOG
from harness.grid.carriers import Parcel, Submission
from harness.grid.grid import Runner
from harness.grid.tally import Tally
from harness.judge.comparison import Impossible
from harness.modules.allowed import (
    check_kind,
    check_lists,
    check_rates,
    check_settings,
    seeds_of,
)
from harness.modules.buffers import Rule, describe_buffers
from harness.modules.network import AskedLoss, copy_module
from harness.modules.optimizers import AskedOptimizer, optimizer_of
from harness.modules.partition import (
    Partitioning,
    check_arguments,
    check_not_by_worker,
    partition_of,
)
from harness.modules.problem import Arrays, Problem
from harness.modules.reading import RandomExamples, arrays_of, is_batched
from harness.modules.recipe import (
    AskedSchedule,
    decays_beside,
    describe_schedule,
    schedule_of,
    with_decay,
)
from harness.modules.step_time import Charge, StepConfig, StepMeasurement, check_charge
from harness.modules.task import ModuleConfig, is_maximised, metrics_of
from harness.natural_gradient import NaturalGradient
from harness.runs.config import Stage
from harness.runs.device import resolve
from harness.runs.idle import idle_lines
from harness.runs.methods import (
    Asked,
    Method,
    method_of,
    with_optimizer,
)
from harness.search.advice import AdviceOutcome, AdviceSearch, make_plan
from harness.search.comparison import Grid, Rates
from harness.simulator import Cluster, Workload, load_cluster
from harness.store import Cell, Store
from harness.store.files import writable_folder
from harness.tasks.contract import Progress

Model = nn.Module | Callable[[], nn.Module]
"""A module, from whose parameters every run starts; or a function that makes one for each seed."""

Charged = nn.Module | Workload | Literal["cluster"] | None
"""The module or workload that is timed on the cluster; None for the trained module."""


class Settings(TypedDict, total=False):
    """Keyword settings of a comparison; each annotation carries the default after the type.

    Attributes:
        test: test data, reported on and used for nothing else.
        dev: development data, or the share of the training data that is held out for them:
            they decide on learning rates and on times to a target.
        metric: ``"error"``, ``"accuracy"``, ``"mse"``, ``"mae"``, ``"loss"``, or a function of
            outputs and targets, one number for a minibatch; of several the first one decides.
        maximise: whether more of the metric is better; None where only ``"accuracy"`` is.
        minibatch: examples in a worker's minibatch.
        partition: the workers' data: ``"iid"``, ``"by_label"``, ``lagbench.dirichlet(alpha)``, or a
            function of targets, number of workers and random generator, to each one's rows.
        passes: passes over the training data, the same for every number of workers.
        evaluations: evaluations on the development data in each pass.
        seeds: number of seeds, or a list of them; a seed sets data order, timing and initial
            parameters (of a model that is made by a function).
        guess: the first learning rate that is tried.
        optimizer: makes a worker's steps from its gradients: ``"sgd"``, ``"momentum"``,
            ``"nesterov"``, ``"adam"``, ``"adamw"``, ``"muon"``, ``"ngsgd"`` (natural gradient of
            linear and convolutional layers), a `LocalOptimizer`, a `NaturalGradient`, or one of
            ``torch.optim`` as an object, a class or a function that makes one. Each worker has its
            own state. None for the algorithm's own, which is mostly ``"sgd"``.
        clip: largest norm of a worker's gradient, as in ``torch.nn.utils.clip_grad_norm_``.
        weight_decay: multiple of the parameters that is added to each gradient after clipping;
            ``"adamw"``, ``"muon"`` and ``"ngsgd"`` decay beside the gradient.
        accumulate: equal parts of each minibatch that are computed one after the other.
        schedule: learning rate over training: ``"cosine"``, ``"linear"`` (both with a warm-up),
            ``"warmup"``, ``"steps"``, ``"constant"``; a function from the share of training done,
            in [0, 1), to a factor; or a `Schedule`, or a function that makes one from a learning
            rate, e.g. ``lambda r: lagbench.Cosine(r, warmup=0.1)``.
        charge_for: workload that is timed in place of the trained module's: another module, which
            takes the same examples; a `Workload`; or ``"cluster"``, the ``[workload]`` of the
            cluster's file.
        parameter_bytes: bytes of a copy of the parameters, in place of the module's own.
        flops_per_example: operations of a step for each example, in place of ``step_seconds``.
        step_seconds: time of a step on the cluster: ``"count"`` counts its operators, memory
            traffic and arithmetic, for each of which a device has a rate; ``"measure"`` corrects
            these by the time of a step here; a number is used for every device.
        target: error of the reported time to target.
        device: device that trains here: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        store: folder of the store.
        jobs: runs at a time: this process and others beside it, or jobs of ``submit``.
        submit: executor of the runs in place of processes here: ``"slurm"``, ``"local"``,
            ``"dask"``, ``"ray"``, or ``"MODULE:FUNCTION"``, a function that returns an executor.
        runs_per_job: runs that a job of ``submit`` executes, one after the other.
        buffers: buffers of trained models, where training changes some, as BatchNorm's running
            statistics, of which each worker has its own: ``"mean"`` over workers, those of the
            ``"first"`` one, or ``"local"``: each worker's own, and scores are means over workers.
        autocast: ``"bfloat16"``: `torch.autocast` to it in forward passes and losses of training.
    """

    test: Annotated[Any, None]
    dev: Annotated[Any, 0.1]
    metric: Annotated[Any, None]
    maximise: Annotated[bool | None, None]
    minibatch: Annotated[int, 32]
    partition: Annotated[str | Partitioning, "iid"]
    passes: Annotated[int, 5]
    evaluations: Annotated[int, 10]
    seeds: Annotated[int | Sequence[int], 3]
    guess: Annotated[float, 0.1]
    optimizer: Annotated[AskedOptimizer, None]
    clip: Annotated[float | None, None]
    weight_decay: Annotated[float, 0.0]
    accumulate: Annotated[int, 1]
    schedule: Annotated[AskedSchedule, Constant]
    charge_for: Annotated[Charged, None]
    parameter_bytes: Annotated[float | None, None]
    flops_per_example: Annotated[float | None, None]
    step_seconds: Annotated[float | Literal["measure", "count"], "measure"]
    target: Annotated[float | None, None]
    device: Annotated[str | torch.device, "cpu"]
    store: Annotated[str | Path, DEFAULT_STORE]
    jobs: Annotated[int, 1]
    submit: Annotated[str | None, None]
    runs_per_job: Annotated[int, 1]
    buffers: Annotated[Rule, "mean"]
    autocast: Annotated[Literal["bfloat16"] | torch.dtype | None, None]


USUAL: dict[str, Any] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Settings, None, None, True).items()
}
"""Default of each setting, as declared in `Settings`."""


@dataclass
class Experiment:
    """A user's module on a cluster.

    Args:
        model: a module, or a function that makes one for each seed.
        loss: ``loss(outputs, targets)``: one number for a minibatch; ``"model"`` for its own.
        data: arrays, a map-style dataset or a `DataLoader`; or a function that returns one, with
            the seed as its argument or without arguments.
        cluster: a `Cluster`, its file, or the name of a bundled one.
        given: the user's settings by name.

    Raises:
        UserError: an unknown setting, or a value that is not allowed.
    """

    model: Model
    loss: AskedLoss
    data: Any
    cluster: Cluster | str | Path
    given: Settings
    _problems: dict[int, Problem] = field(default_factory=dict[int, Problem], init=False)
    _turned: bool = field(default=False, init=False)
    _said: set[str] = field(default_factory=set[str], init=False)
    impossible: Sequence[Impossible] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.settings: Any = SimpleNamespace(**{**USUAL, **self.given})
        check_settings(self.model, self.loss, self.settings)
        self._choose_optimizer()
        self.device = resolve(str(self.settings.device), "device")
        self.machine = cluster_of(self.cluster)
        check_charge(self.settings, self.given, self.machine)
        self._work = self.machine.workload  # kept by `with_cluster`: only this one is the user's
        folder = writable_folder(Path(self.settings.store), "store")
        self._store = Store(folder)
        self._runner = self._make_runner()

    def _choose_optimizer(self) -> None:
        """Replace what torch's optimizer or a schedule's object says by settings of ours.

        Raises:
            UserError: two weight decays or learning rates.
        """
        asked = self.settings
        chosen, schedule = optimizer_of(asked.optimizer, self.model), asked.schedule
        asked.optimizer = chosen.descent
        if asked.weight_decay and isinstance(chosen.descent, Grouped):
            told = "the optimizer's groups have their own; allowed: one of them"
            raise UserError(f"weight_decay: {asked.weight_decay:g}; {told}")
        if chosen.weight_decay and asked.weight_decay:
            told = f"the optimizer has {chosen.weight_decay:g}; allowed: one of them"
            raise UserError(f"weight_decay: {asked.weight_decay:g}; {told}")
        asked.weight_decay = asked.weight_decay or chosen.weight_decay
        if chosen.descent == "adamw" and "weight_decay" not in self.given:
            self.say("optimizer: 'adamw' without weight decay; torch.optim.AdamW has 0.01")
        said = chosen.rate, schedule.rate if isinstance(schedule, Schedule) else None
        rates = [rate for rate in said if rate is not None]
        if len(set(rates)) > 1:
            raise UserError(f"schedule: rate {said[1]}; the optimizer's is {said[0]}; allowed: one")
        self.own_rate: float | None = next(iter(rates), None)
        if self.own_rate is not None and "guess" not in self.given:
            asked.guess = self.own_rate

    def rate_or_own(self, rate: float | None) -> float | None:
        """A learning rate, or if it is None that of the user's optimizer or schedule."""
        if rate is None and self.own_rate is not None:
            self.say(f"rate: {self.own_rate:g}, which the optimizer or schedule has")
            return self.own_rate
        return rate

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.__exit__()

    def _make_runner(self) -> Runner:
        """The runner: this process and further jobs; exceptions of runs propagate to the user."""
        asked = self.settings
        submit = asked.submit and Submission(asked.submit, asked.runs_per_job)
        return Runner(self._store, asked.jobs, submit, here=True, keeps_faults=False)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the reported runs."""
        return seeds_of(self.settings.seeds)

    def run(self, methods: Sequence[Asked], workers: Sequence[int], rates: Rates) -> list[Cell]:
        """Run every method with every number of workers; stored runs are not trained again.

        Raises:
            UserError: none of them can be trained; raised before training.
        """
        return self.run_grid(self.grid(methods, workers, rates))

    def run_grid(self, grid: Grid, tally: Tally | None = None) -> list[Cell]:
        """Run a grid of this experiment; see `run` and `Grid.run`."""
        grid = self._prepare(grid)
        return grid.run(self._runner, tally)

    def advise(
        self, grid: Grid, budget: float | None = None, exhaustive: bool = False
    ) -> AdviceOutcome:
        """Search the method and number of workers of a grid that reach the target first."""
        grid = self._prepare(grid)
        plan = make_plan(grid, self.settings.target, budget)
        return AdviceSearch(plan, grid, self._runner, exhaustive).run()

    def _prepare(self, grid: Grid) -> Grid:
        """The grid without what cannot be trained; prints remarks before its runs."""
        grid = grid.drop_impossible(self._lay_out_first)
        self.impossible = grid.impossible
        self._check_sendable(grid.methods)
        for line in self._remarks(grid.methods):
            self.say(line)
        if not self._turned:
            for line in idle_lines([self._first(*pair) for pair in grid.pairs]):
                self.say(line)
        return grid

    def _remarks(self, methods: Sequence[Method]) -> Iterator[str]:
        """Notes on facts that a user may not expect, a line each."""
        problem, size = self.problem(self.seeds[0]), self.settings.minibatch
        found = problem.inspect(size, self.device)
        if line := describe_buffers(found.changing, self.settings.buffers):
            yield line
        if line := describe_schedule(self.settings.schedule):
            yield line
        if found.reduction == "sum":
            yield "loss: summed over a minibatch; what is reported of it is the mean over examples"
        descents = [getattr(method.algorithm, "descent", PLAIN) for method in methods]
        if any(isinstance(each, NaturalGradient) and each != PLAIN for each in descents):
            count, others = problem.network(self.seeds[0], size, self.device).watchable()
            rest = f"plain steps for {', '.join(others)}" if others else "of all parameters"
            yield f"optimizer: natural gradient of {count} layer{'' if count == 1 else 's'}, {rest}"

    def _check_sendable(self, methods: Sequence[Method]) -> None:
        if self.settings.jobs == 1 and self.settings.submit is None:
            return
        parts = {name: getattr(self.settings, name) for name in ("metric", "partition")}
        parts |= {"model": self.model, "loss": self.loss}
        made = [schedule_of(self.settings.schedule, self.settings.guess)]
        parts |= {"algorithms": methods, "schedule": made}
        if isinstance(train := self.problem(self.seeds[0]).train, RandomExamples):
            parts["data"] = train
        for name, part in parts.items():
            try:
                pickle.dumps(Parcel(part))
            except Exception as error:  # whatever its parts raise
                why = str(error).partition("\n")[0]
                told = "allowed: jobs=1, or what holds no lock, open file or generator"
                raise UserError(
                    f"{name}: cannot be sent to another process ({why}); {told}"
                ) from error

    def module(self, seed: int) -> nn.Module:
        """A copy of the module of a seed's runs, before training."""
        return copy_module(self.problem(seed).module(seed))

    def first(self, method: Asked, workers: int) -> ModuleConfig:
        """The configuration with the first seed and the guessed learning rate."""
        (named,) = self._methods([method])
        return self._first(named, workers)

    def _first(self, method: Method, workers: int) -> ModuleConfig:
        return self.build_config(method, workers, self.settings.guess, self.seeds[0])

    def _lay_out_first(self, method: Method, workers: int) -> None:
        """Lay out the data of a method with a number of workers.

        Raises:
            UserError: they cannot be trained together.
        """
        config = self._first(method, workers)
        config.order(0, config.problem.train)

    def say(self, line: str) -> None:
        """Print a line on standard error, once for the experiment."""
        if line not in self._said:
            self._said.add(line)
            LOG.info(line)

    def with_cluster(self, cluster: Cluster) -> Experiment:
        """A copy on another cluster, with shared module, data and inspections.

        Its runs print no keys without effect.
        """
        other = copy.copy(self)
        other.machine, other._turned = cluster, True
        other.__dict__.pop("_timed", None)
        return other

    def grid(self, methods: Sequence[Asked], workers: Sequence[int], rates: Rates) -> Grid:
        """The grid of runs to compare.

        Raises:
            UserError: an empty list, or learning rates that are not allowed.
        """
        check_lists(methods, workers)
        named = self._methods(methods)
        for name, several in {"algorithms": named, "workers": workers}.items():
            if not several:
                raise UserError(f"{name}: empty; allowed: at least one")
        check_rates(rates, [method.label for method in named])
        guess = self.settings.guess
        return Grid(self.build_config, named, workers, self.seeds, guess, rates)

    def _methods(self, methods: Sequence[Asked]) -> list[Method]:
        optimizer, decay = self.settings.optimizer, self.settings.weight_decay
        found = [with_optimizer(method_of(each), optimizer) for each in methods]
        return [replace(each, algorithm=with_decay(each.algorithm, decay)) for each in found]

    def build_config(self, method: Method, workers: int, rate: float, seed: int) -> ModuleConfig:
        """The configuration of one run."""
        settings, size = self.settings, self.settings.minibatch
        decays = decays_beside(method.algorithm)
        return ModuleConfig(
            algorithm=method.algorithm,
            protocol=method.protocol,
            schedule=schedule_of(settings.schedule, rate),
            stages=(Stage(size, size),),
            passes=settings.passes,
            chunk=1.0,
            evaluations=settings.evaluations,
            cluster=self._timed[0],
            work=_work_of(method, self._timed[1]),
            workers=workers,
            seed=seed,
            device=self.device,
            problem=self.problem(seed),
            tested="at the end",
            clip=settings.clip,
            weight_decay=0.0 if decays else settings.weight_decay,
            accumulate=settings.accumulate,
        )

    def problem(self, seed: int) -> Problem:
        """The problem of a seed's runs; all seeds share one unless ``data`` depends on the seed."""
        key = seed if self._draws_data else 0
        if key not in self._problems:
            given = self._make_data(seed)
            self._note_batches(given)
            asked = self.settings
            train, dev = self._split_dev(arrays_of(given, "data"))
            test = None if asked.test is None else arrays_of(asked.test, "test")
            metrics = metrics_of(self.settings.metric, train, self.loss)
            more = is_maximised(self.settings.maximise, metrics)
            parts = self.model, self.loss, train, dev, test, metrics
            how: Any = {"maximise": more, "buffers": self.settings.buffers}
            how["autocast"] = self.settings.autocast
            how["partition"] = partition_of(self.settings.partition)
            self._problems[key] = Problem(*parts, **how)
        return self._problems[key]

    @cached_property
    def _draws_data(self) -> bool:
        """Whether the data are a function with the seed as its argument."""
        return callable(self.data) and _takes_one(self.data)

    def _make_data(self, seed: int) -> Any:
        """The data of a seed.

        Raises:
            UserError: the user's function raises an error.
        """
        if not callable(self.data):
            check_not_by_worker(self.data, self.settings.minibatch)
            return self.data
        check_arguments(self.data)
        try:
            return self.data(*[seed] * self._draws_data)
        except RAISED as error:
            name = getattr(self.data, "__qualname__", type(self.data).__qualname__)
            raise UserError(f"data: {name} raised {describe_raised(error)}") from error

    def _split_dev(self, train: Arrays) -> tuple[Arrays, Arrays]:
        dev = self.settings.dev
        if not isinstance(dev, float | int):
            return train, arrays_of(dev, "dev")
        if not 0.0 < dev < 1.0:
            raise UserError(f"dev: {dev}; allowed: a share between 0 and 1, or data")
        return train.split(dev)

    def _note_batches(self, data: Any) -> None:
        """Print a note if a worker's minibatch differs in size from the user's loader's."""
        if not is_batched(data) or "minibatch" in self.given:
            return
        size, theirs = self.settings.minibatch, data.batch_size
        if theirs not in (size, None):  # none with a batch sampler of the user's
            told = f"data: a DataLoader is read example by example; minibatch is {size},"
            self.say(f"{told} its batch_size {theirs} (minibatch={theirs} for the same)")

    @cached_property
    def _timed(self) -> tuple[Cluster, Workload]:
        """The cluster, and the workload of a minibatch on it."""
        asked, size = self.settings, self.settings.minibatch
        numbers = asked.parameter_bytes, asked.flops_per_example, asked.step_seconds
        charge = Charge(asked.charge_for, *numbers, asked.accumulate)

        def measure(problem: Problem, size: int) -> StepMeasurement:
            config = StepConfig(problem, size, self.device)
            return StepMeasurement.from_summary(
                config.execute(self._store, _ignore_progress).summary
            )

        problem = self.problem(self.seeds[0])
        return charge.apply(problem, size, self.machine, self._work, measure, self.say)


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function takes one argument; assumed of functions without a signature."""
    try:
        signature(function).bind(0)
    except TypeError:
        return False
    except ValueError:  # a function of C
        return True
    return True


def _work_of(method: Method, work: Workload) -> Workload:
    """The workload with the bytes of a method's contributions, if fewer than the parameters'."""
    return replace(work, parameter_bytes=work.parameter_bytes * method.algorithm.sent)


def cluster_of(asked: Cluster | str | Path) -> Cluster:
    """A cluster itself, from its file, or by the name of a bundled one.

    Args:
        asked: a cluster, the path of its file, or a name such as ``"k20m-server"``.

    Raises:
        UserError: there is no such file, or it contains a mistake.
    """
    if isinstance(asked, Cluster):
        return asked
    check_kind("cluster", asked, (str, Path), "a lagbench.Cluster, a TOML file, or a name")
    return load_cluster(cluster_file(asked))


def _ignore_progress(progress: Progress) -> None:
    """Ignore progress: the measurement takes seconds."""
