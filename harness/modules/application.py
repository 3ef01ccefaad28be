"""A user's module as an application: run files that name it, real processes, replay.

A run file names a module, its loss and its data as ``my_module:name``, imported from the file's
folder or from installed packages. A stored run keeps those names, so that it can be replayed; its
identity has the digests of code and data, so that a replay with other code is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.base.errors import RAISED, UserError, describe_raised, name_error
from harness.base.log import LOG
from harness.base.registry import OBJECT, find_object, import_modules, undo_imports
from harness.base.seeds import identity
from harness.base.settings import build, setting
from harness.modules.buffers import Rule, describe_buffers
from harness.modules.network import OWN_LOSS, Metric, preserve_generators
from harness.modules.partition import Partitioning, partition_of
from harness.modules.problem import Arrays, Problem
from harness.modules.reading import arrays_of
from harness.modules.step_time import Charge, check_charge, is_finite
from harness.modules.task import ModuleConfig, ModuleTask, is_maximised, metrics_of
from harness.runs.config import plain
from harness.runs.file import complete_protocol
from harness.simulator import Cluster
from harness.store import Run, RunWriter, Store
from harness.tasks.contract import EXECUTED, Place, RunRequest, Say, Table
from harness.training.run import FoldApplication

SOURCE = "task.json"
"""Attached file of a run: the task table of its run file, and the file's folder."""


@dataclass(frozen=True, kw_only=True)
class ModuleTable:
    """Keys of ``[task]`` with ``is = "module"``: a user's module, its loss and its data.

    Names have the form ``my_module:name``; the module is beside the run file or installed.

    Args:
        model: a `torch.nn.Module`, from whose parameters every run starts; or a function that
            makes one, called for each seed.
        loss: a function of outputs and targets: one number for a minibatch; ``"model"`` for the
            ``loss`` of the model's outputs.
        data: training data: a pair of arrays, a map-style dataset, a `DataLoader`, or a function
            without arguments that returns one.
        test: test data of the same kinds, reported on and used for nothing else.
        dev: development data of the same kinds, or the share of the training data held out for it.
        metric: ``"error"``, ``"accuracy"``, ``"mse"``, ``"mae"``, ``"loss"``, or the name of a
            function of outputs and targets, one number for a minibatch; of several the first
            decides.
        maximise: whether more of the metric is better; without it only ``"accuracy"`` is.
        charge_for: workload that is timed in place of the trained module's: the name of another
            module, or ``"cluster"`` for the ``[workload]`` of the cluster's file.
        parameter_bytes: bytes of a copy of the parameters, in place of the module's own.
        flops_per_example: operations of a step for each example, in place of ``step_seconds``.
        step_seconds: seconds of a step on every device, or ``"count"``: the operators of the step,
            its memory traffic and its arithmetic, for each of which a device has a rate.
        minibatch: examples in a worker's minibatch.
        partition: the workers' data: ``"iid"``, ``"by_label"``, ``"dirichlet:ALPHA"``, or the name
            of a function of targets, number of workers and random generator, to each one's rows.
        buffers: buffers of trained models, where training changes some, as BatchNorm's running
            statistics, of which each worker has its own: ``"mean"`` over workers, those of the
            ``"first"`` one, or ``"local"``: each worker's own, and scores are means over workers.
        autocast: ``"bfloat16"``: `torch.autocast` to it in forward passes and losses of training.
    """

    model: str
    loss: str
    data: str
    test: str | None = None
    dev: float | str = 0.1
    metric: str | tuple[str, ...] | None = None
    maximise: bool | None = None
    charge_for: str | None = None
    parameter_bytes: float | None = setting(None, at_least=0.0)
    flops_per_example: float | None = setting(None, at_least=0.0)
    step_seconds: float | str = "count"
    minibatch: int = setting(32, at_least=1)
    partition: str = setting("iid", added=True)
    buffers: Rule = setting("mean", added=True)
    autocast: str | None = setting(None, added=True)


USUAL = {"passes": 5, "evaluations": 10, "seed": 0, "tested": "at the end"}
"""Defaults of further keys that a run file may omit."""

FOLLOWS = ("problem", "work", "stages", "chunk", "format", "device")
"""Fields that are derived from the rest of a run file."""

