"""Optimizers of torch, a state for each worker, against torch's own loop."""

import json

import pytest
import torch
from torch import nn

from harness.algorithms.contract import concat_rows, rows_of
from harness.algorithms.torch_optimizers import LINEAR, Group, Grouped, TorchOptimizer
from harness.base.errors import UserError

FURTHER = {
    "Adam": [{"amsgrad": True}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RMSprop": [{"centered": True, "momentum": 0.9, "alpha": 0.9}],
    "SGD": [{"momentum": 0.9, "dampening": 0.2}],
    "NAdam": [{"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "Adagrad": [{"initial_accumulator_value": 0.5, "lr_decay": 0.1}],
}
CASES = [
    (name, settings)
    for name in LINEAR
    for settings in ({}, {"weight_decay": 0.1}, *FURTHER.get(name, []))
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_every_worker_has_the_parameters_of_torch_at_changing_rates(name, settings):
    generator = torch.Generator().manual_seed(0)
    stack = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    optimizer = TorchOptimizer(name, json.dumps(settings))
    state = optimizer.start(stack)
    rows = [nn.Parameter(row.clone()) for row in stack]
    theirs = [getattr(torch.optim, name)([row], lr=0.1, **settings) for row in rows]
    for step in range(6):
        slopes = torch.randn(3, 7, generator=generator, dtype=torch.float64)
        rate = 0.1 / (1 + step)
        some = slice(0, 3) if step != 2 else slice(1, 3)  # the first worker takes a step less
        for row, slope, each in zip(rows[some], slopes[some], theirs[some], strict=True):
            row.grad, each.param_groups[0]["lr"] = slope.clone(), rate
            each.step()
        own, direction = rows_of(state, some), slopes[some].clone()
        optimizer.direct_(direction, stack[some], own, None)
        state = concat_rows([rows_of(state, slice(0, some.start)), own])
        stack[some] -= rate * direction
    assert torch.allclose(torch.stack([row.data for row in rows]), stack, rtol=1e-12, atol=1e-12)


def test_a_setting_that_torch_has_not_is_one_line():
    with pytest.raises(UserError, match=r"optimizer: .*torch.optim.Adam: .*unexpected keyword"):
        TorchOptimizer("Adam", '{"beta": 0.9}')
    with pytest.raises(UserError, match="unknown 'LBFGS'"):
        TorchOptimizer("LBFGS")


def test_groups_that_are_not_of_the_model_are_refused():
    group = Group(TorchOptimizer())
    with pytest.raises(UserError, match=r"members: \[0, 1\]; allowed: one number from 0 to 0 for"):
        Grouped((group,), (4, 2), (0, 1))
    with pytest.raises(UserError, match=r"sizes: .4, 2.; allowed: tensors of 7 elements"):
        Grouped((group,), (4, 2), (0, 0)).start(torch.zeros(3, 7))
