import numpy as np
import pytest

from harness.acoustics.decoder import EVERYTHING, decode, lattice
from harness.acoustics.graph import decoding_graph, transcript_graph
from harness.acoustics.language_model import Lexicon, train
from harness.acoustics.sums import occupancies
from harness.base.errors import UserError


def test_a_unigram_loop_has_one_arc_a_word_and_two_a_state():
    words = [f"w{i}" for i in range(50)]
    model = train([words], 1)
    graph = decoding_graph(model, Lexicon(dict.fromkeys(words, ((1, 2, 3),))))
    assert graph.states == 150
    assert graph.nodes == 152
    assert len(graph.to) == 2 * 150 + 50 + 1


def test_junctions_lead_to_later_junctions_of_a_higher_level(task):
    graph = task.graph
    for n in range(graph.nodes):
        between = graph.to[graph.split[n] : graph.first[n + 1]]
        assert (between >= graph.states).all()
        assert (graph.to[graph.first[n] : graph.split[n]] < graph.states).all()
        if n >= graph.states:
            assert (between > n).all()
            assert (graph.level[between] > graph.level[n]).all()
    assert (np.delete(graph.level, graph.end) < graph.level[graph.end]).all()


def test_arcs_to_states_are_sorted_the_heaviest_first(task):
    graph = task.graph
    for n in range(graph.nodes):
        assert (np.diff(graph.weight[graph.first[n] : graph.split[n]]) <= 0).all()


def test_a_transcript_sums_the_paths_that_say_it(task_of):
    task = task_of(1, (0,))
    for words in {p.words for p in task.paths}:
        graph = transcript_graph(words, task.model, task.lexicon)
        expected = np.logaddexp.reduce([p.weight for p in task.paths if p.words == words])
        assert occupancies(graph, task.scores)[0] == pytest.approx(expected, abs=1e-12)


def test_the_insertion_penalty_is_paid_for_every_word(task):
    for penalty, extreme in ((100.0, min), (-100.0, max)):
        found = decode(task.graph.with_insertion_penalty(penalty), task.scores, EVERYTHING)
        number = extreme(len(p.words) for p in task.paths)
        best = max(p.weight for p in task.paths if len(p.words) == number)
        assert len(found.words) == number
        assert found.score == pytest.approx(best - penalty * number, abs=1e-11)


def test_words_without_pronunciation_are_left_out():
    model = train([("a", "b"), ("b", "a")], 2)
    graph = decoding_graph(model, Lexicon({"a": ((0,),), "z": ((1,),)}))
    assert graph.words == ("a",)
    assert lattice(graph, np.zeros((3, 2)), EVERYTHING).frames == 3


def test_nothing_in_common_and_an_unknown_word_are_one_line_each():
    model = train([("a",)], 1)
    with pytest.raises(UserError, match="no word in common"):
        decoding_graph(model, Lexicon({"z": ((0,),)}))
    with pytest.raises(UserError, match="'q' is not in the lexicon"):
        transcript_graph(("q",), model, Lexicon({"a": ((0,),)}))
