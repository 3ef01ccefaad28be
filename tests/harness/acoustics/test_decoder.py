import math

import numpy as np
import pytest

from harness.acoustics.decoder import EVERYTHING, Beam, _arguments, _search, decode, lattice
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon, train
from tests.harness.acoustics.conftest import random_task


def test_the_best_path_is_the_best_of_all_paths(task):
    found, best = decode(task.graph, task.scores, EVERYTHING), task.best
    assert found.complete
    assert found.words == best.words
    assert tuple(zip(found.start, found.end, strict=True)) == best.times
    assert tuple(found.targets.tolist()) == best.targets
    assert found.score == pytest.approx(best.weight, abs=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(8))
def test_the_best_path_is_the_best_of_all_paths_of_other_scores(task_of, seed):
    task = task_of(2, (0,), 5, seed)
    found = decode(task.graph, task.scores)
    assert (found.words, found.score) == (task.best.words, pytest.approx(task.best.weight))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_no_beam_finds_a_better_path_than_the_exhaustive_search(order):
    graph, scores = random_task(order=order)
    best = decode(graph, scores, EVERYTHING).score
    for beam in (Beam(2.0), Beam(8.0), Beam(30.0), Beam(30.0, max_active=5)):
        assert decode(graph, scores, beam).score <= best + 1e-9
    assert decode(graph, scores, Beam(60.0)).score == best


def test_single_precision_scores_give_the_same_words():
    graph, scores = random_task()
    single = decode(graph, scores.astype(np.float32))
    assert single.words == decode(graph, scores).words
    assert single.score == pytest.approx(decode(graph, scores).score, rel=1e-6)


def test_a_tight_limit_on_states_still_ends_in_a_path():
    graph, scores = random_task()
    assert decode(graph, scores, Beam(1000.0, max_active=8)).targets.shape == (60,)


def too_short():
    """Two frames for words of four states, without silence: the end cannot be reached."""
    model = train([("a",), ("a", "a")], 1, vocabulary=("a", "b"))
    lexicon = Lexicon({"a": ((0, 1, 2, 3),), "b": ((3, 2, 1, 0),)})
    scores = np.array([[0.0, 0, 0, -1], [0, 0, -1, -1.0]])
    return decoding_graph(model, lexicon), scores


def test_without_a_token_at_the_end_the_best_beginning_is_returned_as_incomplete():
    found = decode(*too_short())
    assert not found.complete
    assert found.words == ("a",)
    assert (found.start, found.end) == ((0,), (2,))
    assert found.targets.tolist() in ([0, 0], [0, 1])


def test_without_a_token_at_the_end_the_lattice_is_empty():
    assert lattice(*too_short()).empty


def test_frames_that_no_path_survives_cut_the_beginning_short():
    graph, scores = too_short()
    blocked = np.vstack([scores, [[-math.inf, -math.inf, -math.inf, 0.0]]])
    blocked[1, 2] = -math.inf  # so no path is in 2 when only 3 is possible
    found = decode(graph, blocked, EVERYTHING)
    assert not found.complete
    assert len(found.targets) <= 3
    assert lattice(graph, blocked, EVERYTHING).empty


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scores_that_are_not_numbers_are_refused(bad):
    graph, scores = random_task(frames=3)
    scores[1, 2] = bad
    for search in (decode, lattice):
        with pytest.raises(ValueError, match="NaN"):
            search(graph, scores)
    with pytest.raises(ValueError, match="shape"):
        decode(graph, scores[:0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("gain", [-50.0, 50.0])
def test_what_every_score_of_a_frame_gains_changes_no_path_under_any_beam(task_of, gain):
    for seed in range(4):
        task = task_of(2, (0,), 5, seed)
        gained = task.scores + gain * np.arange(1, 6)[:, None]
        for width in (0.5, 2.0, 6.0):
            one, other = (
                decode(task.graph, scores, Beam(width)) for scores in (task.scores, gained)
            )
            assert (other.words, other.complete) == (one.words, one.complete)
            assert other.targets.tolist() == one.targets.tolist()
            assert other.score == pytest.approx(one.score + gain * 15)


@pytest.mark.parametrize("most", [1, 10, 30])
def test_of_too_many_states_the_best_survive_and_those_that_tie_with_the_last(most):
    graph, scores = random_task()
    scores[10:] = np.round(scores[10:])  # so that many tie
    tokens = _search(*_arguments(graph, scores, Beam(1000.0, most)))
    node, score, layer_first = tokens[0], tokens[1], tokens[4]
    for layer in range(1, len(scores)):
        here = slice(layer_first[layer], layer_first[layer + 1])
        states = np.sort(score[here][node[here] < graph.states])
        assert len(states) == most or (len(states) > most and states[0] == states[-most])
