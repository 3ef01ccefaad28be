"""Arguments of `import lagbench` that are refused, by the functions that refuse them."""

import pytest
import torch
from torch import nn

from harness.algorithms.catalogue import AsyncSgd, GradientAveraging
from harness.algorithms.descent import PLAIN
from harness.algorithms.schedules import Constant
from harness.base.errors import UserError
from harness.experiment.methods import Method, method_of, several
from harness.modules.call import Call, tell_apart
from harness.modules.network import Parameters
from harness.modules.settings import (
    check_kind,
    check_number,
    check_whole,
    counts_of,
    optimizer_of,
    pair_of,
    rates_of,
)
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.parameter_server import ParameterServer

SPARSE = torch.optim.SparseAdam(nn.Linear(2, 2).parameters(), 0.1)
OPTIMIZER = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
SCHEDULER = torch.optim.lr_scheduler.ExponentialLR


def settings(**given):
    parts = nn.Linear(2, 2), nn.functional.mse_loss, (torch.zeros(4, 2), torch.zeros(4, 2))
    with Call(*parts, "k20m-server", given):
        pass


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: counts_of([0]), "workers: [0]; allowed: whole numbers from 1"),
        (lambda: counts_of([2.0]), "workers: [2.0]; allowed: whole numbers from 1"),
        (lambda: check_whole("folds", "10"), "folds: '10'; allowed: a whole number from 1"),
        (lambda: check_whole("folds", True), "folds: True; allowed: a whole number from 1"),
        (lambda: check_whole("seed", -1, 0), "seed: -1; allowed: a whole number from 0"),
        (lambda: check_number("margin", "x"), "margin: 'x'; allowed: a number"),
        (lambda: check_number("margin", float("nan")), "margin: nan; allowed: a number"),
        (lambda: pair_of("between", (1,)), "between: (1,); allowed: two numbers"),
        (lambda: pair_of("between", "ab"), "between: 'ab'; allowed: two numbers"),
        (lambda: check_kind("run", [0] * 99, str, "a folder"), "run: a list; allowed: a f"),
        (lambda: method_of(3), "algorithm: 3; allowed: a name, an Algorithm"),
        (lambda: method_of(("async",)), "algorithm: ('async',); allowed: a name, an Algorithm"),
        (lambda: Method("a\x07", AsyncSgd(), Averaging(1)), r"label: 'a\x07'; allowed: one line"),
        (lambda: Method("a\nb", AsyncSgd(), Averaging(1)), r"label: 'a\nb'; allowed: one line"),
        (lambda: Method("", AsyncSgd(), Averaging(1)), "label: ''; allowed: one line"),
        (
            lambda: Parameters.from_module(nn.Linear(2, 2).to(torch.float8_e5m2)),
            "model: parameters of torch.float8_e5m2",
        ),
        (lambda: optimizer_of(SPARSE), "optimizer: torch's SparseAdam; allowed: 'sgd', 'mom"),
        (lambda: settings(schedule=SCHEDULER), "schedule: torch's ExponentialLR counts"),
        (
            lambda: settings(schedule=lambda: 1.0),
            "schedule: <lambda>.<locals>.<lambda> raised",
        ),
        (
            lambda: settings(schedule=lambda rate: SCHEDULER(OPTIMIZER, 0.9)),
            "schedule: <lambda>.<locals>.<lambda> gives <torch.optim",
        ),
        (lambda: settings(store=3), "store: 3; allowed: a folder"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_and_what_is_allowed(call, told):
    with pytest.raises(UserError) as refused:
        call()
    assert str(refused.value).startswith(told)
    assert "; allowed: " in str(refused.value)
    assert str(refused.value).isprintable()


def test_what_is_allowed_is_not_refused(tmp_path):
    settings(schedule=Constant(0.5), store=tmp_path, optimizer="adamw")
    assert (counts_of(range(1, 3)), counts_of(4)) == ([1, 2], [4])
    assert several("async") == ["async"]
    assert len(several((AsyncSgd(), Averaging(2)))) == 1
    assert several(("async", AsyncSgd())) == ("async", AsyncSgd())
    assert pair_of("between", [1, 2.5]) == (1, 2.5)
    protocol = Averaging(2)
    assert method_of((AsyncSgd(), protocol)) == Method("AsyncSgd averaging", AsyncSgd(), protocol)
    assert Parameters.from_module(nn.Linear(2, 2).half()).count == 6
    assert Parameters.from_module(nn.Linear(2, 2).bfloat16()).count == 6
    fresh = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    for asked in (fresh, torch.optim.SGD):
        settings(optimizer=asked, store=tmp_path)
        assert optimizer_of(asked).descent == PLAIN
    assert optimizer_of(fresh).rate == 0.1


def test_methods_of_one_name_are_told_apart_and_share_its_rate():
    rows = [(GradientAveraging(), BackupWorkers(backups=count)) for count in (0, 2)]
    rows += [("async", ParameterServer(bound=bound)) for bound in (None, 3)]
    labels = [method.label for method in tell_apart([method_of(row) for row in rows])]
    assert labels[:2] == [f"GradientAveraging backup_workers backups {n}" for n in (0, 2)]
    assert labels[2:] == ["async no bound", "async bound 3"]
    assert [*rates_of({"GradientAveraging": 1, "async": 2}, labels).values()] == [1, 1, 2, 2]
