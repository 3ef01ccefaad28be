"""Bundled cluster and run files by name, and versions of installed packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from harness.base.errors import UserError, name_error
from harness.base.registry import entries
from harness.base.settings import load_toml

Kind = Literal["cluster", "run"]

DEFAULT_STORE = "lagbench-runs"
"""Folder in which `lagbench train` and a user's program keep runs, where one stands."""

COMMAND: dict[Kind, str] = {"cluster": "simulate", "run": "train"}


@cache
def find_bundled(kind: Kind) -> Mapping[str, Path]:
    """The bundled files of a kind, by name without ``.toml``; lagbench's own win over plugins'."""
    folders = [
        entry.folder for entry in entries("clusters" if kind == "cluster" else "runs").values()
    ]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def describe_choices(kind: Kind) -> str:
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


def _file(kind: Kind, reference: str | Path, folder: Path) -> Path:
    name, path = str(reference), Path(reference)
    # A bundled name wins over a file of that name, so that it means the same in every folder.
    if name in find_bundled(kind):
        return find_bundled(kind)[name]
    if path.suffix or len(path.parts) > 1 or os.path.exists(folder / path):  # noqa: PTH110 (a name too long is no file)
        return folder / path
    twin: Kind = "run" if kind == "cluster" else "cluster"
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
