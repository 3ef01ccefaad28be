"""Bundled cluster and run files by name, and versions of installed packages.

Files that come along, by name: clusters to simulate and runs to train. Which version of a package
is installed.
"""

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

__all__ = [
    "Kind",
    "cluster_file",
    "describe_choices",
    "find_bundled",
    "find_version",
    "run_file",
    "version_of",
]

Kind = Literal["cluster", "run"]

COMMAND: dict[Kind, str] = {"cluster": "simulate", "run": "train"}


@cache
def find_bundled(kind: Kind) -> Mapping[str, Path]:
    """The files of a kind that come along, by name; of equal names ours counts."""
    folders = [
        entry.folder for entry in entries("clusters" if kind == "cluster" else "runs").values()
    ]
    return {path.stem: path for each in folders for path in sorted(each.glob("*.toml"))}


def describe_choices(kind: Kind) -> str:
    """What an option for such a file takes, for ``--help``."""
    return f"a TOML file, or one that comes along: {', '.join(find_bundled(kind))}"


def cluster_file(asked: str | Path, folder: Path = Path()) -> Path:
    """The cluster file that is asked for by its name or path.

    Args:
        asked: of one that comes along the name, of others the path.
        folder: what paths are relative to.

    Raises:
        UserError: a name that none has; whether a path can be read is seen when it is.
    """
    return _file("cluster", asked, folder)


def run_file(asked: str | Path) -> Path:
    """The run file that is asked for by its name or path, if it is one.

    Raises:
        UserError: as `cluster_file`, it cannot be read, or holds a cluster.
    """
    path = _file("run", asked, Path())
    table = load_toml(path)
    if "cluster" not in table and isinstance(table.get("workers"), list):
        told = f"lagbench simulate {path}, or a run file in which cluster = {str(path)!r}"
        raise UserError(f"{path}: a cluster file and no run file; allowed: {told}")
    return path


def _file(kind: Kind, asked: str | Path, folder: Path) -> Path:
    name, path = str(asked), Path(asked)
    if name in find_bundled(kind):
        return find_bundled(kind)[name]
    if path.suffix or len(path.parts) > 1 or os.path.exists(folder / path):  # noqa: PTH110 (a name too long is no file)
        return folder / path
    other: Kind = "run" if kind == "cluster" else "cluster"
    if name in find_bundled(other):
        raise UserError(f"{kind}: {name!r} is a {other}; allowed: lagbench {COMMAND[other]} {name}")
    raise UserError(f"{name_error(kind, name, find_bundled(kind))}; or a TOML file")


@cache
def find_version(package: str) -> str | None:
    """Its version; None where it is not installed.

    Args:
        package: name of the distribution.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def version_of(package: str) -> str:
    """Its version, or that there is none: a checkout need not be installed, nor all packages be.

    Args:
        package: name of the distribution.
    """
    return find_version(package) or "not installed"
