"""What machines are trained on before a run begins."""

from typing import Any

import pytest

from harness.acoustics.rbm import Recipe
from harness.algorithms.averaging import ModelAveraging
from harness.algorithms.schedules import Constant
from harness.experiment.experiment import Stage
from harness.simulator.protocols.averaging import Averaging
from harness.speech import task as module
from harness.speech.task import PretrainingConfig, initial_parameters

WHOLE = PretrainingConfig("corpus", "smoke", "sha", (8,), Recipe(), 11, "cpu")


@pytest.fixture
def asked(configure, monkeypatch):
    """What a run asks for, from some of its settings."""
    found: list[PretrainingConfig] = []
    monkeypatch.setattr(module, "pretrain_or_load", lambda config, *_: found.append(config))
    nothing: Any = None

    def ask(**choices: Any) -> PretrainingConfig:
        initial_parameters(
            configure(initial=Recipe(), **choices), nothing, nothing, nothing, nothing
        )
        return found[-1]

    return ask


def test_workers_in_rounds_pretrain_on_what_they_train_on(asked):
    rounds = {
        "algorithm": ModelAveraging(),
        "protocol": Averaging(3),
        "schedule": Constant(0.5),
        "stages": (Stage(4, 64, 0.5),),
    }
    assert asked(**rounds).share == 0.5


def test_asynchronous_workers_pretrain_on_all_of_the_data(asked):
    assert asked(stages=(Stage(4, 64, 0.5),)).share == 1.0
