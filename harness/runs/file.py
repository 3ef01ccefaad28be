"""A run from a TOML file: the user's own cluster, data and algorithm.

In table ``task``, the key ``is`` names the application; the table's further keys are the
application's. The other keys are the fields of the configuration's class; a field that may be one
of several classes is a table whose ``is`` names the class. Fields that follow from the rest are
omitted. ``cluster`` is the name of a bundled cluster, or a file, relative to the run file. A file
without ``task`` has the application's keys beside the others, and ``is`` may name the
configuration's class; without it, the task is training on frames of speech.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from harness.algorithms.catalogue import Algorithm
from harness.base.errors import UserError
from harness.base.registry import import_modules, load_plugins
from harness.base.settings import KIND, dataclasses_below, load_toml
from harness.runs.changes import Change, put
from harness.simulator import Averaging, ParameterServer
from harness.simulator.simulation import load_protocol
from harness.tasks.contract import (
    IMPORT,
    TASK,
    Application,
    RunRequest,
    TaskConfig,
    application_of,
)

Table = dict[str, Any]

Config = TypeVar("Config", bound=TaskConfig)


@dataclass(frozen=True)
class RunFile(Generic[Config]):
    """A run file that was read: its configuration, and its data."""

    config: Config
    data: Any


def load_application(path: Path) -> Application[Any, Any]:
    """Read a run file's application.

    Raises:
        UserError: the file cannot be read, or names no known application.
    """
    table = load_toml(path)
    _import(path, table.get(IMPORT, []))
    return application_of(table, str(path))


def load_run(
    path: Path,
    spec: type[Config] = TaskConfig,
    *,
    seed: int | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
    changes: Sequence[Change] = (),
) -> RunFile[Config]:
    """Read a run file and load its data.

    Args:
        path: the file.
        spec: required class of its configuration.
        seed: overrides the file's; not that of the run that a sequence training starts from.
        device: device that executes the run.
        progress: receives lines while data are made.
        changes: values that override the file's, each after the path to its key.

    Raises:
        UserError: a mistake in the file, its cluster file or its data.
    """
    table: Table = load_toml(path)
    for change in changes:
        put(path, table, change, partial(_top_keys, path, table))
    imports = _import(path, table.pop(IMPORT, []))
    _import_protocol(path, table.get("protocol"))
    application = application_of(table, str(path))
    if not issubclass(application.config, spec):
        raise UserError(f"{path}: {KIND}: not allowed; allowed: {spec.__name__}")
    if seed is not None:
        table["seed"] = seed
    own = _find_task_keys(application, table)
    asked = RunRequest(path, _flat(path, table), device, progress, imports, own)
    try:
        config, data = application.read(asked)
    except UserError as error:
        if str(error).startswith(f"{path}: "):  # not with another file, such as the cluster's
            raise UserError(asked.place.locate(str(error))) from error
        raise
    return RunFile(config, data)


def _find_task_keys(application: Application[Any, Any], table: Table) -> frozenset[str]:
    """Keys of the table ``task``: those it has, and the application's own that the file omits.

    Empty for a file without the table, which has them at the top.
    """
    task = table.get(TASK)
    if not isinstance(task, dict):
        return frozenset()
    return (application.own_keys | cast(Table, task).keys()) - table.keys()


def _flat(path: Path, table: Table) -> Table:
    """Merge the keys of ``task`` with the others.

    Raises:
        UserError: a key is in both.
    """
    task = table.pop(TASK, {})
    if not isinstance(task, dict):
        raise UserError(f"{path}: {TASK}: {task!r} is not allowed; allowed: a table")
    own = {key: value for key, value in cast(Table, task).items() if key != KIND}
    for key in own:
        if key in table:
            raise UserError(f"{path}: {TASK}.{key}: is set outside of {TASK} too; allowed: once")
    return {**table, **own}


def _top_keys(path: Path, table: Table) -> set[str]:
    """Keys that are allowed at the top of a file."""
    application = application_of(table, str(path))
    keys = {entry.name for entry in fields(application.config)}
    return (keys | application.own_keys | {IMPORT, TASK}) - set(application.follows)


def _import(path: Path, names: object) -> list[str]:
    """Import the modules that the file names, and installed plugins."""
    # Classes are found as subclasses, so their modules have to be imported before the look-up.
    if not isinstance(names, list):
        raise UserError(f"{path}: {IMPORT}: {names!r} is not allowed; allowed: a list of modules")
    import_modules(cast(list[object], names), f"{path}: {IMPORT}", path.parent)
    for group in ("algorithms", "protocols"):
        load_plugins(group)
    return cast(list[str], names)


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


def complete_protocol(table: Table) -> Table:
    """Name the class of the table ``protocol``, by default the protocol of the algorithm."""
    if not isinstance(table.get("protocol"), dict):
        return table
    return {**table, "protocol": {KIND: _usual_protocol(table), **table["protocol"]}}


def _usual_protocol(table: Table) -> str:
    """Class of a table ``protocol`` without ``is``: averaging for algorithms in rounds."""
    algorithm = table.get("algorithm")
    named = cast(Table, algorithm).get(KIND) if isinstance(algorithm, dict) else None
    known: tuple[type[Algorithm], ...] = dataclasses_below(Algorithm)
    rounds = cast(Table, algorithm).get("rounds") if isinstance(algorithm, dict) else None
    one_by_one = rounds is False or any(
        named == kind.__name__ and not (kind.rounds if rounds is None else rounds) for kind in known
    )
    return (ParameterServer if one_by_one else Averaging).__name__
