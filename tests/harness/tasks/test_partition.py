import numpy as np
import pytest

from harness.base.errors import UserError
from harness.tasks.order import Partition, balance_pieces, row_numbers

FRAMES = np.array([7, 3, 9, 4, 6, 5, 8, 2])
START = np.cumsum(FRAMES) - FRAMES


def shards(**choices) -> Partition:
    standard = {"workers": 3, "minibatch": 2, "every": 2, "stage": 0}
    return Partition(seed=5, start=START, lengths=FRAMES, **{**standard, **choices})


def seen(part: Partition, worker: int) -> list[int]:
    steps = range(part.steps)
    return np.concatenate([part.rows_of([(worker, step)])[0] for step in steps]).tolist()


def test_utterances_go_longest_first_to_the_worker_with_the_fewest_frames():
    dealt = balance_pieces(FRAMES, np.arange(8), 3)
    assert [own.tolist() for own in dealt] == [[2, 3, 1], [6, 5, 7], [0, 4]]


def test_rows_of_utterances_follow_each_other():
    chosen = np.array([2, 1])
    expected = [*range(10, 19), *range(7, 10)]
    assert row_numbers(START[chosen], FRAMES[chosen]).tolist() == expected


def test_all_stop_after_the_rounds_that_the_smallest_part_fills():
    part = shards()
    assert [sum(FRAMES[own]) for own in balance_pieces(FRAMES, np.arange(8), 3)] == [16, 15, 13]
    assert (part.folds, part.steps) == (3, 6)


def test_nobody_sees_a_frame_twice_in_a_pass_or_one_of_another():
    part = shards()
    frames = [seen(part, worker) for worker in range(3)]
    assert all(len(set(own)) == 12 for own in frames)
    for own, utterances in zip(frames, balance_pieces(FRAMES, np.arange(8), 3), strict=True):
        assert set(own) <= set(row_numbers(START[utterances], FRAMES[utterances]).tolist())


def test_a_worker_keeps_its_part_and_shuffles_it_anew_for_every_pass():
    one, two = shards(minibatch=1, every=13), shards(minibatch=1, every=13, stage=1)
    assert set(seen(one, 2)) == set(seen(two, 2))
    assert seen(one, 2) != seen(two, 2)
    assert seen(one, 2) != sorted(seen(one, 2))


def test_many_workers_minibatches_are_dealt_at_once():
    part = shards()
    together = part.rows_of([(2, 1), (0, 4)])
    assert together.shape == (2, 2)
    alone = [part.rows_of([key])[0].tolist() for key in ((2, 1), (0, 4))]
    assert together.tolist() == alone


def test_more_workers_than_the_frames_can_feed_are_refused_in_one_line():
    with pytest.raises(UserError, match="workers: 4 leave one of them 11 frames"):
        shards(workers=4, every=6)
    with pytest.raises(UserError, match="workers: 9 leave one of them 0 frames"):
        shards(workers=9)
