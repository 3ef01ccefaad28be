"""Words that experiments, tasks and what reads or runs them share: keys, progress, requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

Table = dict[str, Any]

OPTIMIZED = "optimized"
"""Key of a stored configuration, but no field: that the server has the optimizer."""

EXECUTED = "executed"
"""Key of a stored configuration for runs not executed on a simulated cluster, and how instead."""

TASK, IMPORT = "task", "import"
"""Keys of a run file common to all tasks: the task's table, and modules to import."""


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        run: hash of the run.
        done: passes so far.
        passes: largest number of passes.
        measured: name and last value of the judged metric, formatted for the user; empty for a
            run that trains nothing.
        unit: the word for a pass, where a run counts something else, such as updates.
    """

    run: str
    done: float
    passes: float
    measured: str = ""
    unit: str = "passes"


Watch = Callable[[Progress], None]


def ignore(progress: object) -> None:
    """Watch nothing."""
    del progress


Say = Callable[[str], None]
"""Prints one line to the user."""


class Configuration(Protocol):
    """A computation that a store keeps: an experiment, or what executes itself.

    What is no experiment has ``execute(store, watch)``, which gives its run.
    """

    @property
    def effort(self) -> float:
        """Amount of work, to order the runs of a grid; 0 for a run of seconds."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ...


@dataclass(frozen=True)
class RunRequest:
    """A run file, parsed, with the options of the command that reads it.

    Args:
        path: the file.
        table: its keys except those of the task, with the cluster itself in place of its name.
        device: device that executes the run.
        say: receives progress while data are made.
    """

    path: Path
    table: Table
    device: str
    say: Say

    @property
    def place(self) -> str:
        """What precedes the task's keys in messages."""
        return f"{self.path}: {TASK}."


class EvaluationResult(NamedTuple):
    """Measurements of a model on the test sets.

    Attributes:
        measured: values by the name that they are logged under.
        errors: for each test set the errors of each example and the lengths that they are of, both
            ``[examples]``; empty where none are counted.
    """

    measured: Mapping[str, float]
    errors: Mapping[str, tuple[np.ndarray, np.ndarray]] = {}
