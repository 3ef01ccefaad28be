"""What the harness costs beyond the arithmetic: ratios within one run, and what it executes.

Paper 1's setting at laptop size: four workers' asynchronous averaged SGD with 256 frames a
minibatch, against two loops over the same minibatches, which lie there spliced already. One is
what a person would write: the gradient, a step, the average, and the copy that the worker
reads, in torch. The other does nothing but the gradients, always at the same parameters, so
that all the rest is above 1: timing, gathering, reads, folds, the average, and four replicas'
parameters in memory where the loop has one's. Once a run, and not counted, are the
construction and the compiling of kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pytest
import torch

from harness.acoustics.dnn import Dnn
from harness.acoustics.stack import Layout, random_parameters
from harness.algorithms.averaged_sgd import AveragedSgd
from harness.algorithms.contract import Minibatch
from harness.execution.frames import Frames, Order
from harness.execution.simulated import StaleReplay
from harness.simulator import Simulation, Workload, load_cluster

CLUSTER = Path(__file__).parents[2] / "reproductions" / "clusters" / "k20m-server.toml"
LAYOUT, FRAMES, WORKERS = Layout((440, 512, 512, 512, 1000)), 256, 4
UTTERANCE, CONTEXT, CHUNK = 500, 5, 100
RATE, ETA = 1e-4, 0.01
FOLDS, ROUNDS = 16, 9
"""A measurement: short, so that both sides see the same load of the machine; and how many."""


class Harness:
    """A run in progress that is measured piece by piece."""

    def __init__(self, model: torch.Tensor) -> None:
        self.net, self.frames = Dnn(LAYOUT), speech_for(LAYOUT)
        workload = Workload.of_network(LAYOUT.sizes, FRAMES)
        self.simulation = Simulation(
            load_cluster(CLUSTER), "parameter_server", workload, WORKERS, seed=0
        )
        algorithm = AveragedSgd()
        server = algorithm.start(model)
        self.replay = StaleReplay(algorithm, self.net, server, self.minibatch_of, WORKERS)
        start = self.frames.first.unique().numpy()
        length = (self.frames.last[start] + 1).numpy() - start
        self.order = Order(0, 0, start, length, FRAMES, 1.0, CHUNK)

    def minibatch_of(self, keys: Sequence[tuple[int, int]]) -> Minibatch:
        """Frames from all over a chunk, spliced, as a run deals them; pass after pass."""
        steps = [(worker, step % self.order.steps) for worker, step in keys]
        return self.frames.gather(torch.from_numpy(self.order.dealt(steps)))

    def run(self) -> None:
        """The next folds."""
        self.replay.run(self.simulation.advance(folds=FOLDS), RATE)


class Bare:
    """The gradients of as many minibatches, one after another, and nothing else."""

    def __init__(self, harness: Harness, model: torch.Tensor) -> None:
        self.net, self.stack = harness.net, model.unsqueeze(0)
        self.out = torch.empty_like(self.stack)
        self.minibatches = [harness.minibatch_of([(0, step)]) for step in range(FOLDS)]

    def run(self) -> None:
        for minibatch in self.minibatches:
            self.net.gradient(self.stack, *minibatch, self.out)


class BareTraining(Bare):
    """The same training in torch: each worker's gradient, a step, the average, its next read."""

    def __init__(self, harness: Harness, model: torch.Tensor) -> None:
        super().__init__(harness, model)
        self.model, self.average = model.clone(), model.clone()
        self.replicas = model.repeat(WORKERS, 1)

    def run(self) -> None:
        for k, minibatch in enumerate(self.minibatches):
            replica = self.replicas[k % WORKERS]
            self.net.gradient(replica.unsqueeze(0), *minibatch, self.out)
            self.model.sub_(self.out[0], alpha=RATE)
            self.average.lerp_(self.model, ETA)
            replica.copy_(self.model)


