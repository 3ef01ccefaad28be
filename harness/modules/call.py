"""Calls of `import lagbench`: a user's module on a cluster, method by method.

`Call` turns the arguments of `lagbench.compare` and its siblings into runs.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.algorithms.schedules import Schedule
from harness.algorithms.torch_optimizers import Grouped
from harness.base.errors import UserError
from harness.base.log import LOG
from harness.base.registry import cluster_file
from harness.experiment.experiment import AnyExperiment, Experiment, Stage
from harness.experiment.methods import Asked, Method, method_of, several, with_optimizer
from harness.experiment.pools import Parcel, Submission
from harness.experiment.pools import check as check_executor
from harness.experiment.run import Runner, cluster_remarks, idle_lines, resolve
from harness.experiment.task import Task
from harness.judge.comparison import Impossible
from harness.modules.network import AskedLoss, GradientRules, copy_module
from harness.modules.parts import ModuleParts, make_module
from harness.modules.reading import RandomExamples, is_batched
from harness.modules.settings import (
    ModuleTable,
    Settings,
    call_function,
    check_kind,
    check_share,
    counts_of,
    optimizer_of,
    rates_of,
    schedule_of,
    seeds_of,
    takes,
    with_decay,
)
from harness.modules.task import Module, charge, check_charge, problem_of, remarks
from harness.modules.trained import describe_module
from harness.search.advice import AdviceOutcome, AdviceSearch, make_plan
from harness.search.comparison import Grid, Rates
from harness.simulator.cluster import Cluster, Workload, load_cluster
from harness.store import Cell, Store
from harness.store.files import writable_folder

Model = nn.Module | Callable[[], nn.Module]
"""A module, from whose parameters every run starts; or a function that makes one for each seed."""


OF_MODULES = {entry.name for entry in (*fields(GradientRules), *fields(ModuleTable))} - {
    "minibatch"
}
"""Settings that a task without a module has not."""


@dataclass
class Call:
    """A user's module on a cluster.

    Args:
        model: a module, or a function that makes one for each seed; or a `Task`, without loss and
            data.
        loss: ``loss(outputs, targets)``: one number for a minibatch; ``"model"`` for its own.
        data: arrays, a map-style dataset or a `DataLoader`; or a function that returns one, with
            the seed as its argument or without arguments.
        cluster: a `Cluster`, its file, or the name of a bundled one.
        given: the user's further arguments by name, see `Settings`.

    Raises:
        UserError: a value that is not allowed.
    """

    model: Model | Task
    loss: AskedLoss | None
    data: Any
    cluster: Cluster | str | Path
    given: Mapping[str, Any]
    _problems: dict[int, ModuleParts] = field(default_factory=dict[int, ModuleParts], init=False)
    _turned: bool = field(default=False, init=False)
    _said: set[str] = field(default_factory=set[str], init=False)
    impossible: Sequence[Impossible] = field(default=(), init=False)

    def __post_init__(self) -> None:
        parts = {"model": self.model, "loss": self.loss, "data": self.data}
        try:
            self.settings = Settings(**parts, **self.given)
        except UserError as error:
            raise UserError(str(error).removeprefix("Settings.")) from error
        self.task = self.model if isinstance(self.model, Task) else None
        self._check_arguments()
        self._choose_optimizer()
        self.device = resolve(str(self.settings.device), "device")
        self.machine = cluster_of(self.cluster)
        if self.task is None:
            check_charge(self.settings, self.machine)
        self._work = self.machine.workload  # kept by `with_cluster`: only this one is the user's
        settings = self.settings
        store = Store(writable_folder(Path(settings.store), "store"))
        submit = Submission(settings.submit, settings.runs_per_job) if settings.submit else None
        # exceptions of runs propagate to the user
        self.runner = Runner(store, settings.jobs, submit, keeps_faults=False)

    def _check_arguments(self) -> None:
        """Reject objects that would be refused later only.

        Raises:
            UserError: one of them.
        """
        settings = self.settings
        if self.task is not None and (names := sorted(OF_MODULES & self.given.keys())):
            raise UserError(f"{names[0]}: of modules; allowed: without it, with a task")
        check_kind("store", settings.store, (str, Path), "a folder")
        check_kind("device", settings.device, (str, torch.device), "'cpu', 'cuda' or 'auto'")
        if settings.submit is not None:
            check_executor(settings.submit, "submit")
        seeds_of(settings.seeds)
        check_share(settings.schedule)
        schedule_of(settings.schedule, settings.guess)

    def _choose_optimizer(self) -> None:
        """Replace what torch's optimizer or a schedule's object says by settings of ours.

        Raises:
            UserError: two weight decays.
        """
        settings = self.settings
        schedule, model = settings.schedule, self.model
        if self.task is None and callable(settings.optimizer):  # it may group parameters by name
            model = make_module(model, self.seeds[0])
        chosen = optimizer_of(settings.optimizer, model)
        is_grouped = isinstance(chosen.descent, Grouped)
        if settings.weight_decay and (is_grouped or chosen.weight_decay):
            theirs = "groups with their own" if is_grouped else f"{chosen.weight_decay:g}"
            mistake = f"the optimizer has {theirs}; allowed: one of them"
            raise UserError(f"weight_decay: {settings.weight_decay:g}; {mistake}")
        if chosen.descent == "adamw" and "weight_decay" not in self.given:
            self.say("optimizer: 'adamw' without weight decay; torch.optim.AdamW has 0.01")
        sources = chosen.rate, schedule.rate if isinstance(schedule, Schedule) else None
        self.own_rates = [rate for rate in sources if rate is not None]
        is_guessed = bool(self.own_rates) and "guess" not in self.given
        self.settings = replace(
            settings,
            optimizer=chosen.descent,
            weight_decay=settings.weight_decay or chosen.weight_decay,
            guess=self.own_rates[0] if is_guessed else settings.guess,
        )

    def rate_or_own(self, rate: Rates) -> Rates:
        """A learning rate, or if it is None that of the user's optimizer or schedule.

        Raises:
            UserError: it is None, and they have one each.
        """
        if rate is not None or not self.own_rates:
            return rate
        self._check_one_rate("rate=")
        self.say(f"rate: {self.own_rates[0]:g}, which the optimizer or schedule has")
        return self.own_rates[0]

    def _check_one_rate(self, argument: str) -> None:
        if len(set(self.own_rates)) > 1:
            optimizer_rate, schedule_rate = self.own_rates
            mistake = f"schedule: rate {schedule_rate}; the optimizer's is {optimizer_rate}"
            raise UserError(f"{mistake}; allowed: {argument}, which replaces both")

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.__exit__()

    @property
    def seeds(self) -> list[int]:
        """Seeds of the reported runs."""
        return seeds_of(self.settings.seeds)

    def say_idle(self, cells: Iterable[Cell]) -> None:
        """Name the keys without effect on any run; of a search for a value, its end does."""
        if not self._turned:
            for line in idle_lines(run for cell in cells for run in cell.runs):
                self.say(line)

    def advise(self, grid: Grid, trainings: float | None = None) -> AdviceOutcome:
        """Search the method and number of workers of a grid that reach the target first."""
        grid = self.prepare(grid)
        plan = make_plan(grid, self.settings.target, trainings)
        outcome = AdviceSearch(plan, grid, self.runner).run()
        self.say_idle(outcome.cells)
        return outcome

    def prepare(self, grid: Grid) -> Grid:
        """The grid without what cannot be trained; prints remarks before its runs."""
        grid = grid.drop_impossible(self._lay_out_first)
        self.impossible = grid.impossible
        if self.task is None:
            self._check_sendable(grid.methods)
            problem, settings = self.problem(self.seeds[0]), self.settings
            if problem.is_share and not 0.0 <= (settings.target or 0.0) <= 1.0:
                allowed = f"from 0 to 1, as {next(iter(problem.metrics))} is a share"
                raise UserError(f"target: {settings.target:g}; allowed: {allowed}")
            for line in remarks(problem, settings, self.device, settings.accumulate):
                self.say(line)
        if not self._turned:
            for line in cluster_remarks([self._first(*pair) for pair in grid.pairs]):
                self.say(line)
        return grid

    def _check_sendable(self, methods: Sequence[Method]) -> None:
        if self.settings.jobs == 1 and self.settings.submit is None:
            return
        parts = {name: getattr(self.settings, name) for name in ("metric", "partition")}
        parts |= {"model": self.model, "loss": self.loss}
        schedules = [schedule_of(self.settings.schedule, self.settings.guess)]
        parts |= {"algorithms": methods, "schedule": schedules}
        if isinstance(train := self.problem(self.seeds[0]).train, RandomExamples):
            parts["data"] = train
        for name, part in parts.items():
            try:
                pickle.dumps(Parcel(part))
            except Exception as error:  # whatever its parts raise
                reason = str(error).partition("\n")[0]
                advice = "allowed: jobs=1, or what holds no lock, open file or generator"
                raise UserError(
                    f"{name}: cannot be sent to another process ({reason}); {advice}"
                ) from error

    def module(self, seed: int) -> nn.Module:
        """A copy of the module of a seed's runs, before training.

        Raises:
            UserError: a task is trained, not a module.
        """
        if self.task is not None:
            mistake = "a task's; allowed: its run's folder, which has the parameters"
            raise UserError(f"model: {mistake}")
        return copy_module(self.problem(seed).module(seed))

    def describe(self, seed: int) -> str:
        """What a seed's runs train, in words."""
        if self.task is not None:
            return f"the task {self.task}"
        return describe_module(self.problem(seed).module(seed))

    def first(self, method: Asked, workers: int) -> AnyExperiment:
        """The configuration with the first seed and the guessed learning rate."""
        (labelled,) = self._methods([method])
        return self._first(labelled, workers)

    def _first(self, method: Method, workers: int) -> AnyExperiment:
        return self.build_config(method, workers, self.settings.guess, self.seeds[0])

    def _lay_out_first(self, method: Method, workers: int) -> None:
        """Lay out the data of a method with a number of workers.

        Raises:
            UserError: they cannot be trained together.
        """
        config = self._first(method, workers)
        config.order(0, config.task.open(config).pieces)

    def say(self, line: str) -> None:
        """Print a line on standard error, once for the experiment."""
        if line not in self._said:
            self._said.add(line)
            LOG.info(line)

    def with_cluster(self, cluster: Cluster) -> Call:
        """A copy on another cluster, with shared module, data and inspections.

        Its runs print no keys without effect.
        """
        copied = copy.copy(self)
        copied.machine, copied._turned = cluster, True
        copied.__dict__.pop("_timed", None)
        return copied

    def grid(self, methods: Sequence[Asked] | Asked, workers: Any, rates: Rates) -> Grid:
        """The grid of runs to compare; one method or number of workers may come without a list.

        Raises:
            UserError: an empty list, or learning rates that are not allowed, or to be searched from
                two of the user's.
        """
        labelled, counts = self._methods(several(methods)), counts_of(workers)
        for name, values in {"algorithms": labelled, "workers": counts}.items():
            if not values:
                raise UserError(f"{name}: empty; allowed: at least one")
        rates = rates_of(rates, [method.label for method in labelled])
        if rates is None and "guess" not in self.given:
            self._check_one_rate("guess=")
        return Grid(self.build_config, labelled, counts, self.seeds, self.settings.guess, rates)

    def _methods(self, methods: Sequence[Asked]) -> list[Method]:
        optimizer, decay = self.settings.optimizer, self.settings.weight_decay
        labelled = tell_apart([method_of(method) for method in methods])
        chosen = [with_optimizer(method, optimizer) for method in labelled]
        return [replace(method, algorithm=with_decay(method.algorithm, decay)) for method in chosen]

    def build_config(self, method: Method, workers: int, rate: float, seed: int) -> AnyExperiment:
        """The configuration of one run."""
        settings, size = self.settings, self.settings.minibatch
        is_beside = with_decay(method.algorithm, settings.weight_decay) is not method.algorithm
        task = self.task or Module(
            problem=self.problem(seed),
            work=self._timed[1],
            clip=settings.clip,
            weight_decay=0.0 if is_beside else settings.weight_decay,
            accumulate=settings.accumulate,
        )
        return Experiment(
            task=task,
            algorithm=method.algorithm,
            protocol=method.protocol,
            schedule=schedule_of(settings.schedule, rate),
            stages=(Stage(size, size),),
            passes=settings.passes,
            evaluations=settings.evaluations,
            cluster=self.machine if self.task else self._timed[0],
            workers=workers,
            seed=seed,
            device=self.device,
            tested="at the end",
        )

    def problem(self, seed: int) -> ModuleParts:
        """The problem of a seed's runs; all seeds share one unless ``data`` depends on the seed."""
        key = seed if self._draws_data else 0
        if key not in self._problems:
            data = self._make_data(seed)
            self._note_batches(data)
            self._problems[key] = problem_of(replace(self.settings, data=data))
        return self._problems[key]

    @cached_property
    def _draws_data(self) -> bool:
        """Whether the data are a function with the seed as its argument."""
        return callable(self.data) and takes(self.data, 0)

    def _make_data(self, seed: int) -> Any:
        """The data of a seed."""
        if not callable(self.data):
            return self.data
        return call_function("data", self.data, *[seed] * self._draws_data)

    def _note_batches(self, data: Any) -> None:
        """Print a note if a worker's minibatch differs in size from the user's loader's."""
        if not is_batched(data) or "minibatch" in self.given:
            return
        size, theirs = self.settings.minibatch, data.batch_size
        if theirs not in (size, None):  # none with a batch sampler of the user's
            remark = f"data: a DataLoader is read example by example; minibatch is {size},"
            self.say(f"{remark} its batch_size {theirs} (minibatch={theirs} for the same)")

    @cached_property
    def _timed(self) -> tuple[Cluster, Workload]:
        """The cluster, and the workload of a minibatch on it."""
        return charge(
            self.settings,
            self.problem(self.seeds[0]),
            self.machine,
            accumulate=self.settings.accumulate,
            work=self._work,
            say=self.say,
        )


def tell_apart(methods: Sequence[Method]) -> list[Method]:
    """Methods of which those with one label have the settings in it that differ among them."""
    parts: list[list[Any]] = [[method.algorithm, method.protocol] for method in methods]
    settings = [{f.name: getattr(p, f.name) for p in pair for f in fields(p)} for pair in parts]
    named: list[Method] = []
    for method, values in zip(methods, settings, strict=True):
        alike = [s for s, m in zip(settings, methods, strict=True) if m.label == method.label]
        names = [n for n, v in values.items() if any(str(s.get(n)) != str(v) for s in alike)]
        words = [f"no {n}" if values[n] is None else f"{n} {values[n]}" for n in names]
        named.append(replace(method, label=" ".join([method.label, *words])))
    return named


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
