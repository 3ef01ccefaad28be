"""A run from a TOML file: the user's own cluster, data and algorithm.

The key ``is`` of table ``task`` names the task; keys that the task alone has are in that table or
at the top, where the others stand. A field that may be one of several classes
is a table whose ``is`` names the class. Fields that follow from the rest are omitted. ``cluster``
is the name of a bundled cluster, or a file, relative to the run file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from harness.base.errors import UserError, name_error, rename
from harness.base.registry import (
    cluster_file,
    describe_choices,
    entries,
    find_bundled,
    import_modules,
    load,
    load_plugins,
)
from harness.base.seeds import identity
from harness.base.settings import KIND, build, dataclasses_below, load_toml, name_keys
from harness.experiment.contract import (
    EXECUTED,
    IMPORT,
    TASK,
    RunRequest,
    Table,
)
from harness.experiment.digests import OWN
from harness.experiment.experiment import AnyExperiment, Experiment, complete_protocol
from harness.experiment.task import OwnLoop, Task, split_table
from harness.simulator.cluster import Cluster, load_cluster
from harness.simulator.simulation import load_protocol
from harness.store import Run

Change = tuple[tuple[str, ...], object]
"""The path to a key, and its value: a change of a run file before it is read."""


def _names(*kinds: Any) -> set[str]:
    return {entry.name for kind in kinds for entry in fields(kind)}


SHARED = _names(Experiment) - {TASK, "device"}
"""Keys of a run file that stand at its top; those that a task alone has are in ``[task]``."""


def keys_of(kind: type[Task]) -> set[str]:
    """Every key of the run files of a task."""
    return _names(Experiment, kind, *kind.tables).difference((TASK, *kind.follows))


def key_in_file(key: str) -> str:
    """The dotted name of a configuration's key in a run file."""
    return key if key in SHARED else f"{TASK}.{key}"


def _load_cluster(name: object, path: Path) -> Cluster:
    """The cluster that a run file names; its path is relative to the file.

    Raises:
        UserError: no name or an unknown one, or a mistake in the cluster file.
    """
    if not isinstance(name, str):
        state = "missing" if name is None else f"{name!r} is not a string"
        raise UserError(f"{path}: cluster: {state}; needed: a string")
    with name_keys(f"{path}: "):
        file = cluster_file(name, path.parent)
    return load_cluster(file)  # outside: its mistakes are of another file, and name it


def restore(
    run: Run, table: Table, where: str, named: AnyExperiment | None = None
) -> AnyExperiment:
    """The experiment of a stored run, which names no code.

    Args:
        run: the run.
        table: its stored configuration, without `EXECUTED` and `OPTIMIZED`.
        where: the file it is from, for messages.
        named: experiment of the run file that the user names for the run's code.

    Raises:
        UserError: no task has such a name, or the run needs such a run file.
    """
    # Stored side by side: no name is both the experiment's and the task's.
    kind = _find_stored_task(table, where)
    settings, table = split_table(kind, table)
    top = {key: value for key, value in table.items() if key in _names(Experiment)}
    task = kind.restore(run, settings, where, named)
    config: AnyExperiment = cast(Any, build(Experiment, top | {TASK: task}, where))
    # The code that was run may have changed since, and the run's hash is all that tells.
    execution = {EXECUTED: run.config[EXECUTED]} if EXECUTED in run.config else {}
    if identity(config.to_dict() | execution) != run.hash:
        place = "this program" if named is None else "the run file"
        raise UserError(f"{run.dir}: task, data or algorithm are not those of {place}")
    return config


def _task_of(table: Mapping[str, object], place: str) -> type[Task]:
    """The class of the task that a run file names.

    Args:
        table: the parsed file.
        place: the file, for messages.

    Raises:
        UserError: the table or the name is missing, or no task has the name.
    """
    task = table.get(TASK)
    if not isinstance(task, Mapping) or KIND not in task:
        allowed = f"a table with {KIND} = one of {', '.join(entries('tasks'))}"
        raise UserError(f"{place}: {TASK}: missing; needed: {allowed}")
    name = str(cast(Mapping[str, object], task)[KIND])
    imported = {kind.__name__: kind for kind in dataclasses_below(Task)}
    if name in entries("tasks"):
        return load("tasks", name)
    if name in imported:
        return imported[name]
    own = [kind for kind, task in imported.items() if task.__module__.partition(".")[0] not in OWN]
    raise name_error(f"{place}: {TASK}.{KIND}", name, (*entries("tasks"), *own))