NO_FIELDS = ("code", "loss", "rounds", "buffers")
"""Keys of a stored configuration that are no fields; they only add to its identity."""


@dataclass(frozen=True)
class Source:
    """The task table of a run file, and the folder of its modules.

    Args:
        place: the file, for messages.
        folder: folder of the file.
        asked: the task table.
        imports: modules that the file imports for their algorithms and protocols.
    """

    place: Place
    folder: Path
    asked: ModuleTable
    imports: Sequence[str] = ()

    @property
    def where(self) -> str:
        """The file, for messages."""
        return self.place.path

    def find(self, key: str, name: str) -> Any:
        """Import the object of a name ``my_module:name``.

        Raises:
            UserError: it cannot be imported, or its module has no such name.
        """
        return find_object(name, f"{self.where}: {key}", self.folder)

    def data(self, key: str, name: str) -> Arrays:
        """Load the data of a name; a function is called.

        Raises:
            UserError: see `find`; the function raises an error; or the object is no data.
        """
        found = self.find(key, name)
        if callable(found) and not hasattr(found, "__getitem__"):
            found = self.call(key, name, found)
        return arrays_of(found, f"{self.where}: {key}")

    def call(self, key: str, name: str, function: Callable[[], Any]) -> Any:
        """Call a user's function without arguments.

        Raises:
            UserError: the function raises an error.
        """
        try:
            return function()
        except RAISED as error:
            told = f"{name} raised {describe_raised(error)}"
            raise UserError(f"{self.where}: {key}: {told}") from error

    def problem(self) -> Problem:
        """Module, loss, data and metrics.

        Raises:
            UserError: a mistake in one of them.
        """
        asked = self.asked
        model = self.find("model", asked.model)
        loss = OWN_LOSS if asked.loss == OWN_LOSS else self.find("loss", asked.loss)
        for key, found in {"model": model, "loss": loss}.items():
            if not (callable(found) or found == OWN_LOSS):
                told = f"{key}: a {type(found).__name__}; allowed: a module or a function"
                raise UserError(f"{self.where}: {told}")
        train = self.data("data", asked.data)
        if isinstance(asked.dev, str):
            dev = self.data("dev", asked.dev)
        elif 0.0 < asked.dev < 1.0:
            train, dev = train.split(asked.dev)
        else:
            raise UserError(
                f"{self.where}: dev: {asked.dev}; allowed: above 0, below 1; or {OBJECT}"
            )
        test = None if asked.test is None else self.data("test", asked.test)
        place = {"folder": str(self.folder.resolve()), "import": list(self.imports)}
        source = {**place, "task": plain(asked)}
        with self.place.name_keys():
            metrics, partition = self._metrics(train), self._partition()
            more = is_maximised(asked.maximise, metrics)
        parts = train, dev, test, metrics, source, self.place
        how: Any = {"maximise": more, "buffers": asked.buffers, "autocast": asked.autocast}
        with self.place.name_keys():
            return Problem(model, loss, *parts, partition=partition, **how)

    def _partition(self) -> Partitioning | None:
        asked = self.asked.partition
        is_name = ":" in asked and not asked.startswith("dirichlet:")
        return partition_of(self.find("partition", asked) if is_name else asked)

    def _metrics(self, train: Arrays) -> dict[str, Metric]:
        asked = self.asked.metric
        several = (asked,) if isinstance(asked, str) else asked
        if several is None:
            return metrics_of(None, train, self.asked.loss)
        return metrics_of([self.find("metric", m) if ":" in m else m for m in several], train)

    def charge(self, machine: Cluster) -> Charge:
        """The settings for the simulated cost of a minibatch.

        Raises:
            UserError: an invalid value; ``"measure"`` is one, since it differs by machine.
        """
        asked = self.asked
        other: Any = asked.charge_for
        if other not in (None, "cluster"):
            if ":" not in other:
                raise name_error(f"{self.where}: charge_for", other, ("cluster", OBJECT))
            found = self.find("charge_for", other)
            is_made = isinstance(found, nn.Module)
            other = found if is_made else self.call("charge_for", other, found)
        step_s = asked.step_seconds
        if step_s != "count" and not (is_finite(step_s) and float(step_s) >= 0.0):
            told = f"step_seconds: {step_s!r}; allowed: 'count' or seconds, from 0"
            raise UserError(f"{self.where}: {told}")
        numbers = asked.parameter_bytes, asked.flops_per_example, asked.step_seconds
        found = Charge(other, *numbers)
        usual = {entry.name: entry.default for entry in fields(ModuleTable)}
        given = {name: value for name, value in vars(asked).items() if value != usual[name]}
        with self.place.name_keys():
            check_charge(found, given, machine)
        return found


