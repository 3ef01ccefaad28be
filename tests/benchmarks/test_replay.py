"""What stale replay costs beyond the arithmetic: paper 1's setting at laptop size, on one thread.

Four workers' asynchronous averaged SGD, 256 frames a minibatch, beside loops in plain torch.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.algorithms.async_sgd import AveragedSgd
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.replay.fold_replay import ReplicaStates, StaleReplay
from harness.simulator.cluster import Workload, load_cluster
from harness.simulator.simulation import Simulation
from harness.speech.frames import FramesOnDevice
from harness.tasks.order import Order

CLUSTER = Path(__file__).parents[2] / "reproductions" / "clusters" / "k20m-server.toml"
SIZES, FRAMES, SPEECH, UTTERANCE, CONTEXT = (440, 512, 512, 512, 1000), 256, 50_000, 500, 5
WORKERS, FOLDS, RATE, ETA = 4, 16, 1e-5, 0.01


def speech_of(sizes: tuple[int, ...]) -> tuple[FramesOnDevice, tuple[np.ndarray, np.ndarray]]:
    """Random frames in utterances of equal length; first row and length of each utterance."""
    draw = np.random.default_rng(0)
    features = draw.standard_normal((SPEECH, sizes[0] // (2 * CONTEXT + 1)), np.float32)
    targets = draw.integers(sizes[-1], size=SPEECH)
    start = np.arange(0, SPEECH, UTTERANCE)
    length = np.full(len(start), UTTERANCE)
    speech = FramesOnDevice.from_arrays(features, targets, start, length, CONTEXT, "cpu")
    return speech, (start, length)


class Steps:
    """A simulated run in progress; ``run`` executes the next `FOLDS` folds."""

    def __init__(self) -> None:
        self.speech, utterances = speech_of(SIZES)
        self.order = Order(0, 0, *utterances, FRAMES)
        workload = Workload.of_network(SIZES, FRAMES)
        self.simulation = Simulation(
            load_cluster(CLUSTER), "parameter_server", workload, WORKERS, seed=0
        )
        layout = Layout(SIZES)
        self.model = random_parameters(layout, torch.Generator().manual_seed(0))[0]
        algorithm = AveragedSgd()
        server = algorithm.start(self.model.clone())
        self.replay = StaleReplay(algorithm, Dnn(layout), server, self.gather, WORKERS)

    def gather(self, keys) -> Minibatch:
        steps = [(worker, step % self.order.steps) for worker, step in keys]
        return self.speech.gather(torch.as_tensor(self.order.rows_of(steps)))

    def run(self) -> None:
        self.replay.run(self.simulation.advance(folds=FOLDS), RATE)


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps()


def test_asynchronous_training_over_a_loop_in_torch(compare, steps):
    net, model, average = Dnn(Layout(SIZES)), steps.model.clone(), steps.model.clone()
    replicas, out = model.repeat(WORKERS, 1), torch.empty(1, len(model))
    minibatches = [steps.gather([(0, step)]) for step in range(FOLDS)]

    def loop() -> None:
        for k, minibatch in enumerate(minibatches):
            replica = replicas[k % WORKERS]
            net.gradient(replica.unsqueeze(0), *minibatch, out)
            model.sub_(out[0], alpha=RATE)
            average.lerp_(model, ETA)
            replica.copy_(model)

    folds, batches = steps.replay.server.version, steps.replay.batches
    steps.run()
    assert steps.replay.server.version - folds == FOLDS
    assert steps.replay.batches - batches == FOLDS // WORKERS  # four workers' gradients together
    compare(steps.run, loop, at_most=1.6)


class Still:
    """A network whose gradients take no time: they are what the last ones were."""

    def gradient(self, stack, x, targets, out):
        return stack.new_zeros(len(stack))


def test_folds_and_reads_over_bare_passes(compare):
    steps = Steps()
    minibatch = steps.gather([(0, 0)])
    steps.replay.states, steps.replay.minibatch_of = ReplicaStates(Still()), lambda keys: minibatch
    model, average = steps.model.clone(), steps.model.clone()
    replicas = model.repeat(WORKERS, 1)
    gradients = torch.zeros_like(replicas)

    def bare() -> None:
        for k in range(FOLDS):
            model.sub_(gradients[k % WORKERS], alpha=RATE)
            average.lerp_(model, ETA)
            replicas[k % WORKERS].copy_(model)

    compare(steps.run, bare, at_most=2.5)


@pytest.mark.parametrize("workers", [4, 50])
def test_gradients_of_replicas_together_over_one_by_one(compare, workers):
    sizes, frames = (440, 64, 64, 352), 32
    (speech, _), layout = speech_of(sizes), Layout(sizes)
    net, draw = Dnn(layout), torch.Generator().manual_seed(0)
    stack = random_parameters(layout, draw).repeat(workers, 1)
    rows = torch.randint(len(speech.targets), (workers, frames), generator=draw)
    out, alone = torch.empty_like(stack), torch.empty_like(stack)

    def together() -> None:
        net.gradient(stack, *speech.gather(rows), out)

    def one_by_one() -> None:
        for worker in range(workers):
            one = slice(worker, worker + 1)
            net.gradient(stack[one], *speech.gather(rows[one]), alone[one])

    compare(together, one_by_one, at_most=1.0)
    torch.testing.assert_close(out, alone)


def test_a_minibatch_of_the_network_over_autograd(compare):
    """Forward and backward by hand, beside `torch.autograd` on the same layers."""
    layout = Layout(SIZES)
    net, stack = Dnn(layout), random_parameters(layout, torch.Generator().manual_seed(0))
    x, targets = torch.randn(1, FRAMES, SIZES[0]), torch.randint(SIZES[-1], (1, FRAMES))
    out = torch.empty_like(stack)
    pairs = itertools.pairwise(SIZES)
    layers = [part for m, n in pairs for part in (torch.nn.Linear(m, n), torch.nn.Sigmoid())]
    module = torch.nn.Sequential(*layers[:-1])

    def autograd() -> None:
        module.zero_grad()
        torch.nn.functional.cross_entropy(module(x[0]), targets[0]).backward()

    compare(lambda: net.gradient(stack, x, targets, out), autograd, at_most=2.0)
