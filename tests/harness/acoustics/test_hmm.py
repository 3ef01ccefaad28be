import itertools

import numpy as np
import pytest

from harness.acoustics.hmm import chain_scores, chains, stay_probabilities
from harness.base.seeds import stream


def word_scores(loglik, lexicon, silence=()):
    """Best-walk score of every word of a lexicon."""
    laid = chains(lexicon, silence)
    return dict(zip(laid.words, chain_scores(loglik, laid).tolist(), strict=True))


def every_walk(frames, states):
    """All ways to give each of the states at least one of the frames, in order."""
    for cuts in itertools.combinations(range(1, frames), len(states) - 1):
        stays = np.diff([0, *cuts, frames])
        yield np.repeat(states, stays)


def brute_force(loglik, states, silence=()):
    ends = [(), silence] if silence else [()]
    walks = [
        walk
        for before in ends
        for after in ends
        for walk in every_walk(len(loglik), [*before, *states, *after])
    ]
    return max(loglik[np.arange(len(walk)), walk].sum() for walk in walks)


def random_scores(seed, frames, targets):
    return stream(seed, "scores").normal(size=(frames, targets))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("silence", [(), (0, 1)])
def test_every_word_scores_as_its_best_walk(seed, silence):
    loglik = random_scores(seed, 8, 7)
    lexicon = {"one": (2,), "two": (3, 4), "three": (5, 6, 5), "four": (2, 3, 4, 5)}
    scores = word_scores(loglik, lexicon, silence)
    for word, states in lexicon.items():
        assert scores[word] == pytest.approx(brute_force(loglik, states, silence), rel=1e-14)


def test_a_word_longer_than_the_utterance_scores_minus_infinity():
    scores = word_scores(np.zeros((2, 4)), {"short": (0, 1), "long": (0, 1, 2)})
    assert scores == {"short": 0.0, "long": -np.inf}


def test_scores_do_not_depend_on_number_type_or_memory_order():
    loglik = random_scores(1, 20, 6).astype(np.float32)
    words = chains({"a": (1, 2, 3), "b": (4, 5)}, (0,))
    rows = chain_scores(loglik, words)
    assert (rows == chain_scores(np.asfortranarray(loglik), words)).all()
    assert (rows == chain_scores(loglik.astype(np.float64), words)).all()


def test_staying_is_counted_within_utterances_only():
    targets = np.array([0, 0, 0, 1, 1, 1, 2])
    # Utterances of 4 and 3 frames: target 1 ends the first and begins the second.
    found = stay_probabilities(targets, np.array([0, 4]), 4)
    assert found.tolist() == [3 / 5, 2 / 5, 1 / 3, 1 / 2]


def test_the_estimate_finds_the_chances_that_frames_were_drawn_with():
    draw = stream(0, "stays")
    true = np.array([0.9, 0.5, 0.7])
    visits = np.tile([0, 1, 2], 20_000)
    targets = np.repeat(visits, draw.geometric(1 - true[visits]))
    found = stay_probabilities(targets, np.array([0]), 3)
    np.testing.assert_allclose(found, true, atol=0.005)
