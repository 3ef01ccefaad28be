"""A user's module as an application: run files that name it, real processes, replay.

A run file names a module, its loss and its data as ``my_module:name``, imported from the file's
folder or from installed packages. A stored run is data: to replay it, the user names the run file
again. The run's identity has the digests of code and data, so a file with others is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from harness.base.errors import RAISED, UserError, describe_raised
from harness.base.log import LOG
from harness.base.registry import OBJECT, find_object
from harness.base.seeds import identity
from harness.base.settings import build
from harness.experiment.contract import (
    EXECUTED,
    TASK,
    RunRequest,
    Say,
    Table,
    TaskConfig,
    key_in_file,
    name_keys,
)
from harness.experiment.run import FoldApplication
from harness.experiment.run_file import complete_protocol
from harness.modules.buffers import describe_buffers
from harness.modules.network import OWN_LOSS, preserve_generators
from harness.modules.outputs import WHOLE
from harness.modules.problem import Problem
from harness.modules.settings import ModuleTable
from harness.modules.step_time import charge, check_charge
from harness.modules.task import ModuleConfig, ModuleTask, problem_of, remark_direction
from harness.store import Run, RunWriter, Store

USUAL = {"passes": 5, "evaluations": 10, "seed": 0, "tested": "at the end"}
"""Defaults of further keys that a run file may omit."""

FOLLOWS = ("problem", "work", "stages", "chunk", "device")
"""Fields that are derived from the rest of a run file."""

NO_FIELDS = ("code", "loss", "buffers", "rules")
"""Keys of a stored configuration that are no fields; they only add to its identity."""


@dataclass(frozen=True)
class Source:
    """The task table of a run file, and the folder of its modules.

    Args:
        place: what precedes keys in messages.
        folder: folder of the file.
        asked: the task table.
    """

    place: str
    folder: Path
    asked: ModuleTable

    def find(self, key: str, name: Any) -> Any:
        """Import the object of a name ``my_module:name``.

        Raises:
            UserError: it cannot be imported, or its module has no such name.
        """
        if not isinstance(name, str):
            raise UserError(f"{key}: {name!r} is not allowed; allowed: {OBJECT}")
        return find_object(name, self.place + key, self.folder)

    def load(self, key: str, name: Any) -> Any:
        """The data of a name; a function is called.

        Raises:
            UserError: see `find`; or the function raises an error.
        """
        data = self.find(key, name)
        is_function = callable(data) and not hasattr(data, "__getitem__")
        return self.call(key, name, data) if is_function else data

    def call(self, key: str, name: str, function: Callable[[], Any]) -> Any:
        """Call a user's function without arguments.

        Raises:
            UserError: the function raises an error.
        """
        try:
            return function()
        except RAISED as error:
            raise UserError(f"{key}: {name} raised {describe_raised(error)}") from error

    @cached_property
    def objects(self) -> ModuleTable:
        """The table with the objects of its names."""
        asked = self.asked
        metric, other = asked.metric, self._find_named("charge_for", asked.charge_for)
        if asked.step_seconds == "measure":
            raise UserError("step_seconds: 'measure'; allowed: 'count' or seconds, from 0")
        if callable(other) and not isinstance(other, nn.Module):
            other = self.call("charge_for", asked.charge_for, other)
        if isinstance(metric, list | tuple):
            metric = [self._find_named("metric", name) for name in cast("list[Any]", metric)]
        return replace(
            asked,
            model=self.find("model", asked.model),
            loss=asked.loss if asked.loss == OWN_LOSS else self.find("loss", asked.loss),
            data=self.load("data", asked.data),
            test=None if asked.test is None else self.load("test", asked.test),
            dev=self.load("dev", asked.dev) if isinstance(asked.dev, str) else asked.dev,
            metric=self._find_named("metric", metric),
            partition=self._find_named("partition", asked.partition),
            charge_for=other,
        )

    def _find_named(self, key: str, value: Any) -> Any:
        """The object of a name with a colon; another value itself."""
        is_name = isinstance(value, str) and ":" in value and not value.startswith("dirichlet:")
        return self.find(key, value) if is_name else value

    def problem(self) -> Problem:
        """Module, loss, data and metrics.

        Raises:
            UserError: a mistake in one of them.
        """
        with name_keys(self.place):
            return problem_of(self.objects, self.asked.model, self.place)


class ModuleApplication(FoldApplication[ModuleConfig, Problem]):
    """The application for a user's module; see `Application`."""

    config = ModuleConfig
    usual = USUAL
    tables = (ModuleTable,)
    follows = FOLLOWS

    def read(self, asked: RunRequest) -> tuple[ModuleConfig, Problem]:
        """See `Application`."""
        where, own = str(asked.path), {entry.name for entry in fields(ModuleTable)}
        task = {key: value for key, value in asked.table.items() if key in own}
        table = {key: value for key, value in asked.table.items() if key not in own}
        said = build(ModuleTable, task, where, TASK)
        source = Source(asked.task, asked.path.parent, said)
        problem, machine = source.problem(), asked.cluster()
        found = problem.inspect(said.minibatch, asked.device)  # reports mistakes in its parts first
        if line := describe_buffers(found.changing, said.buffers):
            LOG.info(line)
        for line in remark_direction(said.maximise, problem.metrics):
            LOG.info(line)
        with name_keys(asked.task):
            check_charge(source.objects, machine)
            cluster, work = charge(source.objects, problem, machine)
        cut = {"minibatch": said.minibatch, "timed_minibatch": said.minibatch}
        table |= {"cluster": cluster, "problem": problem, "work": work, "stages": [cut]}
        table |= {"chunk": 1.0, "device": asked.device}
        table.setdefault("protocol", {})  # as `lagbench.train` does, so that identities are equal
        config = build(
            ModuleConfig, complete_protocol({**USUAL, **table}), where, named=key_in_file
        )
        if config.accumulate > 1 and found.axes is None:
            LOG.info(WHOLE)
        sent = work.parameter_bytes * config.algorithm.sent
        return replace(config, work=replace(work, parameter_bytes=sent)), problem

    def load(self, config: ModuleConfig, say: Say) -> Problem:
        """See `Application`."""
        del say
        return config.problem

    def restore(
        self, run: Run, table: Table, where: str, named: TaskConfig | None = None
    ) -> ModuleConfig:
        """See `Application`; module, loss and data have to be the same.

        Raises:
            UserError: no run file is named, or its code or data are not the run's.
        """
        if not isinstance(named, ModuleConfig):
            told = "its module, loss and data are code; allowed: with the run file that names them"
            raise UserError(f"{run.dir}: {told}, as lagbench replay {run.dir} run.toml")
        own = {key: value for key, value in table.items() if key not in NO_FIELDS}
        config = build(ModuleConfig, {**own, "problem": named.problem}, where)
        how = {EXECUTED: run.config[EXECUTED]} if EXECUTED in run.config else {}
        if identity(config.to_dict() | how) != run.hash:
            told = "module, loss, data or algorithm are not those of the run file"
            raise UserError(f"{run.dir}: {told}")
        return config

    def open(
        self, config: ModuleConfig, data: Problem, store: Store, writer: RunWriter
    ) -> ModuleTask:
        """See `FoldApplication`."""
        del data, store, writer
        return ModuleTask(config)

    @contextmanager
    def computing(self, config: ModuleConfig) -> Generator[None]:
        """See `FoldApplication`; one thread, as results depend on their number in the last bits."""
        del config
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with preserve_generators():
                yield
        finally:
            torch.set_num_threads(threads)

    def describe(self, config: ModuleConfig, share: float) -> Iterator[tuple[str, str]]:
        """See `Application`."""
        del share
        work = config.work
        size = f"{work.parameter_bytes:.6g} bytes"
        each = f"{work.flops_per_frame:.6g} operations an example"
        if work.operators:
            each += f", {work.operators:.6g} operators, {work.moved_bytes:.6g} bytes moved"
        yield "  time is charged for", f"minibatches of {work.minibatch_frames}, {each}, {size}"


MODULE = ModuleApplication()
