import math

import numpy as np
import pytest

from harness.acoustics.decoder import EVERYTHING, lattice
from harness.acoustics.graph import decoding_graph, transcript_graph
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.lattice import posteriors
from harness.acoustics.sums import occupancies
from harness.base.seeds import stream


def test_log_z_and_occupancies_equal_the_sums_over_all_paths(task):
    log_z, gamma = occupancies(task.graph, task.scores)
    assert log_z == pytest.approx(task.log_z, abs=1e-12)
    np.testing.assert_allclose(gamma, task.gamma, atol=1e-12)


def test_scores_beyond_the_range_of_a_double_are_summed_on_logarithms():
    """The best path looks hopeless from either end: e^-1500 behind at first, ahead at last."""
    model = train([("a",)], 1)
    graph = transcript_graph(("a",), model, Lexicon({"a": ((0, 1),)}))
    scores = np.array([[0.0, 0.0], [0.0, -900.0], [0.0, -900.0], [-3000.0, 0.0], [-3000.0, 0.0]])
    scores = np.vstack([scores, scores])
    log_z, gamma = occupancies(graph, scores)
    paths = [scores[:n, 0].sum() + scores[n:, 1].sum() for n in range(1, 10)]
    weight = model.log_prob("a") + model.log_prob("</s>")
    assert log_z == pytest.approx(np.logaddexp.reduce(paths) + weight, abs=1e-9)
    log_sum, exact = posteriors(lattice(graph, scores, EVERYTHING), 2)
    assert log_z == pytest.approx(log_sum, abs=1e-9)
    np.testing.assert_allclose(gamma, exact, atol=1e-12)
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0, 3000.0])
def test_however_far_scores_differ_every_frame_is_somewhere(spread):
    draw = stream(0, "spread")
    words = {f"w{i}": (tuple(draw.integers(0, 8, 3).tolist()),) for i in range(9)}
    graph = decoding_graph(train([tuple(words)], 1), Lexicon(words))
    scores = spread * draw.normal(size=(40, 8))
    log_z, gamma = occupancies(graph, scores)
    log_sum, exact = posteriors(lattice(graph, scores, EVERYTHING), 8)
    assert log_z == pytest.approx(log_sum, rel=1e-13, abs=1e-10)
    np.testing.assert_allclose(gamma, exact, atol=1e-9)
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0, atol=1e-12)


def test_where_no_path_fits_there_is_no_weight_and_no_occupancy():
    graph = decoding_graph(train([("a",)], 1), Lexicon({"a": ((0, 1, 2),)}))
    log_z, gamma = occupancies(graph, np.zeros((2, 3)))
    assert log_z == -math.inf
    assert not gamma.any()


def test_a_target_that_cannot_be_is_never_occupied(task):
    scores = task.scores.copy()
    scores[:, 4] = -math.inf
    log_z, gamma = occupancies(task.graph, scores)
    possible = [p.weight for p in task.paths if 4 not in p.targets]
    assert log_z == pytest.approx(np.logaddexp.reduce(possible), abs=1e-12)
    assert not gamma[:, 4].any()


def test_scores_that_are_not_numbers_are_refused(task):
    with pytest.raises(ValueError, match="NaN"):
        occupancies(task.graph, np.full_like(task.scores, math.nan))