def speech_for(layout: Layout) -> Frames:
    """100,000 frames in utterances of equal length."""
    draw = torch.Generator().manual_seed(0)
    start = torch.arange(100_000) // UTTERANCE * UTTERANCE
    inputs = layout.sizes[0] // (2 * CONTEXT + 1)
    features = torch.randn(len(start), inputs, generator=draw)
    targets = torch.randint(layout.sizes[-1], (len(start),), generator=draw)
    return Frames(features, targets, start, start + UTTERANCE - 1, CONTEXT)


def processor_ratio(one: Callable[[], None], other: Callable[[], None], rounds: int) -> float:
    """How many times as long the other takes, in turns: the median of all pairs.

    In processor time: other people's work lengthens that only through the caches.
    """
    return median(processor_s(other) / processor_s(one) for _ in range(rounds))


def processor_s(work: Callable[[], None]) -> float:
    """Seconds of the processor that something takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_harness_over_bare_loop(benchmark):
    model = random_parameters(LAYOUT, torch.Generator().manual_seed(0))[0]
    harness = Harness(model)
    training, gradients = BareTraining(harness, model), Bare(harness, model)
    for work in (harness, training, gradients):
        work.run()
    folds, batches = harness.replay.server.version, harness.replay.batches
    rounds = ROUNDS if benchmark.enabled else 1
    for name, bare in (("ratio", training), ("gradients_ratio", gradients)):
        benchmark.extra_info[name] = processor_ratio(bare.run, harness.run, rounds)
    benchmark.pedantic(harness.run, rounds=1)
    # What the ratios rest on: every fold was executed, four workers' gradients to a batch.
    assert harness.replay.server.version - folds == (2 * rounds + 1) * FOLDS
    assert harness.replay.batches - batches == (2 * rounds + 1) * FOLDS // WORKERS


class Still:
    """A network whose gradients take no time: they stand where the last ones stood."""

    def gradient(self, stack, x, targets, out):
        return stack.new_zeros(len(stack))


@pytest.mark.usefixtures("one_thread")
def test_folds_and_reads_over_bare_passes(benchmark):
    # What of the harness is not gradients, beside a fold, an average and a read as torch has them.
    model = random_parameters(LAYOUT, torch.Generator().manual_seed(0))[0]
    harness = Harness(model.clone())
    minibatch = harness.minibatch_of([(0, 0)])
    harness.replay.network = Still()
    harness.replay.minibatch_of = lambda keys: minibatch
    theta, average, stack = model.clone(), model.clone(), model.repeat(WORKERS, 1)
    gradients = torch.zeros_like(stack)

    def bare() -> None:
        for k in range(FOLDS):
            theta.sub_(gradients[k % WORKERS], alpha=1e-4)
            average.lerp_(theta, 0.01)
            stack[k % WORKERS].copy_(theta)

    harness.run()
    bare()
    rounds = ROUNDS if benchmark.enabled else 1
    benchmark.extra_info["ratio"] = processor_ratio(bare, harness.run, rounds)
    benchmark.pedantic(harness.run, rounds=1)
    assert harness.replay.server.version == (rounds + 2) * FOLDS


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("workers", [4, 16, 50])
@pytest.mark.parametrize("sizes", [(440, 64, 64, 352), (440, 128, 128, 128, 352)], ids=str)
def test_replicas_together_beside_one_at_a_time(benchmark, sizes, workers):
    # What the executor does for the contributions that are pending: gathers and computes them.
    layout, frames = Layout(sizes), 32
    net, speech, draw = Dnn(layout), speech_for(layout), torch.Generator().manual_seed(0)
    stack = random_parameters(layout, draw).repeat(workers, 1)
    rows = torch.randint(len(speech.targets), (workers, frames), generator=draw)
    out, alone = torch.empty_like(stack), torch.empty_like(stack)

    def together() -> None:
        net.gradient(stack, *speech.gather(rows), out)

    def one_at_a_time() -> None:
        for k in range(workers):
            one = slice(k, k + 1)
            net.gradient(stack[one], *speech.gather(rows[one]), alone[one])

    together()
    one_at_a_time()
    rounds = ROUNDS if benchmark.enabled else 1
    benchmark.extra_info["times_alone"] = processor_ratio(together, one_at_a_time, rounds)
    benchmark.pedantic(together, rounds=1)
    torch.testing.assert_close(out, alone)
