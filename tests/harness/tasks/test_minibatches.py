"""Who trains on which frames: over workers, stages and rounds."""

import numpy as np
import pytest

from harness.algorithms.averaging import ModelAveraging
from harness.base.seeds import stream
from harness.experiment.experiment import Stage
from harness.simulator.protocols.averaging import Averaging
from harness.speech.frames import FramesOnDevice
from harness.tasks.order import Order, Partition, balance_pieces, row_numbers


@pytest.fixture
def minibatches(configure, corpus):
    """Two stages of other minibatches."""
    config = configure(stages=(Stage(4, 64, 0.5), Stage(8, 256)), seed=3)
    return config.task.open(config).minibatches(config)


def order(corpus, stage, minibatch, share):
    train = corpus.split("train")
    return Order(3, stage, train.start, train.frames, minibatch, share)


def test_a_stage_has_its_own_order_from_its_first_step_on(minibatches, corpus):
    frames = FramesOnDevice.from_corpus(corpus, "cpu")
    half = order(corpus, 0, 4, 0.5)
    assert minibatches.order.steps == half.steps
    keys = [(0, half.steps - 1), (2, 0), (1, 3)]
    expected = [half.rows(step).tolist() for _, step in keys]
    assert minibatches.order.rows_of(keys).tolist() == expected

    minibatches.begin(1, half.steps)
    whole = order(corpus, 1, 8, 1.0)
    steps = [0, 5, whole.steps - 1]
    given = minibatches.fetch([(step % 3, half.steps + step) for step in steps])
    rows = np.stack([whole.rows(step) for step in steps])
    assert given.targets.tolist() == corpus.targets[rows].tolist()
    middle = given.x[:, :, corpus.dim : 2 * corpus.dim]  # the frame itself, of three spliced
    assert middle.tolist() == corpus.features[rows].tolist()
    assert given.x.shape == (3, 8, frames.features.shape[1] * 3)


def test_in_rounds_each_worker_trains_on_its_own_part(configure, corpus):
    config = configure(
        algorithm=ModelAveraging(), protocol=Averaging(every=2), stages=(Stage(4, 64),), seed=3
    )
    minibatches, train = config.task.open(config).minibatches(config), corpus.split("train")
    assert isinstance(config.lay_out(0, train), Partition)
    own = balance_pieces(train.frames, np.arange(len(train)), 3)
    for stage, before in ((0, 0), (1, 40)):
        minibatches.begin(stage, before)
        for worker in range(3):
            part = row_numbers(train.start[own[worker]], train.frames[own[worker]])
            shuffled = stream(3, "frames of a worker", stage, worker).permutation(part)
            for step in (0, 1, 5):
                given = minibatches.fetch([(worker, before + step)])
                rows = shuffled[4 * step : 4 * step + 4]
                assert given.targets[0].tolist() == corpus.targets[rows].tolist()
                middle = given.x[0, :, corpus.dim : 2 * corpus.dim]
                assert middle.tolist() == corpus.features[rows].tolist()
