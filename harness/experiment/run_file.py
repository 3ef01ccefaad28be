"""A run from a TOML file: the user's own cluster, data and algorithm.

The key ``is`` of table ``task`` names the application; the table's further keys are those that the
application alone has. The other keys stand at the top. A field that may be one of several classes
is a table whose ``is`` names the class. Fields that follow from the rest are omitted. ``cluster``
is the name of a bundled cluster, or a file, relative to the run file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from harness.algorithms.catalogue import Algorithm
from harness.base.errors import UserError, name_error
from harness.base.registry import import_modules, load_plugins
from harness.base.settings import KIND, dataclasses_below, load_toml
from harness.experiment.changes import Change, put
from harness.experiment.contract import (
    IMPORT,
    SHARED,
    TASK,
    Application,
    RunRequest,
    TaskConfig,
    application_of,
)
from harness.simulator import Averaging, ParameterServer
from harness.simulator.simulation import load_protocol

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
        put(path, table, change, lambda: application_of(table, str(path)))
    _import(path, table.pop(IMPORT, []))
    _import_protocol(path, table.get("protocol"))
    application = application_of(table, str(path))
    if not issubclass(application.config, spec):
        raise UserError(f"{path}: {TASK}.{KIND}: not allowed; allowed: a task of training")
    task: Table = table.pop(TASK)
    del task[KIND]
    _check_keys(path, application, table, task)
    if seed is not None:
        table["seed"] = seed
    return RunFile(*application.read(RunRequest(path, table | task, device, progress)))


def _check_keys(path: Path, application: Application[Any, Any], top: Table, task: Table) -> None:
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
