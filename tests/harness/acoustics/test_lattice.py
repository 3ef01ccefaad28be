import math

import numpy as np
import pytest

from harness.acoustics.decoder import EVERYTHING, Beam, decode, lattice
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.lattice import posteriors, prune_lattice, read_path
from harness.acoustics.sums import occupancies
from tests.harness.acoustics.conftest import random_task


def best_path(lat):
    """The heaviest path."""
    ends = [(-math.inf, [])] * len(lat.node)
    ends[0] = 0.0, []
    for i, (score, arcs) in enumerate(ends):
        for a in range(lat.first[i], lat.first[i + 1]):
            there = score + lat.score[a], [*arcs, int(lat.arc[a])]
            ends[lat.to[a]] = max(ends[lat.to[a]], there, key=lambda end: end[0])
    score, arcs = ends[-1]
    return read_path(lat.graph, np.array(arcs, np.int64), score)


def lattice_paths(lat):
    """Every path of a lattice by walking it: (score, words, arcs)."""

    def onwards(i):
        if i == len(lat.node) - 1:
            yield 0.0, (), ()
        for a in range(lat.first[i], lat.first[i + 1]):
            label = lat.graph.label[lat.arc[a]]
            word = () if label < 0 else (lat.graph.words[label],)
            for score, words, arcs in onwards(lat.to[a]):
                yield lat.score[a] + score, word + words, (a, *arcs)

    return list(onwards(0))


def edits(a, b):
    """Levenshtein distance by its definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(edits(a[1:], b) + 1, edits(a, b[1:]) + 1, edits(a[1:], b[1:]) + (a[0] != b[0]))


def test_an_unpruned_lattice_holds_exactly_the_paths_of_the_enumeration(task):
    found = sorted(
        (score, words)
        for score, words, _ in lattice_paths(lattice(task.graph, task.scores, EVERYTHING))
    )
    expected = sorted((p.weight, p.words) for p in task.paths)
    assert [w for _, w in found] == [w for _, w in expected]
    np.testing.assert_allclose([s for s, _ in found], [s for s, _ in expected], atol=1e-12)


def test_log_z_and_occupancies_equal_the_sums_over_all_paths(task):
    log_z, gamma = posteriors(lattice(task.graph, task.scores, EVERYTHING), 6)
    assert log_z == pytest.approx(task.log_z, abs=1e-12)
    np.testing.assert_allclose(gamma, task.gamma, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_with_an_infinite_beam_posteriors_equal_the_full_forward_backward(order):
    graph, scores = random_task(20, 50, order, 10)
    log_z, gamma = posteriors(lattice(graph, scores, EVERYTHING), 10)
    full_z, full = occupancies(graph, scores)
    assert log_z == pytest.approx(full_z, abs=1e-10)
    np.testing.assert_allclose(gamma, full, atol=1e-10)


@pytest.mark.parametrize("beam", [1.0, 3.0, math.inf])
def test_pruning_keeps_what_lies_on_a_path_within_the_beam_and_nothing_else(task, beam):
    whole = lattice(task.graph, task.scores, EVERYTHING)
    best = max(score for score, *_ in lattice_paths(whole))
    near = [p for p in lattice_paths(whole) if p[0] >= best - beam]
    kept = prune_lattice(whole, beam)
    assert len(kept.arc) == len({a for *_, arcs in near for a in arcs})
    scores = sorted(score for score, *_ in lattice_paths(kept))
    near_scores = sorted(score for score, *_ in near)
    np.testing.assert_allclose([s for s in scores if s >= best - beam], near_scores, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2])
def test_a_wider_beam_never_lowers_log_z_nor_exceeds_the_full_graph(order):
    graph, scores = random_task(20, 50, order, 10)
    full = occupancies(graph, scores)[0]
    beams = [Beam(w, 10**6, lat) for w, lat in ((4, 2), (8, 2), (8, 6), (15, 6), (30, 12))]
    found = [posteriors(lattice(graph, scores, beam), 10)[0] for beam in beams]
    assert found == sorted(found)
    assert found[-1] <= full + 1e-10
    assert found[-1] > full - 0.1


@pytest.mark.parametrize("beam", [Beam(5.0), Beam(12.0, 50, 4.0), EVERYTHING])
def test_occupancies_of_every_frame_sum_to_one(beam):
    graph, scores = random_task(20, 50, 2, 10)
    _, gamma = posteriors(lattice(graph, scores, beam), 10)
    np.testing.assert_allclose(gamma.sum(axis=1), 1.0, atol=1e-12)


def test_the_lattices_best_path_is_the_decoders(task):
    direct = decode(task.graph, task.scores, EVERYTHING)
    through = best_path(lattice(task.graph, task.scores, EVERYTHING))
    assert (through.words, through.start, through.end) == (direct.words, direct.start, direct.end)
    assert through.targets.tolist() == direct.targets.tolist()
    assert through.score == pytest.approx(direct.score, abs=1e-12)
    assert through.complete


def test_an_empty_lattice_has_no_weight_and_no_occupancy():
    model = train([("a",)], 1)
    graph = decoding_graph(model, Lexicon({"a": ((0, 1, 2),)}))
    lat = lattice(graph, np.zeros((2, 3)), EVERYTHING)
    log_z, gamma = posteriors(prune_lattice(lat), 3)
    assert log_z == -math.inf
    assert gamma.shape == (2, 3)
    assert not gamma.any()
