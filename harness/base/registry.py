"""Registry of what is looked up by name: tasks, protocols, corpora, papers, cluster and run files.

An entry is a name and a value ``module:object``, imported on first use. lagbench's own entries are
in ``harness/registry.toml``, those of installed packages in their entry points ``lagbench.KIND``. A
file may name further modules (``import = ["my_module"]``); their classes are found as subclasses of
their base classes.

lagbench's own entries are no entry points, because a checkout need not be installed; no program
registers them, because worker processes have to find the same names by themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from harness.base.errors import RAISED, UserError, describe_raised, meant, name_error
from harness.base.settings import load_toml

Kind = Literal["tasks", "algorithms", "protocols", "corpora", "papers", "plans", "clusters", "runs"]

Bundled = Literal["cluster", "run"]

COMMAND: dict[Bundled, str] = {"cluster": "simulate", "run": "train"}

OWN = Path(__file__).parents[1] / "registry.toml"


@dataclass(frozen=True)
class Entry:
    """One registered name of a kind.

    Attributes:
        name: the name that is looked up.
        value: ``module:object``; ``package:folder`` for clusters and runs.
        ours: whether it is lagbench's own.
    """

    name: str
    value: str
    ours: bool

    def load(self) -> Any:
        """Import the entry's module and return its object.

        Raises:
            UserError: a plugin's module cannot be imported, or has no such object.
        """
        module, _, path = self.value.partition(":")
        try:
            return _attribute(import_module(module), path)
        except RAISED as error:  # an import may raise anything
            if self.ours:
                raise
            mistake = f"plugin {self.name} ({self.value}): {describe_raised(error)}"
            raise UserError(mistake) from error

    @property
    def folder(self) -> Path:
        """The folder that an entry of clusters or runs names, inside its package."""
        package, _, folder = self.value.partition(":")
        return Path(str(files(package))) / folder


def _attribute(module: object, path: str) -> Any:
    """The object of a module at a path with dots; the module itself at an empty one."""
    return attrgetter(path)(module) if path else module


@cache
def entries(kind: Kind) -> Mapping[str, Entry]:
    """Every entry of a kind by name; lagbench's own win over a plugin's of the same name."""
    ours = {name: Entry(name, str(value), True) for name, value in _own().get(kind, {}).items()}
    installed = entry_points(group=f"lagbench.{kind}")
    return {p.name: Entry(p.name, p.value, False) for p in installed} | ours if installed else ours


def find_own(kind: Kind, name: str) -> Entry | None:
    """Our own entry with this name, or with an object of this name; None without one."""
    for entry in entries(kind).values():
        if entry.ours and name in (entry.name, entry.value.rpartition(":")[2]):
            return entry
    return None


@cache
def _own() -> dict[str, dict[str, Any]]:
    return load_toml(OWN)


def load(kind: Kind, name: str) -> Any:
    """The object of a name.

    Raises:
        UserError: no entry has the name, or the entry's module cannot be imported.
    """
    names = entries(kind)
    if name not in names:
        raise name_error(kind, name, names)
    return names[name].load()


@cache
def load_plugins(kind: Kind) -> dict[str, Any]:
    """The objects of installed packages by name; loading them makes their classes known.

    Raises:
        UserError: one of them cannot be imported.
    """
    return {name: entry.load() for name, entry in entries(kind).items() if not entry.ours}


def forget() -> None:
    """Clear the caches, so that a package installed while the process runs is found."""
    entries.cache_clear()
    load_plugins.cache_clear()


def import_modules(names: Iterable[object], where: str, folder: Path) -> None:
    """Import the modules that a file names, from its folder or from installed packages.

    Args:
        names: names of modules.
        where: the file and key, for messages.
        folder: the file's folder, appended to ``sys.path``.

    Raises:
        UserError: a value that is not a string, or a module that cannot be imported.
    """
    if str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"{where}: {name!r} is not allowed; allowed: names of modules")
        try:
            import_module(name)
        except RAISED as error:  # an import may raise anything
            mistake = f"{name!r} cannot be imported ({describe_raised(error)})"
            raise UserError(f"{where}: {mistake}") from error


OBJECT = "a name as 'my_module:make_model', of a module beside the file or installed"
"""Allowed values of a key that names an object."""


def find_object(name: str, where: str, folder: Path) -> Any:
    """Import the object of a name ``my_module:name``, from a folder or from installed packages.

    Args:
        name: module and name of the object, which may have dots.
        where: the file and key, for messages.
        folder: the file's folder, appended to ``sys.path``.

    Raises:
        UserError: it cannot be imported, or its module has no such name.
    """
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise UserError(f"{where}: {name!r} is not allowed; allowed: {OBJECT}")
    import_modules([module], where, folder)
    try:
        return _attribute(import_module(module), path)
    except AttributeError as error:
        mistake = f"{name!r}: {module} has no {path!r}; allowed: {OBJECT}"
        raise UserError(f"{where}: {mistake}") from error


# -- names of algorithms, known without torch ---------------------------------------------------


SHORT_NAMES = (
    *("async", "averaged", "sync", "averaging"),
    *("block-momentum", "diloco", "backup-workers"),
)
"""Short names, in the order of `methods.NAMES`."""

ALIASES = {
    "asgd": "async",
    "backup": "backup-workers",
    "bmuf": "block-momentum",
    "bsp": "sync",
    "dcasgd": "DelayCompensated",
    "ddp": "sync",
    "downpour": "async",
    "easgd": "Easgd",
    "fedavg": "averaging",
    "fedbuff": "FedBuff",
    "hogwild": "async",
    "localsgd": "averaging",
}
"""Names of the field, without hyphens and in small letters, and what they are called here."""


def resolve_algorithm(called: str) -> str:
    """What a name of the field is called here."""
    plain = called.lower().replace("-", "").replace("_", "")
    if called in SHORT_NAMES:
        return called
    return ALIASES.get(plain) or meant(called, SHORT_NAMES) or called


def names_algorithm(name: str) -> bool:
    """Whether a name, with or without a number after a colon, is one of these."""
    return resolve_algorithm(name.partition(":")[0]) in {*SHORT_NAMES, *ALIASES.values()}


# -- files of clusters and runs, and versions ----------------------------------------------------


@cache
def find_bundled(kind: Bundled) -> Mapping[str, Path]:
    """The bundled files of a kind, by name without ``.toml``; lagbench's own win over plugins'."""
    folders = [
        entry.folder for entry in entries("clusters" if kind == "cluster" else "runs").values()
    ]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def describe_choices(kind: Bundled) -> str:
    """The values that an option for such a file accepts, for ``--help``."""
    return f"a TOML file, or a bundled one: {', '.join(find_bundled(kind))}"


def cluster_file(reference: str | Path, folder: Path = Path()) -> Path:
    """The path of a cluster file.

    Args:
        reference: name of a bundled cluster, or a path.
        folder: base of relative paths.

    Raises:
        UserError: an unknown name. A path is not checked here; reading it is.
    """
    return _file("cluster", reference, folder)


def run_file(reference: str | Path) -> Path:
    """The path of a run file, from a bundled name or a path.

    Raises:
        UserError: an unknown name, a file that cannot be read, or a cluster file.
    """
    path = _file("run", reference, Path())
    table = load_toml(path)
    if "cluster" not in table and isinstance(table.get("workers"), list):
        allowed = f"lagbench simulate {path}, or a run file in which cluster = {str(path)!r}"
        raise UserError(f"{path}: a cluster file and no run file; allowed: {allowed}")
    return path


def _file(kind: Bundled, reference: str | Path, folder: Path) -> Path:
    name, path = str(reference), Path(reference)
    # A bundled name wins over a file of that name, so that it means the same in every folder.
    if name in find_bundled(kind):
        return find_bundled(kind)[name]
    if path.suffix or len(path.parts) > 1 or os.path.exists(folder / path):  # noqa: PTH110 (a name too long is no file)
        return folder / path
    twin: Bundled = "run" if kind == "cluster" else "cluster"
    if name in find_bundled(twin):
        raise UserError(f"{kind}: {name!r} is a {twin}; allowed: lagbench {COMMAND[twin]} {name}")
    raise UserError(f"{name_error(kind, name, find_bundled(kind))}; or a TOML file")


@cache
def version_of(package: str) -> str:
    """The version of a package, or ``"not installed"``.

    Args:
        package: name of the distribution.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
