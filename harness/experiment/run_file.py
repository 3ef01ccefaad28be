"""A run from a TOML file: the user's own cluster, data and algorithm.

The key ``is`` of table ``task`` names the application; the table's further keys are those that the
application alone has. The other keys stand at the top. A field that may be one of several classes
is a table whose ``is`` names the class. Fields that follow from the rest are omitted. ``cluster``
is the name of a bundled cluster, or a file, relative to the run file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from harness.base.errors import UserError, name_error
from harness.base.files import describe_choices, find_bundled
from harness.base.registry import entries, import_modules, load, load_plugins
from harness.base.seeds import identity
from harness.base.settings import KIND, build, dataclasses_below, load_toml
from harness.experiment.contract import (
    EXECUTED,
    IMPORT,
    SHARED,
    TASK,
    Application,
    RunRequest,
    Say,
    Table,
    TaskConfig,
    Watch,
    key_in_file,
)
from harness.experiment.executors import TimelineExecutor
from harness.experiment.experiment import (
    AnyExperiment,
    Experiment,
    Pieces,
    Task,
    complete_protocol,
    split_table,
)
from harness.experiment.run import MOST_FOLDS, run, time_passes
from harness.simulator import Timeline
from harness.simulator.full_run import Whole
from harness.simulator.simulation import load_protocol
from harness.simulator.timeline_file import load_timeline
from harness.store import Run, Store
from harness.store.schema import TIMELINE

Change = tuple[tuple[str, ...], object]
"""The path to a key, and its value: a change of a run file before it is read."""


def _names(kind: Any) -> set[str]:
    return {entry.name for entry in fields(kind)}


class Folds(Application[AnyExperiment]):
    """The runs of a task that trains by folds; see `Application`.

    Args:
        task: class of the task.
    """

    config = Experiment

    def __init__(self, task: type[Task]) -> None:
        self.task, self.tables = task, (task, *task.tables)
        self.follows = (TASK, *task.follows)

    @property
    def stored_name(self) -> str:
        """See `Application`."""
        return self.task.stored_name()

    def read(self, asked: RunRequest) -> AnyExperiment:
        """See `Application`."""
        request = replace(asked, table={**self.task.usual, **asked.table})
        of_task = self.keys - SHARED
        settings = {key: value for key, value in request.table.items() if key in of_task}
        task, table = self.task.read(request, settings)
        table = complete_protocol(table) | {TASK: task, "device": request.device}
        return cast(Any, build(Experiment, table, str(request.path), named=key_in_file))

    def restore(
        self, run: Run, table: Table, where: str, named: TaskConfig | None = None
    ) -> AnyExperiment:
        """See `Application`."""
        # Stored side by side, as before tasks were parts of experiments: no name is in both.
        settings, table = split_table(self.task, table)
        top = {key: value for key, value in table.items() if key in _names(Experiment)}
        task = self.task.restore(run, settings, where, named)
        config: AnyExperiment = cast(Any, build(Experiment, top | {TASK: task}, where))
        # The code that was run may have changed since, and the run's hash is all that tells.
        execution = {EXECUTED: run.config[EXECUTED]} if EXECUTED in run.config else {}
        if identity(config.to_dict() | execution) != run.hash:
            place = "this program" if named is None else "the run file"
            raise UserError(f"{run.dir}: task, data or algorithm are not those of {place}")
        return config

    def replay(self, config: AnyExperiment, recorded: Run, store: Store, watch: Watch) -> Run:
        """See `Application`."""
        executor = partial(TimelineExecutor, timeline=load_timeline(recorded.path(TIMELINE)))
        return run(config, store, watch, executor, {"by": "a record"})

    def pieces(self, config: AnyExperiment, say: Say) -> Pieces:
        """See `Application`."""
        return config.task.open(config).pieces

    def time(self, config: AnyExperiment, pieces: Any, share: float, most: int) -> Whole:
        """See `Application`; stage by stage, with what searches cost."""
        return time_passes(config, pieces, most)

    def time_again(
        self, config: AnyExperiment, pieces: Any, run: Run, timeline: Timeline
    ) -> Timeline:
        """See `Application`."""
        return time_passes(config, pieces, len(timeline.folds)).timeline

    def sampled(self, config: AnyExperiment) -> tuple[AnyExperiment, int]:
        """See `Application`; a rate search costs time once a chunk, so a whole pass is timed."""
        alone, healthy = config.algorithm.with_workers(1), replace(config.cluster, faults=())
        return replace(config, cluster=healthy, algorithm=alone, workers=1, passes=1), MOST_FOLDS

    def describe(self, config: AnyExperiment, share: float) -> Iterator[tuple[str, str]]:
        """See `Application`."""
        work = config.workload()
        rate = f"{work.flops_per_frame:.6g} operations an example"
        if work.operators:
            rate += f", {work.operators:.6g} operators, {work.moved_bytes:.6g} bytes moved"
        size = f"{work.parameter_bytes:.6g} bytes"
        yield "  time is charged for", f"minibatches of {work.minibatch_frames}, {rate}, {size}"


def _as_application(entry: Any) -> Application[Any]:
    """What the registry has of a name: the class of a task that trains by folds, or another."""
    return Folds(entry) if isinstance(entry, type) else entry


def application_of_config(config: TaskConfig) -> Application[Any]:
    """The application of a configuration."""
    if isinstance(config, Experiment):
        task: Task = cast(AnyExperiment, config).task
        return Folds(type(task))
    return _as_application(load("tasks", config.kind))


def application_of(table: Mapping[str, object], place: str) -> Application[Any]:
    """The application that a run file names in ``[task]``.

    Args:
        table: the parsed file.
        place: the file, for messages.

    Raises:
        UserError: the table or the name is missing, or no application has the name.
    """
    task = table.get(TASK)
    if not isinstance(task, Mapping) or KIND not in task:
        allowed = f"a table with {KIND} = one of {', '.join(entries('tasks'))}"
        raise UserError(f"{place}: {TASK}: missing; needed: {allowed}")
    name = str(cast(Mapping[str, object], task)[KIND])
    imported = {kind.__name__: kind for kind in dataclasses_below(Task)}
    if name in entries("tasks"):
        return _as_application(load("tasks", name))
    if name in imported:
        return Folds(imported[name])
    raise name_error(f"{place}: {TASK}.{KIND}", name, entries("tasks"))


def application_of_run(table: Mapping[str, object], place: str) -> Application[Any]:
    """The application of a stored run, from the name of its configuration.

    Raises:
        UserError: no application has such a name.
    """
    # Loads every application, since only a loaded one knows its configuration's name.
    loaded = [_as_application(load("tasks", name)) for name in entries("tasks")]
    loaded += map(Folds, dataclasses_below(Task))
    applications = {application.stored_name: application for application in loaded}
    name = str(table.get(KIND))
    if name not in applications:
        allowed = f"allowed: {', '.join(applications)}"
        raise UserError(f"{place}: {KIND}: {name!r} is not allowed; {allowed}")
    return applications[name]


def load_folds(path: Path, **options: Any) -> AnyExperiment:
    """Read a run file of a task that trains by folds; see `load_run`.

    Raises:
        UserError: also if it is of another task.
    """
    config = load_run(path, **options)
    if not isinstance(config, Experiment):
        allowed = "allowed: a task that trains by folds, as frames; lagbench train takes all"
        raise UserError(f"{path}: {TASK}.{KIND}: not allowed: {config.kind!r}; {allowed}")
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
    # Before modules are imported, as `import` itself may be changed.
    for change in changes:
        put(path, table, change)
    _import(path, table.pop(IMPORT, []))
    _import_protocol(path, table.get("protocol"))
    application = application_of(table, str(path))
    task: Table = table.pop(TASK)
    del task[KIND]
    _check_keys(path, application, table, task)
    if seed is not None:
        table["seed"] = seed
    return application.read(RunRequest(path, table | task, device, progress))


def put(path: Path, table: Table, change: Change) -> None:
    """Set a key; missing tables are created. Whether the key is allowed is checked later.

    The last part of a key is enough for a key of ``[task]``, and where the file has one such key in
    its tables. A cluster file is looked for where the command is called.

    Args:
        path: the file, for messages.
        table: its content, changed in place.
        change: the key and its value.

    Raises:
        UserError: several tables have the key, a part of it is no table, a cluster file is not
            there.
    """
    steps, value = change
    if len(steps) == 1 and steps[0] not in table and steps[0] not in (TASK, IMPORT, *SHARED):
        is_of_task = steps[0] in application_of(table, str(path)).keys - SHARED
        keys = [f"{TASK}.{steps[0]}"] if is_of_task else list(_find(table, steps[0]))
        if len(keys) > 1:
            allowed = f"one of {', '.join(keys)}"
            raise UserError(f"{path}: {steps[0]} is a key of several tables; allowed: {allowed}")
        steps = tuple(keys[0].split(".")) if keys else steps
    inner: Any = table
    for step in steps[:-1]:
        inner = _only(cast(Table, inner).setdefault(step, {})) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise UserError(f"{path}: {'.'.join(steps)}: no key; allowed: a key of a table")
    settings = cast(Table, inner)
    # Another class begins with its own defaults: the keys of the former one may be unknown to it.
    if steps[-1] == KIND and settings.get(KIND) != value:
        settings.clear()
    settings[steps[-1]] = _locate(value, path) if steps[-1] == "cluster" else value


def _only(value: Any) -> Any:
    """The table of a list that has one; any other value itself."""
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        return cast("list[Any]", value)[0]
    return cast(Any, value)


def _find(table: Table, key: str, before: str = "") -> Iterator[str]:
    """Dotted names of a key in all tables below a table."""
    for name, value in table.items():
        inner = _only(value)
        if isinstance(inner, dict):
            place = f"{before}{name}."
            if key in inner:
                yield place + key
            yield from _find(cast(Table, inner), key, place)


def _locate(cluster: object, path: Path) -> object:
    """A cluster file in the working folder by its whole path; any other value itself.

    Raises:
        UserError: there is no such file, neither there nor beside the run file.
    """
    # A bundled name means the same in every folder, also in one with a file of that name.
    if not isinstance(cluster, str) or cluster in find_bundled("cluster"):
        return cluster
    if Path(cluster).is_file():
        return str(Path(cluster).resolve())
    if Path(cluster).suffix and not (path.parent / cluster).is_file():
        mistake = f"no file {cluster!r} here or beside {path.name}"
        raise UserError(f"{path}: cluster: {mistake}; allowed: {describe_choices('cluster')}")
    return cluster


def _check_keys(path: Path, application: Application[Any], top: Table, task: Table) -> None:
    """Reject keys that are unknown, derived from the rest, or not in their place.

    Raises:
        UserError: there is such a key.
    """
    of_task, shared = application.keys - SHARED, application.keys & SHARED
    for name in [*top, *task]:
        if name in application.follows:
            raise UserError(f"{path}: {name}: not allowed; it follows from the rest")
    for name in top:
        if name in of_task:
            raise UserError(f"{path}: {name}: not allowed here; allowed: in [{TASK}]")
        if name not in shared:
            raise name_error(f"{path}: key", name, shared | {TASK, IMPORT})
    for name in task:
        if name in shared:
            raise UserError(f"{path}: {TASK}.{name}: not allowed here; allowed: above [{TASK}]")
        if name not in of_task:
            raise name_error(f"{path}: key in {TASK}", name, of_task)


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
    name = cast(Table, table).get(KIND) if isinstance(table, dict) else None
    if isinstance(name, str):  # any other value is refused with the rest of the table
        try:
            load_protocol(name)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
