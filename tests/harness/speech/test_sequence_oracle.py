"""Sequence training against what is written down from the paper, one frame at a time."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn.functional import linear, log_softmax

from harness.acoustics.mmi import Criterion, InnerLoss, SequenceCriterion
from harness.algorithms.stale import DelayCompensated, StalenessAware
from harness.experiment.run import run as train
from harness.networks.feedforward import Dnn, Layout
from harness.simulator.timeline_file import load_timeline
from harness.speech.decoding import log_posteriors, orders, references_of
from harness.speech.evaluation import log_prior
from harness.speech.frames import FramesOnDevice
from harness.speech.task import final_model
from harness.store.schema import MODEL
from tests.silence import silent

LAYOUT = Layout((9, 6, 5))


def final(run) -> torch.Tensor:
    return torch.from_numpy(load_file(run.path(MODEL))["model"])


class Naive:
    """Outer and inner gradients of single utterances, by autograd."""

    def __init__(self, config, corpus):
        self.config, self.train = config, corpus.split("train")
        self.frames = FramesOnDevice.from_corpus(corpus, "cpu")
        references = references_of(corpus)
        self.criterion = SequenceCriterion(config.task.criterion, references, log_prior(corpus))

    def inputs(self, utterance):
        first, length = self.train.start[utterance], self.train.frames[utterance]
        return self.frames.gather(torch.arange(first, first + length).unsqueeze(0)).x[0]

    def posteriors(self, model, x):
        first, last = LAYOUT.views(model.unsqueeze(0))
        hidden = torch.relu(linear(x, first.weight[0], first.bias[0]))
        return log_softmax(linear(hidden, last.weight[0], last.bias[0]).double(), 1)

    def decoded(self, model, utterance):
        """Inputs and outer gradients of the frames an utterance keeps."""
        x = self.inputs(utterance)
        words = self.train.words[utterance]
        outer = self.criterion.outer(self.posteriors(model, x).numpy(), words)
        kept = np.flatnonzero(outer.kept)
        return x[kept], torch.from_numpy(outer.gradient[kept])

    def stepped(self, model, read, frames, staleness=0):
        """The model after one step along the gradient of some frames at the parameters read."""
        parameters = read.clone().requires_grad_()
        x = torch.stack([x for x, _ in frames])
        outer = torch.stack([o for _, o in frames])
        (outer * self.posteriors(parameters, x)).sum().backward()
        return self.folded(model, read, -parameters.grad, staleness)

    def folded(self, model, read, gradient, staleness):
        """The model after a fold, as its algorithm's paper has it."""
        match self.config.algorithm:
            case StalenessAware():
                gradient = gradient / max(1, staleness)
            case DelayCompensated(strength):
                gradient = gradient + strength * gradient**2 * (model - read)
        return model - self.config.schedule.rate * gradient


class Plain(Naive):
    """The same with the arithmetic that runs are made of."""

    def posteriors(self, model, x):
        return torch.from_numpy(log_posteriors(Dnn(LAYOUT, "relu"), model, x))

    def stepped(self, model, read, frames, staleness=0):
        x = torch.stack([x for x, _ in frames]).unsqueeze(0)
        outer = torch.stack([o for _, o in frames]).float().unsqueeze(0)
        out = torch.empty_like(read.unsqueeze(0))
        InnerLoss(Dnn(LAYOUT, "relu")).gradient(read.unsqueeze(0), x, outer, out)
        return model.sub(out[0], alpha=self.config.schedule.rate)


def close(ours, theirs, moved):
    """Equal up to what single precision loses, compared with how far training went."""
    assert (ours - theirs).abs().max() < 1e-4 * moved
    assert moved > 1e-2


def initial_of(config, corpus, store):
    return final_model(train(config.task.start, store, silent))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("oracle", [Naive, Plain])
