"""Optimizers as torch has them: objects, classes, functions, names."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from harness.algorithms.async_sgd import AsyncDescent, AsyncSgd
from harness.algorithms.averaging import ModelAveraging
from harness.algorithms.descent import PLAIN, AdamW, Momentum
from harness.algorithms.schedules import Constant
from harness.algorithms.stale import ServerDescent
from harness.algorithms.torch_optimizers import TorchOptimizer
from harness.base.errors import UserError
from harness.modules.network import Parameters
from harness.modules.optimizers import OptimizerChoice, optimizer_of
from harness.natural_gradient import NGSGD
from harness.runs.methods import OPTIMIZERS, method_of, with_optimizer
from harness.simulator import Averaging
from harness.store import Store
from tests.harness.modules.test_modules import configured, final, problem_of
from tests.harness.modules.test_recipes import clipped_loop
from tests.silence import silent


def some() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, OptimizerChoice(None)),
        ("adam", OptimizerChoice("adam")),
        (torch.optim.SGD(some(), 0.1), OptimizerChoice(PLAIN, 0.1)),
        (partial(torch.optim.SGD, lr=0.2, momentum=0.8), OptimizerChoice(Momentum(0.8), 0.2)),
        (
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
            OptimizerChoice(Momentum(0.9, nesterov=True), 0.1, 0.3),
        ),
        (torch.optim.AdamW, OptimizerChoice(AdamW(decay=0.01), None)),
        (
            torch.optim.AdamW(some(), 0.1, (0.8, 0.9), 1e-6),
            OptimizerChoice(AdamW(0.8, 0.9, 1e-6, 0.01), 0.1),
        ),
        (partial(torch.optim.Adam, eps=1e-6), OptimizerChoice(AdamW(epsilon=1e-6), None)),
    ],
)
def test_torch_s_optimizers_are_ours_with_their_settings(asked, expected):
    assert optimizer_of(asked) == expected


def test_an_optimizer_without_one_of_ours_is_torch_s_own():
    found = optimizer_of(torch.optim.Adam(some(), 0.1, weight_decay=0.2))
    assert found.rate == 0.1
    assert found.weight_decay == 0.0
    assert isinstance(found.descent, TorchOptimizer)
    assert found.descent.name == "Adam"
    assert '"weight_decay": 0.2' in found.descent.settings


class Own(torch.optim.SGD):
    """An optimizer of the user's own."""


def used() -> torch.optim.Optimizer:
    (parameter,) = parameters = some()
    optimizer = torch.optim.Adam(parameters)
    parameter.grad = torch.ones(2)
    optimizer.step()
    return optimizer


GROUPS = [{"params": some(), "lr": 0.1}, {"params": some(), "lr": 0.2}]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (torch.optim.LBFGS, "torch's LBFGS; allowed: 'sgd', 'momentum'"),
        (Own(some(), 0.1), "torch's Own; allowed: "),
        (NGSGD, "torch's NGSGD; allowed: 'ngsgd'"),
        (NGSGD(nn.Linear(2, 2), 0.1), "torch's NGSGD; allowed: 'ngsgd'"),
        (
            torch.optim.SGD(GROUPS, 0.1),
            "2 groups of parameters, which are not those of the model; allowed: a module as model",
        ),
        (torch.optim.SGD(some(), 0.1, maximize=True), "maximize=True; allowed: False"),
        (used(), "has taken steps; allowed: a fresh one"),
        (3, "optimizer: 3; allowed: 'sgd'"),
        (lambda parameters: 3, "a function that gives 3"),
        (lambda: 3, "raised TypeError"),
    ],
)
def test_an_optimizer_that_is_not_understood_is_one_line(asked, told):
    with pytest.raises(UserError, match=r"^optimizer: ") as raised:
        optimizer_of(asked)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "made",
    [
        partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
        partial(torch.optim.Adam, lr=0.01, weight_decay=0.1),
        partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1, amsgrad=True),
        partial(torch.optim.RMSprop, lr=0.01),
        partial(torch.optim.NAdam, lr=0.01),
    ],
)
def test_one_worker_with_clipping_is_a_loop_with_torch_s_optimizer(made, tmp_path):
    chosen = optimizer_of(made)
    further = {"schedule": Constant(chosen.rate), "clip": 0.3, "workers": 1, "passes": 1}
    algorithm = ModelAveraging(descent=chosen.descent)
    config = configured(problem_of("perceptron"), algorithm, Averaging(4), **further)
    ours = final(config.execute(Store(tmp_path), silent))
    model = clipped_loop(config, made, clip=0.3)  # trains the module itself
    places = Parameters.from_module(model)
    for name, view in zip(places.names, places.views(ours), strict=True):
        assert torch.allclose(view, model.get_parameter(name).detach(), rtol=1e-4, atol=1e-5), name