class ModuleApplication(FoldApplication[ModuleConfig, Problem]):
    """The application for a user's module; see `Application`."""

    config = ModuleConfig
    usual = USUAL
    tables = (ModuleTable,)
    follows = FOLLOWS

    def read(self, asked: RunRequest) -> tuple[ModuleConfig, Problem]:
        """See `Application`."""
        asked.check_keys(self)
        where, own = str(asked.path), self.own_keys
        task = {key: value for key, value in asked.table.items() if key in own}
        table = {key: value for key, value in asked.table.items() if key not in own}
        said = build(ModuleTable, task, where)
        source = Source(asked.place, asked.path.parent, said, asked.imports)
        problem, machine = source.problem(), asked.cluster()
        found = problem.inspect(said.minibatch, asked.device)  # reports mistakes in its parts first
        if line := describe_buffers(found.changing, said.buffers):
            LOG.info(line)
        cluster, work = source.charge(machine).apply(problem, said.minibatch, machine)
        cut = {"minibatch": said.minibatch, "timed_minibatch": said.minibatch}
        table |= {"cluster": cluster, "problem": problem, "work": work, "stages": [cut]}
        table |= {"chunk": 1.0, "device": asked.device}
        table.setdefault("protocol", {})  # as `lagbench.train` does, so that identities are equal
        config = build(ModuleConfig, complete_protocol({**USUAL, **table}), where)
        sent = work.parameter_bytes * config.algorithm.sent
        return replace(config, work=replace(work, parameter_bytes=sent)), problem

    def load(self, config: ModuleConfig, say: Say) -> Problem:
        """See `Application`."""
        del say
        return config.problem

    def restore(self, run: Run, table: Table, where: str) -> ModuleConfig:
        """See `Application`; module, loss and data are imported again, and have to be the same.

        They are searched in the working folder, then in the run file's former folder, because a
        project may have been moved or copied.

        Raises:
            UserError: the run was not made from a run file, or its code or data have changed.
        """
        if not (run.dir / SOURCE).exists():
            told = "trained by a program; allowed: a run of a run file"
            raise UserError(f"{run.dir}: {told}")
        kept = json.loads(run.path(SOURCE).read_text(encoding="utf-8"))
        troubles: list[str] = []
        for folder in dict.fromkeys((Path.cwd(), Path(kept["folder"]))):
            try:
                with undo_imports(folder):
                    config = self._restore_from(folder, kept, run, table, where)
            except UserError as error:
                troubles.append(str(error))
                continue
            if troubles:
                LOG.info("code and data: from %s", folder)
            return config
        raise UserError(f"{run.dir}: {'; '.join(troubles)}")

    def _restore_from(
        self, folder: Path, kept: Table, run: Run, table: Table, where: str
    ) -> ModuleConfig:
        """The configuration of a run with the code in ``folder``."""
        place = f"in {folder}"
        import_modules(kept["import"], place, folder)
        said = build(ModuleTable, kept["task"], place)
        source = Source(Place(place), folder, said, kept["import"])
        plain = {k: v for k, v in table.items() if k not in NO_FIELDS}
        config = build(ModuleConfig, {**plain, "problem": source.problem()}, where)
        how = {EXECUTED: run.config[EXECUTED]} if EXECUTED in run.config else {}
        if identity(config.to_dict() | how) != run.hash:
            told = "module, loss, data or algorithm are not those that it was trained with"
            raise UserError(f"{place}: {told}")
        return config

    def open(
        self, config: ModuleConfig, data: Problem, store: Store, writer: RunWriter
    ) -> ModuleTask:
        """See `FoldApplication`; attaches the task table of the run file to the run."""
        del store
        if data.source is not None:
            writer.attach(SOURCE, json.dumps(data.source, indent=1).encode())
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
