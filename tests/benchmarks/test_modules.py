"""What training anybody's module costs beyond a plain loop, and replicas at once beyond one by one.

The plain loop is what a person writes: rows, forward, backward, a step of `torch.optim.SGD`. The
harness does the same steps for one worker without staleness, timeline and reads included; a
measurement is short and both take turns, so that they see the same load of the machine.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from statistics import median

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.schedules import Constant
from harness.modules.network import ModuleNetwork, flat, trainable_parameters
from harness.modules.problem import Arrays, Problem
from harness.modules.task import ModuleConfig, ModuleTask
from harness.runs.config import Stage
from harness.simulator import Cluster, Device, WorkerGroup, Workload
from harness.training.executors import SimulationExecutor
from tests.modules import KINDS, Transformer, rows, symbols_loss

CLUSTER = Cluster("one", {"card": Device(launch_s=0.01)}, (WorkerGroup(1, "card"),))
FOLDS, ROUNDS, RATE = 40, 15, 1e-3
EXAMPLES, TURNS = 32, 5
"""Of a replica's minibatch; and how often replicas at once and one by one are measured."""


def perceptron() -> nn.Module:
    """Steps of about a millisecond with 128 examples."""
    inner = nn.Linear(128, 128), nn.ReLU()
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), *inner, nn.Linear(128, 10))


def convolutions() -> nn.Module:
    """Steps of about a millisecond with 32 images of 8 x 8."""
    one = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    two = nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*one, *two, nn.Flatten(), nn.Linear(64, 10))


def pictures() -> nn.Module:
    """Two convolutions on images of 28 x 28."""
    one = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    two = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*one, *two, nn.Flatten(), nn.Linear(32 * 49, 10))


def classified(*shape: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    """Noise of a shape, and one of ten classes."""
    return lambda count: (torch.randn(count, *shape), torch.randint(10, (count,)))


SIZES = {
    **{f"tiny {kind}": parts for kind, parts in KINDS.items()},
    "perceptron": (perceptron, cross_entropy, classified(64)),
    "convolutions": (convolutions, cross_entropy, classified(1, 8, 8)),
    "pictures": (pictures, cross_entropy, classified(1, 28, 28)),
    "transformer": (lambda: Transformer(width=64, length=64), symbols_loss,
                    lambda count: rows(count, 64)),
}  # fmt: skip
CASES = {
    "perceptron": (perceptron, (64,), 128),
    "small-perceptron": (perceptron, (64,), 32),
    "convolutions": (convolutions, (1, 8, 8), 32),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def configured(kind: str, folds: int) -> ModuleConfig:
    made, shape, size = CASES[kind]
    draw, count = torch.Generator().manual_seed(1), (folds + 1) * size
    x, y = torch.randn(count, *shape, generator=draw), torch.randint(10, (count,), generator=draw)
    problem = Problem(made(), cross_entropy, Arrays(x, y), Arrays(x[:8], y[:8]), None, {})
    return ModuleConfig(
        algorithm=AsyncSgd(),
        schedule=Constant(RATE),
        stages=(Stage(size, size),),
        passes=1,
        chunk=1.0,
        evaluations=1,
        cluster=CLUSTER,
        workers=1,
        seed=0,
        device="cpu",
        problem=problem,
        work=Workload(size, 0.0, 0.0),
    )


def by_the_harness(config: ModuleConfig, folds: int) -> Callable[[], torch.Tensor]:
    """So many folds of a run, from its start; what is built once is not timed."""
    task = ModuleTask(config)
    executor = SimulationExecutor(config, config.problem, task.initial().clone(), task.minibatches)

    def work() -> torch.Tensor:
        executor.advance(folds, drain=False, handing_out=None, rate=RATE)
        return executor.server.model

    return work


def by_hand(config: ModuleConfig, folds: int) -> Callable[[], torch.Tensor]:
    problem = config.problem
    model, train = copy.deepcopy(problem.module(0)), problem.train
    optimizer, order = torch.optim.SGD(model.parameters(), RATE), config.order(0, train)

    def work() -> torch.Tensor:
        for step in range(folds):
            rows = torch.as_tensor(order.rows_of([(0, step)])[0])
            optimizer.zero_grad()
            problem.loss(model(train.x[rows]), train.y[rows]).backward()
            optimizer.step()
        return flat(list(model.parameters()))

    return work


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.parametrize("kind", CASES)
def test_a_module_over_a_plain_loop(kind, benchmark):
    folds, rounds = (FOLDS, ROUNDS) if benchmark.enabled else (2, 1)
    config = configured(kind, folds)
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        ours, theirs = by_the_harness(config, folds), by_hand(config, folds)
        pairs.append((seconds(ours), seconds(theirs)))
    benchmark.extra_info["processor_ratio"] = median(a / b for a, b in pairs)
    benchmark.extra_info["least_ratio"] = min(a for a, _ in pairs) / min(b for _, b in pairs)
    benchmark.extra_info["step_ms"] = 1e3 * min(b for _, b in pairs) / folds
    benchmark.pedantic(by_the_harness(config, folds), rounds=1)
    assert torch.equal(by_the_harness(config, folds)(), by_hand(config, folds)())


@pytest.mark.parametrize("replicas", [4, 50])
@pytest.mark.parametrize("size", SIZES)
def test_replicas_at_once_over_one_by_one(size, replicas, benchmark):
    made, loss, data = SIZES[size]
    count = replicas if benchmark.enabled else 2
    module, (x, y) = made(), data(EXAMPLES * count)
    stack = flat(list(trainable_parameters(module).values())).repeat(count, 1)
    xs, ys = (part.view(count, 1, EXAMPLES, *part.shape[1:]) for part in (x, y))
    alone, both = torch.empty_like(stack), torch.empty_like(stack)
    one, all_ = ModuleNetwork(module, loss), ModuleNetwork(module, loss, together=1)

    def apart() -> None:
        one.gradient(stack, xs, ys, alone)

    def at_once() -> None:
        all_.gradient(stack, xs, ys, both)

    with torch.no_grad():
        rounds = TURNS if benchmark.enabled else 1
        for work in (apart, at_once):
            work()
        pairs = [(seconds(at_once), seconds(apart)) for _ in range(rounds)]
        benchmark.extra_info["processor_ratio"] = median(a / b for a, b in pairs)
        benchmark.pedantic(at_once, rounds=1)
    torch.testing.assert_close(both, alone, rtol=1e-3, atol=1e-5)