def split_groups(model: nn.Module) -> list[dict[str, object]]:
    """Biases, whose tensors lie between the others, without decay and at a tenth of the rate."""
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    return [{"params": others}, {"params": biases, "lr": 0.002, "weight_decay": 0.0}]


@pytest.mark.parametrize(
    "made",
    [
        partial(torch.optim.SGD, lr=0.02, weight_decay=0.3),
        partial(torch.optim.SGD, lr=0.02, weight_decay=0.3, momentum=0.9),
        partial(torch.optim.AdamW, lr=0.02, weight_decay=0.3),
        partial(torch.optim.RMSprop, lr=0.02, weight_decay=0.3),
    ],
)
@pytest.mark.parametrize(
    ("name", "asked"), [("async", {}), ("sync", {"clip": 0.3}), ("averaging:4", {})]
)
def test_groups_of_parameters_are_those_of_a_loop_with_torch_s_optimizer(
    name, asked, made, tmp_path
):
    problem = problem_of("perceptron")
    model = problem.module(0)
    chosen = optimizer_of(made(split_groups(model)), model)
    method = with_optimizer(method_of(name), chosen.descent)
    further = {"schedule": Constant(chosen.rate), "workers": 1, "passes": 1, **asked}
    config = configured(problem, method.algorithm, method.protocol, **further)
    ours = final(config.execute(Store(tmp_path), silent))
    clipped_loop(config, lambda _: made(split_groups(model)), clip=asked.get("clip"))
    places = Parameters.from_module(model)
    for name, view in zip(places.names, places.views(ours), strict=True):
        assert torch.allclose(view, model.get_parameter(name).detach(), rtol=1e-4, atol=1e-5), name


def test_an_optimizer_of_some_of_the_model_s_parameters_is_refused():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    head = torch.optim.SGD(model[1].parameters(), 0.1)
    with pytest.raises(UserError, match=r"^optimizer: lacks the model's '0.weight' and 1 more; "):
        optimizer_of(head, model)
    model[0].requires_grad_(False)
    assert optimizer_of(head, model) == OptimizerChoice(PLAIN, 0.1)


def test_names_of_optimizers_are_given_to_workers_and_to_a_server():
    assert with_optimizer(method_of("async"), "sgd").algorithm == AsyncSgd()
    assert with_optimizer(method_of("averaging:5"), "sgd").algorithm == ModelAveraging()
    assert with_optimizer(method_of("async"), "rmsprop").algorithm == AsyncDescent(
        TorchOptimizer("RMSprop")
    )
    server = with_optimizer(method_of("ServerDescent"), "momentum").algorithm
    assert server == ServerDescent(Momentum())
    with pytest.raises(UserError, match="optimizer: plain SGD in the server of ServerDescent"):
        with_optimizer(method_of("ServerDescent"), "sgd")
    assert {"sgd", "adam", "nesterov"} <= OPTIMIZERS.keys()


@pytest.mark.parametrize(
    ("field", "here"),
    [
        ("localsgd:4", "averaging:4"),
        ("FedAvg:4", "averaging:4"),
        ("Local-SGD:4", "averaging:4"),
        ("ddp", "sync"),
        ("hogwild", "async"),
        ("easgd:3", "Easgd:3"),
        ("bmuf:7", "block-momentum:7"),
        ("diloco", "diloco:500"),
    ],
)
def test_names_of_the_field_are_ours(field, here):
    found, expected = method_of(field), method_of(here)
    assert (found.algorithm, found.protocol) == (expected.algorithm, expected.protocol)
    assert found.label == field


@pytest.mark.parametrize("name", ["averaging", "localsgd", "fedavg", "block-momentum"])
def test_local_steps_that_no_paper_sets_are_asked_for(name):
    told = rf"'{name}' has no number of local steps .*; allowed: with one, e\.g\. '{name}:10'"
    with pytest.raises(UserError, match=told):
        method_of(name)
    assert method_of(name, needs_steps=False).protocol == Averaging(1)
