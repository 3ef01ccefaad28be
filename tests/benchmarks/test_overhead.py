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
from collections.abc import Callable
from statistics import median

import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd
from harness.bench.steps import RATE, WORKERS, Setting, SimulatedSteps, pair, speech_for
from harness.networks.feedforward import Dnn, Layout, random_parameters

PAPER_1 = Setting((440, 512, 512, 512, 1000), 256, 100_000, "cpu")
FULL = Setting((429, *(2048,) * 7, 10217), 256, 20_000, "cpu")
OVERNIGHT = Setting((429, 64, 64, 64, 355), 32, 1_000_000, "cpu")
ETA = 0.01
FOLDS, ROUNDS = 16, 9
"""A measurement: short, so that both sides see the same load of the machine; and how many."""

Work = Callable[[], object]


class Bare:
    """The gradients of as many minibatches, one after another, and nothing else."""

    def __init__(self, harness: SimulatedSteps) -> None:
        self.net, self.stack = harness.replay.network, harness.replay.server.model.clone()[None]
        self.out = torch.empty_like(self.stack)
        self.minibatches = [harness.minibatch_of([(0, step)]) for step in range(FOLDS)]

    def run(self) -> None:
        for minibatch in self.minibatches:
            self.net.gradient(self.stack, *minibatch, self.out)


class BareTraining(Bare):
    """The same training in torch: each worker's gradient, a step, the average, its next read."""

    def __init__(self, harness: SimulatedSteps) -> None:
        super().__init__(harness)
        self.model, self.average = self.stack[0].clone(), self.stack[0].clone()
        self.replicas = self.stack.repeat(WORKERS, 1)

    def run(self) -> None:
        for k, minibatch in enumerate(self.minibatches):
            replica = self.replicas[k % WORKERS]
            self.net.gradient(replica.unsqueeze(0), *minibatch, self.out)
            self.model.sub_(self.out[0], alpha=RATE)
            self.average.lerp_(self.model, ETA)
            replica.copy_(self.model)


def ratios(one: Work, other: Work, rounds: int = ROUNDS) -> tuple[float, float]:
    """How many times as long the other takes, in turns: by the clock, and of the processor.

    By the clock the least disturbed of each; in processor time, which other people's work
    lengthens only through the caches, the median of the pairs.
    """
    turns = [(_seconds(one), _seconds(other)) for _ in range(rounds)]
    by_clock = min(b[0] for _, b in turns) / min(a[0] for a, _ in turns)
    return by_clock, median(b[1] / a[1] for a, b in turns)


def _seconds(work: Work) -> tuple[float, float]:
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - processor


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_harness_over_bare_loop(benchmark):
    harness = SimulatedSteps(PAPER_1, speech_for(PAPER_1))
    training, gradients = BareTraining(harness), Bare(harness)

    def steps() -> None:
        harness.run(FOLDS)

    for work in (steps, training.run, gradients.run):
        work()
    replay = harness.replay
    folds, batches = replay.server.version, replay.batches
    rounds = ROUNDS if benchmark.enabled else 1
    by_clock, of_processor = ratios(training.run, steps, rounds)
    benchmark.extra_info["ratio"], benchmark.extra_info["processor_ratio"] = by_clock, of_processor
    benchmark.extra_info["gradients_ratio"] = ratios(gradients.run, steps, rounds)[1]
    benchmark.pedantic(steps, rounds=1)
    # What the ratios rest on: every fold was executed, four workers' gradients to a batch.
    assert replay.server.version - folds == (2 * rounds + 1) * FOLDS
    assert replay.batches - batches == (2 * rounds + 1) * FOLDS // WORKERS


@pytest.mark.usefixtures("one_thread")
def test_a_minibatch_of_the_full_network_over_a_bare_step(benchmark):
    if not benchmark.enabled:
        pytest.skip("seconds of arithmetic and nothing to find but time")
    harness, bare = pair(FULL)

    def steps() -> None:
        harness.run(WORKERS)

    steps()
    bare.run(1)
    by_clock, of_processor = ratios(lambda: bare.run(WORKERS), steps, 2)
    benchmark.extra_info["ratio"], benchmark.extra_info["processor_ratio"] = by_clock, of_processor
    benchmark.pedantic(steps, rounds=1)


