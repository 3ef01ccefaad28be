"""Experiments from the fields of experiment and task together."""

from typing import Any

from harness.experiment.experiment import Experiment, Task, split_table


def experiment(kind: type[Task], **choices: Any) -> Experiment[Any]:
    """An experiment of this class of task."""
    settings, further = split_table(kind, choices)
    return Experiment(task=kind(**settings), **further)
