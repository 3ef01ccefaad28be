"""Experiments from the fields of experiment and task together."""

from dataclasses import fields
from typing import Any

from harness.experiment.experiment import Experiment, Task


def experiment(kind: type[Task], **choices: Any) -> Experiment[Any]:
    """An experiment of this class of task."""
    names = {entry.name for entry in fields(kind)}
    own = {name: value for name, value in choices.items() if name in names}
    rest = {name: value for name, value in choices.items() if name not in names}
    return Experiment(task=kind(**own), **rest)
