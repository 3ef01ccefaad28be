"""Where a stage is cut, and when nothing may be under way."""

from harness.algorithms.async_sgd import AsyncSgd, AveragedSgd
from harness.algorithms.schedules import Search
from harness.experiment.folds import Boundaries, Segment


def boundaries(config, corpus, stage=0) -> Boundaries:
    return Boundaries(config, config.order(stage, corpus.split("train")), stage)


def test_evaluations_leave_the_workers_running_until_the_last_stage_ends(configure, corpus):
    config = configure(algorithm=AsyncSgd(), evaluations=2)
    cut = boundaries(config, corpus, config.passes - 1)
    folds = cut.order.folds
    half = -(-folds // 2)
    assert list(cut.segments()) == [
        Segment(0, half, folds),
        Segment(half, folds, None),
    ]
    assert cut.evaluations == {half: 0.5, folds: 1.0}
    assert list(cut.segments(half)) == [Segment(half, folds, None)]


def test_a_search_begins_each_chunk_with_idle_workers(configure, corpus):
    searched = configure(algorithm=AsyncSgd(), schedule=Search(0.02), evaluations=1, chunk=0.5)
    cut = boundaries(searched, corpus)
    folds, chunk = cut.order.folds, cut.chunk_steps
    assert chunk == round(0.5 * corpus.frames_of("train") / cut.order.minibatch)
    first, *_, last = segments = list(cut.segments())
    assert all(segment.handing_out is None for segment in segments)
    assert first == Segment(0, chunk, None)
    assert last.ends == folds
    assert [cut.is_chunk(s.begins) for s in segments] == [True] * len(segments)


def test_a_server_in_shards_has_one_version_at_every_boundary(configure, corpus):
    cut = boundaries(configure(algorithm=AsyncSgd(), shards=2, evaluations=4), corpus)
    segments = list(cut.segments())
    assert len(segments) == 4
    assert all(segment.handing_out is None for segment in segments)
    assert sum(segment.folds for segment in segments) == cut.order.folds


def test_what_an_algorithm_considers_is_asked_as_often_whatever_is_read(configure, corpus):
    algorithm = AveragedSgd(considers=4)
    cut = boundaries(configure(algorithm=algorithm, evaluations=2), corpus)
    assert list(cut.considerations.values()) == [0.25, 0.5, 0.75, 1.0]
    assert cut.considerations.keys() <= {segment.ends for segment in cut.segments()}
    assert boundaries(configure(algorithm=AsyncSgd()), corpus).considerations == {}
