"""Which kept frame is trained on in which step: two ways to fill a minibatch, by hand."""

import numpy as np
import torch

from harness.algorithms.saved import pack, unpack
from harness.simulator.timeline import Contributions, Decodes, Timeline
from harness.speech.streams import Batcher


def kept(utterance: int, frames: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Frames that say of which utterance they are and where in it."""
    x = torch.tensor([[utterance, at] for at in range(frames)], dtype=torch.float32)
    return utterance, x.reshape(frames, 2), 10.0 * x.reshape(frames, 2)


def decodes(*rows: tuple[int, int, int, int]) -> Decodes:
    """Rows of worker, slot, utterance, first step."""
    worker, slot, utterance, first = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(rows))
    return Decodes(
        worker.astype(np.int32), slot.astype(np.int32), utterance.astype(np.int64),
        nothing.astype(np.int64), nothing, first.astype(np.int64), np.ones(len(rows), np.int32),
    )  # fmt: skip


def reads(*rows: tuple[int, int]) -> Contributions:
    """Rows of worker and first step, counted over all workers, as contributions."""
    worker, first = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    none = np.zeros(len(rows), np.int64)
    steps = np.ones(len(rows), np.int32)
    return Contributions(none, worker.astype(np.int32), none, none * 0.0, first, steps)


def chosen(batcher: Batcher, *keys: tuple[int, int]) -> list[list[tuple[int, int]]]:
    return [[tuple(map(int, x)) for x in batcher.chosen[key].x] for key in keys]


def test_shuffled_every_slot_gives_a_frame_of_its_utterance_and_takes_the_next_when_it_runs_out():
    batcher = Batcher(slots=2, shuffled=True)
    for utterance, frames in ((0, 2), (1, 3), (2, 2), (3, 1), (4, 0)):
        batcher.add(*kept(utterance, frames))
    assert sorted(batcher.kept) == [0, 1, 2, 3]
    told = Timeline(
        contributions=reads((0, 0), (1, 1), (0, 2), (0, 3), (0, 4)),
        decodes=decodes((0, 0, 0, 0), (0, 1, 1, 0), (0, 0, 2, 2), (1, 0, 3, 0)),
    )
    batcher.follow(told)
    assert chosen(batcher, (0, 0), (0, 2), (0, 3), (0, 4), (1, 1)) == [
        [(0, 0), (1, 0)], [(0, 1), (1, 1)], [(2, 0), (1, 2)], [(2, 1)], [(3, 0)],
    ]  # fmt: skip
    # what has been read is not read again
    batcher.follow(Timeline(contributions=told.contributions))
    assert len(batcher.chosen) == 5


def test_a_minibatch_of_several_replicas_is_filled_up_with_zeros():
    batcher = Batcher(slots=2, shuffled=True)
    for utterance, frames in ((3, 1), (1, 1), (2, 1)):
        batcher.add(*kept(utterance, frames))
    batcher.follow(
        Timeline(
            contributions=reads((0, 0), (1, 1)),
            decodes=decodes((0, 0, 1, 0), (0, 1, 2, 0), (1, 0, 3, 0)),
        )
    )
    x, outer = batcher.minibatch([(1, 1), (0, 0)])
    assert x.tolist() == [[[3.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [2.0, 0.0]]]
    assert outer.tolist() == [[[30.0, 0.0], [0.0, 0.0]], [[10.0, 0.0], [20.0, 0.0]]]
    assert not batcher.chosen


def test_not_shuffled_minibatches_are_cut_from_one_utterance_after_another():
    batcher = Batcher(slots=3, shuffled=False)
    for utterance, frames in ((0, 2), (1, 5), (2, 1)):
        batcher.add(*kept(utterance, frames))
    batcher.follow(
        Timeline(
            contributions=reads((0, 0), (0, 1), (0, 2)),
            decodes=decodes((0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 2, 2)),
        )
    )
    assert chosen(batcher, (0, 0), (0, 1), (0, 2)) == [
        [(0, 0), (0, 1), (1, 0)],
        [(1, 1), (1, 2), (1, 3)],
        [(1, 4), (2, 0)],
    ]


def test_what_is_captured_goes_on_as_if_it_never_stopped():
    for is_shuffled in (True, False):
        ours = Batcher(slots=2, shuffled=is_shuffled)
        for utterance, frames in ((0, 3), (1, 2), (2, 4)):
            ours.add(*kept(utterance, frames))
        ours.expect(decodes((0, 0, 0, 0), (0, 1, 1, 0), (0, 1, 2, 2)))
        ours.read(0, 0)
        again = Batcher(slots=2, shuffled=is_shuffled)
        again.restore(unpack(*pack(ours), "cpu"))
        for batcher in (ours, again):
            for step in (1, 2, 3):
                batcher.read(0, step)
        keys = [(0, step) for step in range(4)]
        assert chosen(again, *keys) == chosen(ours, *keys)
        assert again.steps == ours.steps == {0: 4}
