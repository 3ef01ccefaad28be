from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from harness.base.errors import UserError
from harness.modules.inspection import AT_ONCE, inspect_module, is_batchable
from harness.modules.network import flat
from harness.modules.parts import Arrays, ModuleParts
from tests.modules import KINDS, cnn, images

X, Y = torch.randn(5, 4), torch.randint(3, (5,))


class ByValue(nn.Module):
    """Decides by the numbers it sees, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x) * (2.0 if x.sum().item() > 0 else 1.0)


def test_a_perceptron_is_computed_at_once_from_many_replicas_on():
    module = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    found = inspect_module(module, functional.cross_entropy, X, Y)
    assert (found.draws, found.together) == (False, AT_ONCE)
    assert is_batchable(module, functional.cross_entropy, X, Y)


def test_dropout_is_seen_to_draw_and_is_computed_replica_by_replica():
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1))
    found = inspect_module(module, functional.cross_entropy, X, Y)
    assert (found.draws, found.together) == (True, None)
    assert not inspect_module(module.eval(), functional.cross_entropy, X, Y).draws


def test_what_vmap_cannot_follow_is_computed_replica_by_replica():
    assert not is_batchable(ByValue(), functional.cross_entropy, X, Y)
    arrays = Arrays(X, Y)
    problem = ModuleParts(ByValue(), functional.cross_entropy, arrays, arrays, None, {})
    network, row = problem.network(0, 5, "cpu"), flat(list(problem.module(0).parameters()))
    stacks = [row.repeat(count, 1) for count in (AT_ONCE - 1, AT_ONCE)]
    outs = [torch.empty_like(stack) for stack in stacks]
    asked: list[int] = []
    for stack, out in zip(stacks, outs, strict=True):
        x, y = (part.expand(len(stack), 1, *part.shape) for part in (X, Y))
        network.gradient(stack, x, y, out)
        asked.append(len(problem._batchable))
    assert asked == [0, 1]  # as it is known only where enough replicas are computed
    assert torch.equal(outs[1], outs[0][0].expand_as(outs[1]))


def test_convolutions_and_attention_are_computed_replica_by_replica_on_a_processor():
    x, y = images(4)
    assert inspect_module(cnn(), functional.cross_entropy, x, y).together is None
    made, loss, data = KINDS["transformer"]
    x, y = (part[:4] for part in data())
    assert not is_batchable(made(), loss, x, y)


def test_running_statistics_are_named_and_computed_replica_by_replica():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    found = inspect_module(module, functional.cross_entropy, X, Y)
    names = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert (found.draws, found.together, found.changing) == (False, None, names)
    assert module[1].num_batches_tracked == 0
    without = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))
    assert not inspect_module(without, functional.cross_entropy, X, Y).changing
    assert not inspect_module(module.eval(), functional.cross_entropy, X, Y).changing


def each_alone(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (each_alone, r"loss: shape \[5\]; allowed: one number"),
        (lambda outputs, targets: 1.0, "loss: float; allowed: one number"),
        (lambda outputs, targets: torch.tensor(1.0), "does not depend on the model"),
        (lambda outputs, targets: 0 * outputs.sum(), "loss: 0 on 5 examples for each of several"),
        (functional.l1_loss, "loss: fails on a minibatch of 5 examples: RuntimeError"),
    ],
)
def test_a_loss_that_is_none_is_refused_in_one_line(loss, told):
    with pytest.raises(UserError, match=told):
        inspect_module(nn.Linear(4, 3), loss, X, Y)


def test_nothing_is_left_behind():
    module, state = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), torch.get_rng_state()
    before = [parameter.clone() for parameter in module.parameters()]
    inspect_module(module, functional.cross_entropy, X, Y)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, before, module.parameters()))
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        (functional.cross_entropy, "mean"),
        (nn.CrossEntropyLoss(reduction="sum"), "sum"),
        (lambda outputs, targets: outputs.square().sum() + 3.0, "mean"),
        (lambda outputs, targets: 1e9 * (1e-9 - outputs).clamp(min=0).sum(), "sum"),
        (lambda outputs, targets: 1e9 * (1e-9 - outputs).clamp(min=0).mean(), "mean"),
        (lambda outputs, targets: outputs.view(len(X), 3).square().sum(), "mean"),
    ],
    ids=["mean", "sum", "a sum and more", "a sum of 0", "a mean of 0", "of one size alone"],
)
def test_what_a_loss_does_with_examples_is_found_by_giving_each_twice(loss, reduction):
    model = nn.Linear(4, 3)
    nn.init.constant_(model.bias, 9.0)
    assert inspect_module(model, loss, X, Y).reduction == reduction
