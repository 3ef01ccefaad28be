import numpy as np
import pytest
from scipy.stats import norm

from data_synth.tree import SILENCE, counts_of, grow, questions, statistics_of
from harness.base.seeds import stream

STATES = {SILENCE: 1, "a": 1, "b": 1, "c": 1}
ASKED = [(SILENCE,), ("a",), ("b",), ("c",), ("a", "b")]


def heard(seed=0):
    """Frames of phone a whose sound depends on whether the phone to its left is c."""
    rng = stream(seed, "tying")
    found = {}
    for left in ("a", "b", "c", SILENCE):
        for right in ("b", SILENCE):
            x = rng.normal(size=(50, 3)) + (4.0 if left == "c" else 0.0)
            found[left, right] = x
    return found


def statistics(frames):
    return {("a", 0): {context: counts_of(x) for context, x in frames.items()}}


def test_a_likelihood_is_that_of_the_fitted_gaussian():
    x = stream(1, "gauss").normal(size=(40, 3))
    expected = norm.logpdf(x, x.mean(0), x.std(0)).sum()
    assert counts_of(x).loglik == pytest.approx(expected, rel=1e-12)
    halves = counts_of(x[:13]) + counts_of(x[13:])
    assert halves.loglik == pytest.approx(expected, rel=1e-12)


def test_the_first_question_is_the_one_that_gains_most_of_all():
    frames = heard()
    tree = grow(statistics(frames), ASKED, STATES, leaves=5, least_frames=10)
    gains = {}
    everything = counts_of(np.concatenate(list(frames.values()))).loglik
    for at, side in enumerate(("left", "right")):
        for phones in ASKED:
            parts = [
                [x for c, x in frames.items() if (c[at] in phones) == answer]
                for answer in (True, False)
            ]
            if all(parts):
                gains[side, phones] = (
                    sum(counts_of(np.concatenate(p)).loglik for p in parts) - everything
                )
    assert tree.nodes[0][:2] == max(gains, key=gains.get) == ("left", ("c",))
    assert tree("c", "a", "b", 0) != tree("b", "a", "b", 0)
    assert tree.n_targets == 5


def test_silence_has_the_first_targets_and_no_questions():
    tree = grow(statistics(heard()), ASKED, {**STATES, SILENCE: 2}, leaves=9, least_frames=10)
    assert tree.roots[SILENCE] == (~0, ~1)


def test_every_target_is_reached_once():
    tree = grow(statistics(heard()), ASKED, STATES, leaves=8, least_frames=10)
    ends = [at for states in tree.roots.values() for at in states]
    ends += [at for node in tree.nodes for at in node[2:]]
    assert sorted(~at for at in ends if at < 0) == list(range(tree.n_targets))
    assert sorted(at for at in ends if at >= 0) == list(range(len(tree.nodes)))


def test_a_split_leaves_enough_frames_on_both_sides():
    tree = grow(statistics(heard()), ASKED, STATES, leaves=100, least_frames=150)
    assert tree.n_targets == 5
    assert grow(statistics(heard()), ASKED, STATES, 100, least_frames=201).n_targets == 4


def test_questions_are_the_phones_and_their_clusters():
    means = {name: np.array([x]) for name, x in (("a", 0.0), ("b", 0.1), ("c", 5.0), ("d", 5.1))}
    assert questions(means) == [
        ("sil",), ("a",), ("b",), ("c",), ("d",),
        *sorted([("a", "b"), ("c", "d")], key=questions(means).index),
    ]  # fmt: skip


def test_statistics_are_gathered_by_state_and_context():
    x = np.arange(12.0).reshape(6, 2)
    runs = [(0, 2, "a", "b", "c", 0), (2, 3, "b", "c", "sil", 0), (3, 6, "a", "b", "c", 0)]
    found = statistics_of(x, runs)
    own = found["b", 0]["a", "c"]
    assert own.frames == 5
    assert own.first.tolist() == x[[0, 1, 3, 4, 5]].sum(0).tolist()
    assert set(found) == {("b", 0), ("c", 0)}
