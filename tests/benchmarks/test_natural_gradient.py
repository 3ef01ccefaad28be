"""What natural gradient costs beyond plain SGD: ratios of steps within one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest
import torch
from torch import nn

from harness.acoustics.dnn import Dnn
from harness.acoustics.stack import Layout, random_parameters
from harness.algorithms.contract import Minibatch
from harness.algorithms.ng_change import PerSample
from harness.algorithms.ng_estimate import FIRST_CALLS, Preconditioner
from harness.algorithms.ng_layer import NaturalGradient
from harness.algorithms.ng_sgd import NGSGD

PERIOD = 4
OPTIONS = NaturalGradient(Preconditioner(30, PERIOD), Preconditioner(60, PERIOD), PerSample(0.1))
WIDE = (440, 512, 512, 512, 1000)
FULL = (440, 2048, 2048, 2048, 2048, 2048, 2048, 8806)
SMALL = (429, 128, 128, 128, 128, 352)
SMOKE = (44, 64, 64, 100)
"""Where benchmarks are off, the same code on a network that takes no time."""

RATE = 1e-6

Step = Callable[[], object]


def steps_of(sizes: tuple[int, ...], frames: int, replicas: int = 1) -> tuple[Step, Step]:
    """A step of SGD and one of natural gradient, on the same stack and minibatch."""
    layout, draw = Layout(sizes), torch.Generator().manual_seed(0)
    net = Dnn(layout)
    stack = random_parameters(layout, draw).repeat(replicas, 1)
    x = torch.randn(replicas, frames, sizes[0], generator=draw)
    minibatch = Minibatch(x, torch.randint(0, sizes[-1], (replicas, frames), generator=draw))
    out, state = torch.empty_like(stack), [OPTIONS.start(sizes, replicas)]

    def sgd() -> None:
        net.gradient(stack, *minibatch, out)
        stack.sub_(out, alpha=RATE)

    def natural() -> None:
        _, state[0] = OPTIONS.direction(net, stack, minibatch, state[0], RATE, out)
        stack.sub_(out, alpha=RATE)

    return sgd, natural


def seconds(step: Step) -> float:
    """Processor time of one period of steps: what other processes do matters less to it."""
    began = time.process_time()
    for _ in range(PERIOD):
        step()
    return time.process_time() - began


def ratio(step: Step, base: Step, rounds: int) -> float:
    """The median over rounds of one's time over the other's, taken in turns."""
    torch.set_num_threads(1)
    base()
    for _ in range(FIRST_CALLS):
        step()
    return median(seconds(step) / seconds(base) for _ in range(rounds))


@pytest.mark.parametrize(
    ("sizes", "frames", "rounds"),
    [
        pytest.param(WIDE, 1024, 9, id="512x3"),
        pytest.param(FULL, 1024, 2, id="2048x6", marks=pytest.mark.large),
    ],
)
def test_natural_gradient_over_sgd(benchmark, sizes, frames, rounds):
    if not benchmark.enabled:
        sizes, frames, rounds = SMOKE, 16, 1
    sgd, natural = steps_of(sizes, frames)
    benchmark.extra_info["ratio"] = found = ratio(natural, sgd, rounds)
    assert found > 0.0
    benchmark.pedantic(natural, rounds=1)


@pytest.mark.parametrize(("sizes", "frames"), [(WIDE, 256), (SMALL, 32)], ids=["512x3", "128x4"])
def test_sixteen_replicas_over_one_alone_a_frame(benchmark, sizes, frames):
    rounds = 5
    if not benchmark.enabled:
        sizes, frames, rounds = SMOKE, 16, 1
    _, alone = steps_of(sizes, frames)
    _, together = steps_of(sizes, frames, replicas=16)
    benchmark.extra_info["ratio"] = found = ratio(together, alone, rounds) / 16.0
    assert found > 0.0
    benchmark.pedantic(together, rounds=1)


def test_optimizer_over_torchs_sgd(benchmark):
    sizes, frames, rounds = (WIDE, 1024, 9) if benchmark.enabled else (SMOKE, 16, 1)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(frames, sizes[0], generator=draw)
    y = torch.randint(0, sizes[-1], (frames,), generator=draw)

    def step_of(optimizer_of: Callable[[nn.Module], torch.optim.Optimizer]) -> Step:
        levels: list[nn.Module] = []
        for m, n in pairwise(sizes):
            levels += [nn.Linear(m, n), nn.Sigmoid()]
        model = nn.Sequential(*levels[:-1])
        optimizer = optimizer_of(model)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    sgd = step_of(lambda model: torch.optim.SGD(model.parameters(), lr=RATE))
    natural = step_of(lambda model: NGSGD(model, lr=RATE, options=OPTIONS))
    benchmark.extra_info["ratio"] = found = ratio(natural, sgd, rounds)
    assert found > 0.0
    benchmark.pedantic(natural, rounds=1)
