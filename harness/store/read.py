"""A run as a reader sees it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from harness.errors import UserError
from harness.identity import SHORT
from harness.store import schema
from harness.store.columns import Columns, columns_of, read_columns
from harness.store.schema import Status

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One run of the store; its metrics are read from disk when first asked for.

    Attributes:
        hash: identity of the configuration.
        config: the full configuration.
        status: ``done``, ``diverged``, ``failed``, or ``unfinished``.
        summary: name to value; NaN where the value was not finite.
        note: one sentence, often empty.
        dir: the run's folder.
    """

    hash: str
    config: dict[str, Any]
    status: Status
    summary: dict[str, Any]
    note: str
    dir: Path

    @cached_property
    def metrics(self) -> Columns:
        """Columns ``name``, ``value``, ``fold``, ``time_s``, ``epoch`` and any further ones."""
        path = self.dir / schema.METRICS
        if self.status == "unfinished" or not path.exists():
            return columns_of([])
        return read_columns(path)

    def curve(self, name: str) -> tuple[Floats, Floats, Floats]:
        """Epoch, value and virtual time (s) of one metric, in the order of logging.

        Raises:
            KeyError: nothing was logged under this name; the message lists what was.
        """
        columns = self.metrics
        here = columns["name"] == name
        if not here.any():
            names = ", ".join(sorted(set(columns["name"].tolist()))) or "nothing"
            raise KeyError(f"run {self.hash[:12]}: no metric {name!r}; it has {names}")
        return columns["epoch"][here], columns["value"][here], columns["time_s"][here]

    def path(self, name: str) -> Path:
        """The path of an attached file.

        Raises:
            FileNotFoundError: the run has no such file.
        """
        path = self.dir / name
        if not path.is_file():
            raise FileNotFoundError(f"run {self.hash[:12]}: no file {name!r}")
        return path

    def ending(self, name: str = "run") -> str:
        """What became of the run, in one line: who, how it ended, and why if it says so.

        Args:
            name: what to call it.
        """
        why = "" if not self.note else f"{' ' if self.note.startswith('in ') else ': '}{self.note}"
        return f"{name} ({self.hash[:SHORT]}) {self.status}{why}"

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """When, where and for how long; empty for an unfinished run."""
        path = self.dir / schema.PROVENANCE
        return read_json(path) if path.exists() else {}


def read_run(folder: Path) -> Run:
    """Read the run in ``folder``, finished or not.

    Raises:
        UserError: a file of the run is damaged.
    """
    if not (folder / schema.RUN).exists():
        config = read_json(folder / schema.CONFIG)
        return Run(folder.name, config, "unfinished", {}, "", folder)
    record = read_json(folder / schema.RUN)
    try:
        return Run(
            hash=record["hash"],
            config=record["config"],
            status=record["status"],
            summary=schema.nan_for_none(record["summary"]),
            note=record["note"],
            dir=folder,
        )
    except KeyError as error:
        raise UserError(f"{folder / schema.RUN}: key {error} is missing") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        UserError: the file cannot be read or does not hold an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds no JSON object")
    return cast(dict[str, Any], value)
