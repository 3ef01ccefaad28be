"""What natural gradient costs beyond plain SGD: steps beside steps."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from harness.algorithms.contract import Memory
from harness.algorithms.descent import PLAIN, LocalOptimizer, local_steps
from harness.natural_gradient import NGSGD, NaturalGradient, PerSample, Preconditioner
from harness.natural_gradient.estimate import FIRST_CALLS
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters

PERIOD, RATE = 4, 1e-6
OPTIONS = NaturalGradient(Preconditioner(30, PERIOD), Preconditioner(60, PERIOD), PerSample(0.1))
WIDE, SMALL = (440, 512, 512, 512, 1000), (429, 128, 128, 128, 128, 352)


def period_of(
    descent: LocalOptimizer, sizes: tuple[int, ...], frames: int, replicas: int = 1
) -> Callable[[], None]:
    """A period of steps of so many workers, past the first updates of the estimates."""
    layout, draw = Layout(sizes), torch.Generator().manual_seed(0)
    stack = random_parameters(layout, draw).repeat(replicas, 1)
    x = torch.randn(PERIOD, replicas, frames, sizes[0], generator=draw)
    targets = torch.randint(0, sizes[-1], (PERIOD, replicas, frames), generator=draw)
    minibatches = [Minibatch(*pair) for pair in zip(x, targets, strict=True)]
    memory = Memory()

    def steps() -> None:
        local_steps(descent, Dnn(layout), stack, minibatches, RATE, memory)

    for _ in range(FIRST_CALLS // PERIOD + 1):
        steps()
    return steps


@pytest.mark.parametrize(
    ("sizes", "frames", "bound"), [(WIDE, 1024, 2.6), (SMALL, 32, 8.0)], ids=["512x3", "128x4"]
)
def test_natural_gradient_over_sgd(compare, benchmark, sizes, frames, bound):
    sizes = sizes if benchmark.enabled else SMALL
    steps = [period_of(descent, sizes, frames) for descent in (OPTIONS, PLAIN)]
    compare(*steps, at_most=bound)


def test_sixteen_replicas_over_sixteen_times_one(compare):
    together, alone = (period_of(OPTIONS, SMALL, 32, replicas) for replicas in (16, 1))

    def one_by_one() -> None:
        for _ in range(16):
            alone()

    compare(together, one_by_one, at_most=1.0)


def test_the_optimizer_over_torchs_sgd(compare, benchmark):
    frames = 1024 if benchmark.enabled else 64
    x, y = torch.randn(frames, WIDE[0]), torch.randint(0, WIDE[-1], (frames,))

    def step_of(optimizer_of: Callable[[nn.Module], torch.optim.Optimizer]) -> Callable[[], None]:
        pairs = itertools.pairwise(WIDE)
        layers = [part for m, n in pairs for part in (nn.Linear(m, n), nn.Sigmoid())]
        model = nn.Sequential(*layers[:-1])
        optimizer = optimizer_of(model)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        return step

    compare(
        step_of(lambda model: NGSGD(model, lr=RATE, options=OPTIONS)),
        step_of(lambda model: torch.optim.SGD(model.parameters(), lr=RATE)),
        at_most=3.0,
        rounds=2 * PERIOD + 1,
    )
