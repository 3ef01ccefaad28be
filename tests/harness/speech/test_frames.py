"""Splicing, and the order of frames over passes, against both written out by hand."""

import numpy as np
import pytest
import torch

from data_synth.corpus import Corpus
from harness.algorithms.schedules import Search
from harness.base.seeds import stream
from harness.speech.frames import FramesOnDevice
from harness.tasks.order import Order, interleave_slots
from tests.stand_in import utterances

LENGTHS = np.array([5, 1, 8, 2, 6, 7, 3, 4])
START = np.cumsum(LENGTHS) - LENGTHS
TOTAL = int(LENGTHS.sum())


def of_context(context: int) -> Corpus:
    """Features number the frames, so that a spliced row says which frames it was made of."""
    table = utterances(["train"] * len(LENGTHS), LENGTHS)
    features = np.stack([np.arange(TOTAL), -np.arange(TOTAL)], axis=1).astype(np.float32)
    targets = (np.arange(TOTAL) % 3).astype(np.int32)
    return Corpus("counted", features, targets, table, {"yes": (0, 1, 2)}, context=context)


@pytest.mark.parametrize("context", [0, 1, 2, 5])
def test_a_spliced_frame_repeats_the_ends_of_its_own_utterance_and_sees_no_other(context):
    rows = torch.arange(TOTAL).reshape(2, -1)
    x, targets = FramesOnDevice.from_corpus(of_context(context), "cpu").gather(rows)
    expected = []
    for start, length in zip(START.tolist(), LENGTHS.tolist(), strict=True):
        for at in range(length):
            seen = [start + min(max(at + k, 0), length - 1) for k in range(-context, context + 1)]
            expected.append([value for frame in seen for value in (frame, -frame)])
    assert x.shape == (2, TOTAL // 2, 2 * (2 * context + 1))
    assert x.reshape(TOTAL, -1).tolist() == expected
    assert targets.flatten().tolist() == [row % 3 for row in range(TOTAL)]


def order(stage: int = 0, share: float = 1.0, minibatch: int = 3) -> Order:
    return Order(7, stage, START, LENGTHS, minibatch, share)


def by_hand(stage: int, share: float, minibatch: int) -> list[list[int]]:
    """Draw the utterances, put them in order, shuffle all their frames."""
    drawn = stream(7, "subset").permutation(len(LENGTHS)).tolist()
    subset = drawn[: round(share * len(LENGTHS))]
    said = stream(7, "utterance order", stage).permutation(subset).tolist()
    rows = [START[u] + at for u in said for at in range(LENGTHS[u])]
    shuffled = stream(7, "frame order", stage, 0).permutation(rows).tolist()
    whole = len(shuffled) // minibatch * minibatch
    return [shuffled[at : at + minibatch] for at in range(0, whole, minibatch)]


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(("share", "minibatch"), [(1.0, 3), (1.0, 5), (0.5, 2)])
def test_minibatches_are_shuffled_frames_of_the_utterances_that_were_drawn(stage, share, minibatch):
    ours, expected = order(stage, share, minibatch), by_hand(stage, share, minibatch)
    assert ours.steps == ours.folds == len(expected)
    assert [ours.rows(step).tolist() for step in range(ours.steps)] == expected


def test_the_chunk_of_a_search_changes_no_minibatch(configure, corpus):
    train, schedule = corpus.split("train"), Search(0.02)
    one, other = (
        configure(schedule=schedule, chunk=chunk).order(0, train) for chunk in (0.05, 1.0)
    )
    keys = [(0, step) for step in range(one.steps)]
    assert (one.rows_of(keys) == other.rows_of(keys)).all()


def test_a_minibatch_is_of_its_step_whoever_the_worker():
    ours = order()
    dealt = ours.rows_of([(2, 5), (0, 1), (9, 5)])
    assert dealt.tolist() == [ours.rows(5).tolist(), ours.rows(1).tolist(), ours.rows(5).tolist()]


def in_slots_by_hand(frames, slots):
    """The same frame by frame: a list of utterances, and what is left of each slot's."""
    waiting = [list(range(sum(frames[:i]), sum(frames[: i + 1]))) for i in range(len(frames))]
    places, found = [[] for _ in range(slots)], []
    while True:
        for place in places:
            if not place and waiting:
                place.extend(waiting.pop(0))
        if not all(places):
            return found
        found += [place.pop(0) for place in places]


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 9])
def test_on_the_fly_each_slot_gives_a_frame_of_its_own_utterance(slots):
    frames = LENGTHS.tolist()
    assert interleave_slots(np.array(frames), slots).tolist() == in_slots_by_hand(frames, slots)


def test_without_shuffling_a_minibatch_has_frames_that_follow_one_another():
    order = Order(7, 0, START, LENGTHS, 2, 1.0, 1, "none")
    for step in range(order.steps):
        first, second = order.rows(step).tolist()
        assert second == first + 1 or second in START


def test_on_the_fly_no_minibatch_has_two_frames_of_one_utterance():
    order = Order(7, 0, START, LENGTHS, 3, 1.0, 1, "on the fly")
    belongs = np.repeat(np.arange(len(START)), LENGTHS)
    assert order.steps > 0
    for step in range(order.steps):
        assert len(set(belongs[order.rows(step)])) == 3
