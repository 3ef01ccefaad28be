"""Where a run diverged, in words."""

import math

import pytest
import torch
from torch import nn

from harness.algorithms.catalogue import AsyncDescent
from harness.algorithms.schedules import Constant
from harness.experiment.loop import Moment, describe_divergence
from harness.experiment.run import run as execute
from harness.modules.parts import Arrays, ModuleParts
from harness.store import Store
from tests.harness.experiment.test_unbroken import configured
from tests.silence import silent

AT = Moment(6695, 0.41, 315.86)


def row(value: float, fold: int) -> dict[str, object]:
    return {"name": "held_out_criterion", "value": value, "fold": fold, "time_s": 0.0, "epoch": 0.0}


def test_the_last_criterion_that_was_a_number_is_told_if_there_is_one():
    rows = [row(-0.059, 0), row(-1.926, 6600), row(math.nan, 6695)]
    assert describe_divergence("MMI", AT, rows, "held_out_criterion", 0.0012) == (
        "in MMI at fold 6,695 (pass 0.41, 315.9 s): criterion -1.93 at fold 6,600, rate 0.0012"
    )
    told = describe_divergence("AsyncSgd", AT, rows[2:], "held_out_criterion", 0.1)
    assert told.endswith("criterion never a number, rate 0.1")


class Line(nn.Module):
    """Its loss is its parameter; the sign is reversed in training, so descent raises it."""

    def __init__(self, begin: float):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([begin]))

    def forward(self, x):
        return self.weight - 2.0 * (self.weight * x.sign()) * self.training


@pytest.mark.parametrize(
    ("begin", "rise", "status"),
    [
        (0.0, 90.0, "done"),
        (0.0, 200.0, "diverged"),
        (-5.0, 400.0, "done"),
        (-5.0, 600.0, "diverged"),
    ],
)
def test_a_loss_far_above_that_at_the_start_is_a_divergence(begin, rise, status, tmp_path):
    config = configured(100, 1, 10, 1, AsyncDescent())
    x = torch.ones(100, 1)
    module, data = Line(begin), Arrays(x, x)
    loss = lambda outputs, targets: (outputs + 0.0 * targets).mean()  # noqa: E731
    problem = ModuleParts(module, loss, data, Arrays(x[:4], x[:4]), None, {})
    config = config.vary(problem=problem, schedule=Constant(rise / 10))
    run = execute(config, Store(tmp_path), silent)
    assert run.status == status
