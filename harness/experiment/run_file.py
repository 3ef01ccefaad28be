"""A run from a TOML file: the user's own cluster, data and algorithm.

The key ``is`` of table ``task`` names the application; the table's further keys are those that the
application alone has. The other keys stand at the top. A field that may be one of several classes
is a table whose ``is`` names the class. Fields that follow from the rest are omitted. ``cluster``
is the name of a bundled cluster, or a file, relative to the run file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from harness.base.errors import UserError, name_error
from harness.base.registry import entries, import_modules, load, load_plugins
from harness.base.seeds import identity
from harness.base.settings import KIND, build, dataclasses_below, load_toml
from harness.experiment.changes import Change, put
from harness.experiment.contract import (
    EXECUTED,
    IMPORT,
    SHARED,
    TASK,
    Application,
    RunRequest,
    Say,
    TaskConfig,
    Watch,
    key_in_file,
)
from harness.experiment.executors import TimelineExecutor
from harness.experiment.experiment import AnyExperiment, Experiment, Pieces, Task, complete_protocol
from harness.experiment.run import MOST_FOLDS, run, time_passes
from harness.simulator import Timeline
from harness.simulator.full_run import Whole
from harness.simulator.simulation import load_protocol
from harness.simulator.timeline_file import load_timeline
from harness.store import Run, Store
from harness.store.schema import TIMELINE

Table = dict[str, Any]


@dataclass(frozen=True)
class Folds(Application[AnyExperiment]):
    """The runs of a task that trains by folds; see `Application`.

    Args:
        task: class of the task.
    """

    task: type[Task]

    config = Experiment

    @property
    def stored_as(self) -> str:
        """See `Application`."""
        return self.task.stored_as()

    def __post_init__(self) -> None:
        set_ = partial(object.__setattr__, self)
        set_("usual", self.task.usual)
        set_("follows", (TASK, *self.task.follows))
        set_("tables", (self.task, *self.task.tables))

    def read(self, asked: RunRequest) -> AnyExperiment:
        """See `Application`."""
        asked = replace(asked, table={**self.task.usual, **asked.table})
        own = {key: value for key, value in asked.table.items() if key in self.own_keys}
        task, table = self.task.read(asked, own)
        table = complete_protocol(table) | {TASK: task, "device": asked.device}
        return cast(Any, build(Experiment, table, str(asked.path), named=key_in_file))

    def restore(
        self, run: Run, table: Table, where: str, named: TaskConfig | None = None
    ) -> AnyExperiment:
        """See `Application`."""
        names = {entry.name for entry in fields(cast(Any, self.task))}
        own = {key: value for key, value in table.items() if key in names}
        known = {entry.name for entry in fields(Experiment)}
        top = {key: value for key, value in table.items() if key in known}
        task = self.task.restore(run, own, where, named)
        config: AnyExperiment = cast(Any, build(Experiment, top | {TASK: task}, where))
        how = {EXECUTED: run.config[EXECUTED]} if EXECUTED in run.config else {}
        if identity(config.to_dict() | how) != run.hash:
            place = "this program" if named is None else "the run file"
            raise UserError(f"{run.dir}: task, data or algorithm are not those of {place}")
        return config

    def execute(self, config: AnyExperiment, store: Store, watch: Watch) -> Run:
        """See `Configuration`."""
        return run(config, store, watch)

    def replay(self, config: AnyExperiment, recorded: Run, store: Store, watch: Watch) -> Run:
        """See `Application`."""
        made = partial(TimelineExecutor, timeline=load_timeline(recorded.path(TIMELINE)))
        return run(config, store, watch, made, {"by": "a record"})

    def pieces(self, config: AnyExperiment, say: Say) -> Pieces:
        """See `Application`."""
        del say
        return config.task.open(config).pieces

    def time(self, config: AnyExperiment, pieces: Any, share: float, most: int) -> Whole:
        """See `Application`; stage by stage, with what searches cost."""
        del share
        return time_passes(config, pieces, most)

    def time_again(
        self, config: AnyExperiment, pieces: Any, run: Run, timeline: Timeline
    ) -> Timeline:
        """See `Application`."""
        del run
        return time_passes(config, pieces, len(timeline.folds)).timeline

    def sampled(self, config: AnyExperiment) -> tuple[AnyExperiment, int]:
        """See `Application`; a rate search costs time once a chunk, so a whole pass is timed."""
        alone, healthy = config.algorithm.with_workers(1), replace(config.cluster, faults=())
        return replace(config, cluster=healthy, algorithm=alone, workers=1, passes=1), MOST_FOLDS

    def describe(self, config: AnyExperiment, share: float) -> Iterator[tuple[str, str]]:
        """See `Application`."""
        del share
        work = config.workload()
        each = f"{work.flops_per_frame:.6g} operations an example"
        if work.operators:
            each += f", {work.operators:.6g} operators, {work.moved_bytes:.6g} bytes moved"
        size = f"{work.parameter_bytes:.6g} bytes"
        yield "  time is charged for", f"minibatches of {work.minibatch_frames}, {each}, {size}"


def _as_application(entry: Any) -> Application[Any]:
    """What the registry has of a name: the class of a task that trains by folds, or another."""
    return Folds(entry) if isinstance(entry, type) else entry


def application_of_config(config: TaskConfig) -> Application[Any]:
    """The application of a configuration."""
    if isinstance(config, Experiment):
        task: Task = cast(AnyExperiment, config).task
        return Folds(type(task))
    return _as_application(load("tasks", config.kind))


def application_of(table: Mapping[str, object], where: str) -> Application[Any]:
    """The application that a run file names in ``[task]``.

    Args:
        table: the parsed file.
        where: the file, for messages.

    Raises:
        UserError: the table or the name is missing, or no application has the name.
    """
    task = table.get(TASK)
    if not isinstance(task, Mapping) or KIND not in task:
        allowed = f"a table with {KIND} = one of {', '.join(entries('tasks'))}"
        raise UserError(f"{where}: {TASK}: missing; needed: {allowed}")
    name = str(cast(Mapping[str, object], task)[KIND])
    imported = {kind.__name__: kind for kind in dataclasses_below(Task)}
    if name in entries("tasks"):
        return _as_application(load("tasks", name))
    if name in imported:
        return Folds(imported[name])
    raise name_error(f"{where}: {TASK}.{KIND}", name, entries("tasks"))


def application_of_run(table: Mapping[str, object], where: str) -> Application[Any]:
    """The application of a stored run, from the name of its configuration.

    Raises:
        UserError: no application has such a name.
    """
    # Loads every application, since only a loaded one knows its configuration's name.
    known = [_as_application(load("tasks", name)) for name in entries("tasks")]
    known += map(Folds, dataclasses_below(Task))
    applications = {application.stored_as: application for application in known}
    name = str(table.get(KIND))
    if name not in applications:
        allowed = f"allowed: {', '.join(applications)}"
        raise UserError(f"{where}: {KIND}: {name!r} is not allowed; {allowed}")
    return applications[name]


def load_application(path: Path) -> Application[Any]:
    """Read a run file's application.

    Raises:
        UserError: the file cannot be read, or names no known application.
    """
    table = load_toml(path)
    _import(path, table.get(IMPORT, []))
    return application_of(table, str(path))


def load_folds(path: Path, **options: Any) -> AnyExperiment:
    """Read a run file of a task that trains by folds; see `load_run`.

    Raises:
        UserError: also if it is of another task.
    """
    config = load_run(path, **options)
    if not isinstance(config, Experiment):
        raise UserError(f"{path}: {TASK}.{KIND}: not allowed; allowed: a task of training")
    return cast(AnyExperiment, config)


def load_run(
    path: Path,
    *,
    seed: int | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
    changes: Sequence[Change] = (),
) -> TaskConfig:
    """Read a run file.

    Args:
        path: the file.
        seed: overrides the file's; not that of the run that a sequence training starts from.
        device: device that executes the run.
        progress: receives lines while data are made.
        changes: values that override the file's, each after the path to its key.

    Raises:
        UserError: a mistake in the file, its cluster file or its data.
    """
    table: Table = load_toml(path)
    for change in changes:
        put(path, table, change, lambda: application_of(table, str(path)))
    _import(path, table.pop(IMPORT, []))
    _import_protocol(path, table.get("protocol"))
    application = application_of(table, str(path))
    task: Table = table.pop(TASK)
    del task[KIND]
    _check_keys(path, application, table, task)
    if seed is not None:
        table["seed"] = seed
    return application.read(RunRequest(path, table | task, device, progress))


def _check_keys(path: Path, application: Application[Any], top: Table, task: Table) -> None:
    """Reject keys that are unknown, derived from the rest, or not in their place.

    Raises:
        UserError: there is such a key.
    """
    own, shared = application.own_keys, application.keys & SHARED
    for name in [*top, *task]:
        if name in application.follows:
            raise UserError(f"{path}: {name}: not allowed; it follows from the rest")
    for name in top:
        if name in own:
            raise UserError(f"{path}: {name}: not allowed here; allowed: in [{TASK}]")
        if name not in shared:
            raise name_error(f"{path}: key", name, shared | {TASK, IMPORT})
    for name in task:
        if name in shared:
            raise UserError(f"{path}: {TASK}.{name}: not allowed here; allowed: above [{TASK}]")
        if name not in own:
            raise name_error(f"{path}: key in {TASK}", name, own)


def _import(path: Path, names: object) -> None:
    """Import the modules that the file names, and installed plugins."""
    # Classes are found as subclasses, so their modules have to be imported before the look-up.
    if not isinstance(names, list):
        raise UserError(f"{path}: {IMPORT}: {names!r} is not allowed; allowed: a list of modules")
    import_modules(cast(list[object], names), f"{path}: {IMPORT}", path.parent)
    for group in ("algorithms", "protocols"):
        load_plugins(group)


def _import_protocol(path: Path, table: object) -> None:
    """Import the protocol that a table names, so that its class is found.

    Raises:
        UserError: an unknown protocol.
    """
    named = cast(Table, table).get(KIND) if isinstance(table, dict) else None
    if isinstance(named, str):
        try:
            load_protocol(named)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