def test_one_replica_with_zero_latency_is_plain_sequential_training(
    slots, oracle, sequence, run_sequence, corpus, finished, zero_cost
):
    config = sequence(workers=1, slots=slots, cluster=zero_cost)
    ours, naive = final(run_sequence(config)), oracle(config, corpus)
    model = initial = initial_of(config, corpus, finished)
    utterances = iter(orders(0, len(naive.train), 1, 2)[0].tolist())
    slot, left = [[] for _ in range(slots)], True
    while True:
        for place in range(slots):
            while left and not slot[place]:
                number = next(utterances, None)
                if number is None:
                    left = False
                else:
                    slot[place] = list(zip(*naive.decoded(model, number), strict=True))
        frames = [frames.pop(0) for frames in slot if frames]
        if not frames:
            break
        model = naive.stepped(model, model, frames)
    close(ours, model, (model - initial).abs().max())
    assert oracle is Naive or torch.equal(ours, model)


def test_without_shuffling_minibatches_are_cut_from_one_utterance_after_another(
    sequence, run_sequence, corpus, finished, zero_cost
):
    config = sequence(workers=1, slots=4, cluster=zero_cost, shuffling="none", passes=1)
    ours, naive = final(run_sequence(config)), Naive(config, corpus)
    model = initial = initial_of(config, corpus, finished)
    gathered = []
    for number in orders(0, len(naive.train), 1, 1)[0].tolist():
        gathered += zip(*naive.decoded(model, number), strict=True)
        while len(gathered) >= 4:
            model, gathered = naive.stepped(model, model, gathered[:4]), gathered[4:]
    if gathered:
        model = naive.stepped(model, model, gathered)
    close(ours, model, (model - initial).abs().max())


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"fetch_s": 0.02},
        {"algorithm": StalenessAware()},
        {"algorithm": DelayCompensated(1e4, 16)},
    ],
)
def test_stale_training_equals_a_walk_along_the_timeline_that_keeps_every_version(
    choices, sequence, run_sequence, corpus, finished
):
    criterion = Criterion(kappa=0.1, numerator="sum", cancel_below=0.01)
    config = sequence(criterion=criterion, rate=0.05, **choices)
    done, naive = run_sequence(config), Naive(config, corpus)
    timeline = load_timeline(done.path("timeline.parquet"))
    rows, decodes = timeline.folded(), timeline.decodes
    order = orders(0, len(naive.train), 3, 2)
    assert len(decodes) == 2 * len(naive.train)  # none of which nothing was kept
    assert decodes.steps.sum() < 2 * corpus.frames_of("train")  # and not everything
    versions = [initial_of(config, corpus, finished)]
    utterances = {}
    for worker, version, step in zip(
        rows.worker.tolist(), rows.read_version.tolist(), rows.first_step.tolist(), strict=True
    ):
        own = int(((rows.worker == worker) & (rows.first_step < step)).sum())
        frames = []
        for number, row in enumerate(np.flatnonzero(decodes.worker == worker).tolist()):
            first, steps = int(decodes.first_step[row]), int(decodes.steps[row])
            if first <= own < first + steps:
                if row not in utterances:
                    read = versions[int(decodes.decode_version[row])]
                    kept = naive.decoded(read, int(order[worker, number]))
                    utterances[row] = list(zip(*kept, strict=True))
                    assert len(utterances[row]) == steps
                frames.append((int(decodes.slot[row]), utterances[row][own - first]))
        frames = [frame for _, frame in sorted(frames, key=lambda pair: pair[0])]
        stale = len(versions) - 1 - version
        versions.append(naive.stepped(versions[-1], versions[version], frames, stale))
    assert timeline.staleness().max() > 1
    assert (rows.read_version - rows.decode_version).max() > 3
    moved = (versions[-1] - versions[0]).abs().max()
    close(final(done), versions[-1], moved)
    plain = final(run_sequence(sequence(criterion=criterion, rate=0.05)))
    assert not choices or (plain - versions[-1]).abs().max() > 0.01 * moved