def _find_stored_task(table: Mapping[str, object], place: str) -> type[Task]:
    """The class of a stored run's task.

    Raises:
        UserError: no task has such a name.
    """
    # Loads every task, since only a loaded one knows its name there.
    kinds = [*(load("tasks", name) for name in entries("tasks")), *dataclasses_below(Task)]
    tasks = {kind.stored_as or kind.__name__: kind for kind in kinds}
    name = str(table.get(KIND))
    if name not in tasks:
        raise UserError(f"{place}: {KIND}: {name!r} is not allowed; allowed: {', '.join(tasks)}")
    return tasks[name]


def load_folds(path: Path, **options: Any) -> AnyExperiment:
    """Read a run file of a task that trains by folds; see `load_run`.

    Raises:
        UserError: also if it is of another task.
    """
    config = load_run(path, **options)
    if isinstance(config.task, OwnLoop):
        allowed = "allowed: a task that trains by folds, as frames; lagbench train takes all"
        raise UserError(f"{path}: {TASK}.{KIND}: not allowed: {config.kind!r}; {allowed}")
    return config


def load_run(
    path: Path,
    *,
    seed: int | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
    changes: Sequence[Change] = (),
) -> AnyExperiment:
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
    kind = _task_of(table, str(path))
    task: Table = table.pop(TASK)
    del task[KIND]
    table = _merge(path, kind, table, task)
    if seed is not None:
        table["seed"] = seed
    table = {**kind.usual, **table}
    settings = {key: table.pop(key) for key in (keys_of(kind) - SHARED) & table.keys()}
    table["cluster"] = _load_cluster(table.get("cluster"), path)
    opened, derived = kind.read(RunRequest(path, table, device, progress), settings)
    table |= {**derived, TASK: opened, "device": device}
    table = complete_protocol(table, kind, str(path))
    return cast(Any, build(Experiment, table, str(path), named=key_in_file))


def has_table(path: Path, name: str, changes: Sequence[Change]) -> bool:
    """Whether a run file or a change of it has a table of that name."""
    return name in load_toml(path) or any(steps[0] == name for steps, _ in changes)


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
        is_of_task = steps[0] in keys_of(_task_of(table, str(path))) - SHARED
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


def _merge(path: Path, kind: type[Task], top: Table, task: Table) -> Table:
    """All keys together, as no key of a task is one of the others, under their names here.

    Raises:
        UserError: a key is unknown, there twice, or derived from the rest.
    """
    for name in [*top, *task]:
        if name in kind.follows:
            raise UserError(f"{path}: {name}: not allowed; it follows from the rest")
        if name in top and name in task:
            raise UserError(f"{path}: {name}: above [{TASK}] and in it; allowed: once")
    keys = keys_of(kind)
    table, allowed = {**top, **task}, {*keys, IMPORT, RATE, OPTIMIZER}
    if not table.keys() <= allowed:
        table = rename(f"{path}: key", table, allowed)
    if IMPORT in table:  # by another name or in [task]: it was read above, before its classes
        allowed = f"above all tables, and with the name {IMPORT!r}"
        raise UserError(f"{path}: {IMPORT}: in [{TASK}], or by another name; allowed: {allowed}")
    called, optimizer = table.get("algorithm"), table.pop(OPTIMIZER, None)
    if not isinstance(called, str) and optimizer is not None:
        allowed = 'algorithm = "NAME" beside it, or the optimizer as a table of [algorithm]'
        raise UserError(f"{path}: {OPTIMIZER}: {optimizer!r} alone; allowed: {allowed}")
    if isinstance(called, str):
        # All algorithms, for such a name only.
        from harness.experiment.methods import method_of, with_optimizer

        with name_keys(str(path)):
            method = with_optimizer(method_of(called), cast(Any, optimizer))
        table = {"protocol": method.protocol, **table, "algorithm": method.algorithm}
    if RATE in table and RATE not in keys:
        table["schedule"] = {KIND: "Constant", RATE: table.pop(RATE)}
    return table


RATE, OPTIMIZER = "rate", "optimizer"
"""Keys above all tables: a constant learning rate, short for a schedule, and the name of an
optimizer for an algorithm that is a name."""


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