class Floor:
    """The arithmetic of folds and nothing else: the products of four workers' gradients at a
    time, into memory that lies there, and what a fold, an average and a read move."""

    def __init__(self, harness: SimulatedSteps) -> None:
        layout, frames = harness.replay.network.layout, OVERNIGHT.minibatch
        self.stack = harness.replay.server.model.repeat(WORKERS, 1)
        self.model, self.average = self.stack[0].clone(), self.stack[0].clone()
        self.gradients = torch.zeros_like(self.stack)
        levels = [torch.rand(WORKERS, frames, units) for units in layout.sizes]
        weights, slopes = layout.views(self.stack), layout.views(self.gradients)
        upper, lower = levels[1:], levels[:-1]
        forward = zip(lower, (w.transpose(1, 2) for w, _ in weights), upper, strict=True)
        back = zip(upper, (w for w, _ in weights), lower, strict=True)
        grown = zip((d.transpose(1, 2) for d in upper), lower, slopes, strict=True)
        factors = [*forward, *list(back)[1:], *((d, x, slope.weight) for d, x, slope in grown)]
        self.products = [(a, b, torch.empty_like(out)) for a, b, out in factors]

    def run(self) -> None:
        for _ in range(FOLDS // WORKERS):
            for a, b, out in self.products:
                torch.bmm(a, b, out=out)
            for replica, gradient in zip(self.stack, self.gradients, strict=True):
                self.model.sub_(gradient, alpha=RATE)
                self.average.lerp_(self.model, ETA)
                replica.copy_(self.model)


@pytest.mark.usefixtures("one_thread")
def test_folds_of_32_frames_over_their_floor(benchmark):
    harness = SimulatedSteps(OVERNIGHT, speech_for(OVERNIGHT))
    floor = Floor(harness)

    def steps() -> None:
        harness.run(FOLDS)

    steps()
    floor.run()
    rounds = 20 * ROUNDS if benchmark.enabled else 1
    benchmark.extra_info["floor_ratio"] = ratios(floor.run, steps, rounds)[1]
    benchmark.pedantic(steps, rounds=1)
    assert harness.replay.server.version == (rounds + 2) * FOLDS


class Still:
    """A network whose gradients take no time: they stand where the last ones stood."""

    def gradient(self, stack, x, targets, out):
        return stack.new_zeros(len(stack))


@pytest.mark.usefixtures("one_thread")
def test_folds_and_reads_over_bare_passes(benchmark, monkeypatch):
    # What of the harness is not gradients, beside a fold, an average and a read as torch has them.
    harness = SimulatedSteps(PAPER_1, speech_for(PAPER_1))
    minibatch = harness.minibatch_of([(0, 0)])
    harness.replay.network = Still()
    harness.replay.minibatch_of = lambda keys: minibatch
    theta = harness.replay.server.model.clone()
    average, stack = theta.clone(), theta.repeat(WORKERS, 1)
    gradients = torch.zeros_like(stack)

    def bare() -> None:
        for k in range(FOLDS):
            theta.sub_(gradients[k % WORKERS], alpha=RATE)
            average.lerp_(theta, ETA)
            stack[k % WORKERS].copy_(theta)

    def folds() -> None:
        harness.run(FOLDS)

    folds()
    bare()
    rounds = ROUNDS if benchmark.enabled else 1
    benchmark.extra_info["ratio"] = ratios(bare, folds, rounds)[0]
    monkeypatch.setattr(AsyncSgd, "can_fold_in_blocks", lambda self, model: False)
    benchmark.extra_info["one_by_one_ratio"] = ratios(bare, folds, rounds)[0]
    benchmark.pedantic(folds, rounds=1)
    assert harness.replay.server.version == (2 * rounds + 2) * FOLDS


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("workers", [4, 16, 50])
@pytest.mark.parametrize("sizes", [(440, 64, 64, 352), (440, 128, 128, 128, 352)], ids=str)
def test_replicas_together_beside_one_at_a_time(benchmark, sizes, workers):
    # What the executor does for the contributions that are pending: gathers and computes them.
    layout, frames = Layout(sizes), 32
    speech = speech_for(Setting(sizes, frames, 100_000, "cpu"))
    net, draw = Dnn(layout), torch.Generator().manual_seed(0)
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
    benchmark.extra_info["times_alone"] = ratios(together, one_at_a_time, rounds)[1]
    benchmark.pedantic(together, rounds=1)
    torch.testing.assert_close(out, alone)
