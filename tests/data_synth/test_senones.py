import numpy as np

from data_synth.continuous import families, tie
from data_synth.invented_language import Recipe, invent_language


def test_families_are_the_groups_that_lie_together():
    places = np.array([[0.0, 0.0], [9.0, 9.0], [0.1, 0.0], [9.0, 9.1], [0.0, 5.0]])
    label = families(places, 3)
    assert label[0] == label[2]
    assert label[1] == label[3]
    assert len(set(label.tolist())) == 3


def test_without_families_targets_are_those_of_isolated_words():
    recipe = Recipe(phones=6)
    language = invent_language(recipe)
    made = tie(recipe, language.places, 0, 0.5)
    assert made.tree.n_targets == len(made.places) == 3 + 18
    assert (made.places == language.places).all()
    assert not made.tree.nodes


def test_pull_moves_every_leaf_away_from_its_untied_place():
    recipe = Recipe(phones=6)
    language = invent_language(recipe)
    near, far = (tie(recipe, language.places, 2, pull) for pull in (0.1, 1.0))
    assert near.tree == far.tree
    middle = far.tree.roots["ba"][1]
    gaps = [np.linalg.norm(m.places[~middle] - language.places[4]) for m in (near, far)]
    np.testing.assert_allclose(gaps[1], 10 * gaps[0])
