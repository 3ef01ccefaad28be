"""A whole call of `lagbench.train` with one worker, beside a plain loop of the same steps."""

import copy
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lagbench
from harness.modules.network import ModuleNetwork, flat, trainable_parameters
from harness.simulator.cluster import Cluster, Device, WorkerGroup
from tests.modules import Transformer, rows, symbols_loss

CLUSTER = Cluster("one", {"card": Device(launch_s=0.01)}, (WorkerGroup(1, "card"),))
MINIBATCH, HELD, RATE = 32, 64, 0.01


def classified(*shape: int):
    """Noise of a shape, and one of ten classes."""
    return lambda size: (torch.randn(size, *shape), torch.randint(10, (size,)))


def perceptron() -> nn.Module:
    """Steps of less than half a millisecond."""
    inner = nn.Linear(64, 64), nn.ReLU()
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), *inner, nn.Linear(64, 10))


def convolutions() -> nn.Module:
    """Steps of some three milliseconds with images of 14 x 14."""
    first = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()
    second = nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


CASES = {
    "perceptron": (perceptron, cross_entropy, classified(20), 2000, 2.2),
    "convolutions": (convolutions, cross_entropy, classified(1, 14, 14), 200, 2.0),
    "transformer": (
        lambda: Transformer(width=32, length=16),
        symbols_loss,
        lambda size: rows(size, 16),
        100,
        2.0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_over_a_plain_loop(case, compare, benchmark, tmp_path):
    module_of, loss, draw, steps, bound = CASES[case]
    steps = steps if benchmark.enabled else 2
    model, (x, y) = module_of(), draw(MINIBATCH * steps + HELD)
    data, held = (x[HELD:], y[HELD:]), (x[:HELD], y[:HELD])
    stores = count()

    def call() -> None:
        result = lagbench.train(
            *(model, loss, data), dev=held, cluster=CLUSTER, rate=RATE, workers=1, seeds=1,
            passes=1, evaluations=1, step_seconds=0.01, store=tmp_path / str(next(stores)),
        )  # fmt: skip
        assert result.runs[0].summary["folds"] == steps

    def loop() -> None:
        module = copy.deepcopy(model)
        optimizer = torch.optim.SGD(module.parameters(), RATE)
        for batch in torch.randperm(len(data[0])).split(MINIBATCH):
            optimizer.zero_grad()
            loss(module(data[0][batch]), data[1][batch]).backward()
            optimizer.step()
        with torch.no_grad():
            loss(module(held[0]), held[1]).item()

    compare(call, loop, at_most=bound, rounds=5)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_replicas_together_over_one_by_one(case, compare):
    module_of, loss, draw, _, _ = CASES[case]
    replicas = 8
    module, (x, y) = module_of(), draw(MINIBATCH * replicas)
    stack = flat(list(trainable_parameters(module).values())).repeat(replicas, 1)
    xs, ys = (part.view(replicas, 1, MINIBATCH, *part.shape[1:]) for part in (x, y))
    alone, both = torch.empty_like(stack), torch.empty_like(stack)
    single, joint = ModuleNetwork(module, loss), ModuleNetwork(module, loss, together=1)
    with torch.no_grad():
        compare(
            lambda: joint.gradient(stack, xs, ys, both),
            lambda: single.gradient(stack, xs, ys, alone),
            at_most=2.0,
        )
    torch.testing.assert_close(both, alone, rtol=1e-3, atol=1e-5)
