"""Optimizers as torch has them: objects, classes, functions, names."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from harness.algorithms.async_sgd import AsyncDescent, AsyncSgd
from harness.algorithms.averaging import ModelAveraging
from harness.algorithms.descent import PLAIN, Adam, AdamW, Momentum
from harness.algorithms.schedules import Cosine
from harness.algorithms.stale import ServerDescent
from harness.algorithms.torch_optimizers import TorchOptimizer
from harness.base.errors import UserError
from harness.experiment.methods import OPTIMIZERS, method_of, with_optimizer
from harness.modules.call import Call
from harness.modules.settings import OptimizerChoice, optimizer_of
from harness.natural_gradient import NGSGD
from harness.simulator.cluster import Cluster
from harness.simulator.protocols.averaging import Averaging


def some() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2))]


ADAGRAD = optimizer_of(torch.optim.Adagrad(some())).descent
FORMS = [
    (torch.optim.Adagrad(some(), 0.1), 0.1),
    (torch.optim.Adagrad, None),
    (partial(torch.optim.Adagrad, lr=0.2), 0.2),
    (lambda p: torch.optim.Adagrad(p, 0.1), 0.1),
]


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
        (partial(torch.optim.Adam, eps=1e-6), OptimizerChoice(Adam(epsilon=1e-6), None)),
        (torch.optim.Adam(some(), 0.1, weight_decay=0.2), OptimizerChoice(Adam(), 0.1, 0.2)),
        *((form, OptimizerChoice(ADAGRAD, rate)) for form, rate in FORMS),
    ],
)
def test_torch_s_optimizers_are_ours_with_their_settings(asked, expected):
    assert optimizer_of(asked) == expected


def test_an_optimizer_without_one_of_ours_is_torch_s_own():
    found = optimizer_of(torch.optim.Adam(some(), 0.1, weight_decay=0.2, amsgrad=True))
    assert found.rate == 0.1
    assert found.weight_decay == 0.0
    assert isinstance(found.descent, TorchOptimizer)
    assert found.descent.name == "Adam"
    assert '"weight_decay": 0.2' in found.descent.settings


class Own(torch.optim.SGD):
    """An optimizer of the user's own."""


def hooked():
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def scheduled():
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    torch.optim.lr_scheduler.LinearLR(optimizer, 0.01)
    return optimizer


def used(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    (parameter,) = parameters = some()
    optimizer = kind(parameters)
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
        (used(torch.optim.Adam), "has taken steps; allowed: a fresh one"),
        (hooked(), "has hooks on its steps, which would not be called"),
        (scheduled(), "has a scheduler; allowed: schedule="),
        (used(torch.optim.Adagrad), "has taken steps; allowed: a fresh one"),
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


def test_an_optimizer_of_some_of_the_model_s_parameters_is_refused():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    head = torch.optim.SGD(model[1].parameters(), 0.1)
    with pytest.raises(UserError, match=r"^optimizer: lacks the model's '0.weight' and 1 more; "):
        optimizer_of(head, model)
    model[0].requires_grad_(False)
    assert optimizer_of(head, model) == OptimizerChoice(PLAIN, 0.1)


@pytest.mark.parametrize("model", [nn.Linear(2, 3), lambda: nn.Linear(2, 3)])
def test_groups_that_a_function_makes_are_the_module_s(model, tmp_path):
    def make(parameters):
        weight, *others = parameters
        return torch.optim.SGD([{"params": [weight]}, {"params": others, "lr": 0.2}], lr=0.1)

    module = model if isinstance(model, nn.Module) else model()
    data, given = (torch.ones(40, 2), torch.zeros(40, dtype=int)), {"store": tmp_path}
    call = Call(model, cross_entropy, data, Cluster.of(2, step_s=1.0), given | {"optimizer": make})
    expected = optimizer_of(make(module.parameters()), module)
    assert call.settings.optimizer == expected.descent
    assert call.own_rates == [0.1]
    assert [group.factor for group in expected.descent.groups] == [1.0, 2.0]


def test_a_schedule_s_and_an_optimizer_s_rate_are_replaced_by_a_given_one_only(tmp_path):
    given = {"optimizer": torch.optim.SGD(some(), 0.1), "schedule": Cosine(1.0), "store": tmp_path}
    data = torch.ones(40, 2), torch.zeros(40, dtype=int)
    call = Call(nn.Linear(2, 3), cross_entropy, data, Cluster.of(2, step_s=1.0), given)
    assert call.grid(["async"], 2, call.rate_or_own(0.3)).rates == {"async": 0.3}
    for name, ask in ("rate", call.rate_or_own), ("guess", partial(call.grid, ["async"], 2)):
        with pytest.raises(UserError, match=f"1.0; the optimizer's is 0.1; allowed: {name}=, wh"):
            ask(None)
    call.given["guess"] = 0.3
    assert call.grid(["async"], 2, None).rates is None


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
