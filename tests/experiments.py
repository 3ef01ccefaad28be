"""Experiments from the fields of experiment and task together."""

from dataclasses import fields
from typing import Any

from harness.experiment.experiment import Experiment, Task


def experiment(kind: type[Task], **choices: Any) -> Experiment[Any]:
    """An experiment of this class of task."""
    names = {entry.name for entry in fields(kind)}
    own = {name: choices.pop(name) for name in names & choices.keys()}
    return Experiment(task=kind(**own), **choices)
