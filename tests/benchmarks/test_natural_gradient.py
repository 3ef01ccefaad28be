"""What natural gradient costs beyond plain SGD: ratios of steps within one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest
import torch
from torch import nn

from harness.algorithms.descent import descend
from harness.natural_gradient import NGSGD, NaturalGradient, PerSample, Preconditioner
from harness.natural_gradient.estimate import FIRST_CALLS
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters

PERIOD = 4
OPTIONS = NaturalGradient(Preconditioner(30, PERIOD), Preconditioner(60, PERIOD), PerSample(0.1))
OVERNIGHT = NaturalGradient(
    Preconditioner(10, PERIOD, history=500.0), Preconditioner(20, PERIOD, history=500.0),
    PerSample(0.4),
)  # fmt: skip
LIMITED = NaturalGradient(None, None, PerSample(0.4))
WIDE = (440, 512, 512, 512, 1000)
FULL = (440, 2048, 2048, 2048, 2048, 2048, 2048, 8806)
SMALL = (429, 128, 128, 128, 128, 352)
NARROW = (440, 128, 128, 128, 84)
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


def seconds(step: Step, times: int) -> float:
    """Processor time of so many steps: what other processes do matters less to it."""
    began = time.process_time()
    for _ in range(times):
        step()
    return time.process_time() - began


def ratio(step: Step, base: Step, rounds: int, times: int = PERIOD) -> float:
    """The median over rounds of one's time over the other's, taken in turns.

    What is timed once is a period of steps by itself.
    """
    torch.set_num_threads(1)
    for _ in range(FIRST_CALLS if times > 1 else FIRST_CALLS // PERIOD + 1):
        step()
        base()
    return median(seconds(step, times) / seconds(base, times) for _ in range(rounds))


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


def one_after_another(descent, network, stack, minibatches, rate, state):
    """As `descend`, but each layer by itself."""
    room = torch.empty_like(stack)
    for minibatch in minibatches:
        _, state = descent.descend_(network, stack, minibatch, state, rate, room)
    return None, state


def rounds_of(
    sizes: tuple[int, ...], frames: int, replicas: int, descend=descend, options=OPTIONS
) -> Step:
    """One period of steps of so many workers."""
    layout, draw = Layout(sizes), torch.Generator().manual_seed(0)
    stack = random_parameters(layout, draw).repeat(replicas, 1)
    x = torch.randn(PERIOD, replicas, frames, sizes[0], generator=draw)
    targets = torch.randint(0, sizes[-1], (PERIOD, replicas, frames), generator=draw)
    minibatches = [Minibatch(*each) for each in zip(x, targets, strict=True)]
    state = [options.start(sizes, replicas)]

    def step() -> None:
        _, state[0] = descend(options, Dnn(layout), stack, minibatches, RATE, state[0])

    return step


@pytest.mark.parametrize(
    ("sizes", "frames"),
    [(WIDE, 1024), (WIDE, 256), (SMALL, 32)],
    ids=["512x3-1024", "512x3-256", "128x4-32"],
)
def test_sixteen_replicas_over_one_alone_a_frame(benchmark, sizes, frames):
    rounds = 3
    if not benchmark.enabled:
        sizes, frames, rounds = SMOKE, 16, 1
    alone, together = (rounds_of(sizes, frames, replicas) for replicas in (1, 16))
    benchmark.extra_info["ratio"] = found = ratio(together, alone, rounds, 1) / 16.0
    assert found > 0.0
    benchmark.pedantic(together, rounds=1)


def test_layers_one_after_another_over_layers_together(benchmark):
    """The laptop scale of paper 2: a worker's 32 frames in a network of five layers."""
    sizes, frames, rounds = (SMALL, 32, 15) if benchmark.enabled else (SMOKE, 16, 1)
    apart = rounds_of(sizes, frames, 1, one_after_another)
    together = rounds_of(sizes, frames, 1)
    benchmark.extra_info["times_as_fast"] = found = ratio(apart, together, rounds, 1)
    assert found > 0.0
    benchmark.pedantic(together, rounds=1)


def optimizers(sizes: tuple[int, ...], frames: int) -> tuple[Step, Step]:
    """A step of torch's SGD and one of `NGSGD`, each with a model of its own."""
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
    return sgd, step_of(lambda model: NGSGD(model, lr=RATE, options=OPTIONS))


def test_optimizer_over_torchs_sgd(benchmark):
    sizes, frames, rounds = (WIDE, 1024, 9) if benchmark.enabled else (SMOKE, 16, 1)
    sgd, natural = optimizers(sizes, frames)
    benchmark.extra_info["ratio"] = found = ratio(natural, sgd, rounds)
    assert found > 0.0
    benchmark.pedantic(natural, rounds=1)


def test_optimizer_over_torchs_sgd_where_calls_cost_more_than_products(benchmark):
    sizes, frames, rounds = (NARROW, 64, 25) if benchmark.enabled else (SMOKE, 16, 1)
    sgd, natural = optimizers(sizes, frames)
    benchmark.extra_info["ratio"] = found = ratio(natural, sgd, rounds)
    assert found > 0.0
    benchmark.pedantic(natural, rounds=1)


def test_one_workers_rounds_over_sgds_at_paper_twos_overnight_scale(benchmark):
    """Under the same max-change, as the paper's table 6 compares them."""
    sizes, frames, rounds = (SMALL, 32, 15) if benchmark.enabled else (SMOKE, 16, 1)
    sgd, natural = (rounds_of(sizes, frames, 1, options=each) for each in (LIMITED, OVERNIGHT))
    benchmark.extra_info["ratio"] = found = ratio(natural, sgd, rounds, 1)
    assert found > 0.0
    benchmark.pedantic(natural, rounds=1)


def test_steps_with_autograd_at_hand_over_steps_without(benchmark):
    """One worker at paper 2's overnight scale: what runs save, with the same bits."""
    sizes, frames, rounds = (SMALL, 32, 15) if benchmark.enabled else (SMOKE, 16, 1)
    plainly, inner = (rounds_of(sizes, frames, 1, options=OVERNIGHT) for _ in range(2))

    def without() -> None:
        with torch.inference_mode():
            inner()

    benchmark.extra_info["ratio"] = found = ratio(plainly, without, rounds, 1)
    assert found > 0.0
    benchmark.pedantic(without, rounds=1)
