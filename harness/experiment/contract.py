"""Words that experiments, tasks and what reads or runs them share: keys, progress, requests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from harness.base.errors import UserError
from harness.base.registry import cluster_file
from harness.base.settings import check_device
from harness.simulator import Cluster, load_cluster

Table = dict[str, Any]

OPTIMIZED = "optimized"
"""Key of a stored configuration, but no field: that the server has the optimizer."""

EXECUTED = "executed"
"""Key of a stored configuration for runs not executed on a simulated cluster, and how instead."""

TASK, IMPORT = "task", "import"
"""Keys of a run file common to all tasks: the task's table, and modules to import."""

SHARED = frozenset(
    {
        *("cluster", "workers", "seed", "passes", "evaluations", "shards", "shuffling", "stages"),
        *("algorithm", "schedule", "protocol", "chunk", "tested", "tested_models"),
    }
)
"""Keys of a run file that stand at its top; those that a task alone has are in ``[task]``."""


WITHOUT_LIMIT = 10**9
"""Folds of a simulation that ends by itself."""


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


def resolve(choice: str, name: str = "--device") -> str:
    """The device, ``"cpu"`` or ``"cuda"``, for ``--device auto|cpu|cuda``.

    Args:
        choice: the device.
        name: option or argument, for the message.

    Raises:
        UserError: an unknown choice, or CUDA where PyTorch sees none.
    """
    check_device(choice, name)
    import torch

    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        reason = "cuda asked for, but PyTorch sees no CUDA device"
        raise UserError(f"{name}: {reason}; allowed here: cpu")
    return choice if choice != "auto" else ("cuda" if available else "cpu")


def key_in_file(key: str) -> str:
    """The dotted name of a configuration's key in a run file."""
    return key if key in SHARED else f"{TASK}.{key}"


@contextmanager
def name_keys(place: str) -> Generator[None]:
    """Prefix an error that begins with a key by the place of the key, unless it has one.

    Raises:
        UserError: the error of the block, prefixed.
    """
    try:
        yield
    except UserError as error:
        # What a key names may have been read from another place, and its error then says so.
        file, message = place.partition(": ")[0], str(error)
        raise UserError(message if message.startswith(file) else place + message) from error


@dataclass(frozen=True)
class RunRequest:
    """A run file, parsed, with the options of the command that reads it.

    Args:
        path: the file.
        table: its keys, with those of ``[task]`` merged in.
        device: device that executes the run.
        say: receives progress while data are made.
    """

    path: Path
    table: Table
    device: str
    say: Say

    @property
    def task(self) -> str:
        """What precedes the keys of ``[task]`` in messages."""
        return f"{self.path}: {TASK}."

    def refuse(self, names: Sequence[str]) -> None:
        """Reject keys that are derived from the rest of the file.

        Raises:
            UserError: ``names`` is not empty.
        """
        if names:
            raise UserError(f"{self.path}: {names[0]}: not allowed; it follows from the rest")

    def word(self, key: str) -> str:
        """The value of a key, a string.

        Raises:
            UserError: it is missing or something else.
        """
        value = self.table.get(key)
        if not isinstance(value, str):
            state = "missing" if value is None else f"{value!r} is not a string"
            raise UserError(f"{self.path}: {key_in_file(key)}: {state}; needed: a string")
        return value

    def whole(self, key: str) -> int:
        """The value of a key, a whole number from 0.

        Raises:
            UserError: it is something else.
        """
        value = self.table[key]
        if type(value) is not int or value < 0:  # an int itself: True is one of a subclass
            allowed = f"{value!r} is not allowed; allowed: a whole number from 0"
            raise UserError(f"{self.path}: {key_in_file(key)}: {allowed}")
        return value

    def cluster(self) -> Cluster:
        """Load the cluster that the file names; its path is relative to the run file.

        Raises:
            UserError: an unknown name, or a mistake in the cluster file.
        """
        with name_keys(f"{self.path}: "):
            path = cluster_file(self.word("cluster"), self.path.parent)
        return load_cluster(path)  # outside: its mistakes are of another file, and name it


class EvaluationResult(NamedTuple):
    """Measurements of a model on the test sets.

    Attributes:
        measured: values by the name that they are logged under.
        errors: for each test set the errors of each example and the lengths that they are of, both
            ``[examples]``; empty where none are counted.
    """

    measured: Mapping[str, float]
    errors: Mapping[str, tuple[np.ndarray, np.ndarray]] = {}
