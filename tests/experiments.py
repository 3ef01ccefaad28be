"""Experiments from the fields of experiment and task together."""

from typing import Any

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.schedules import Constant
from harness.experiment.experiment import Experiment
from harness.experiment.task import Task, split_table
from harness.speech.protocol import Sequence
from harness.speech.sequence_task import Sequences


def experiment(kind: type[Task], **choices: Any) -> Experiment[Any]:
    """An experiment of this class of task."""
    settings, further = split_table(kind, choices)
    return Experiment(task=kind(**settings), **further)


def sequence_experiment(rate: float = 0.001, **choices: Any) -> Experiment[Any]:
    """A sequence training from the fields of experiment, task and protocol together."""
    names = {"slots", "decode_cost", "fetch_s", "waiting"} & choices.keys()
    protocol = Sequence(**{name: choices.pop(name) for name in names})
    usual = {"schedule": Constant(rate), "algorithm": AsyncSgd(), "shuffling": "on the fly"}
    return experiment(
        Sequences, **{**usual, "protocol": protocol, "tested": "at the end", **choices}
    )
