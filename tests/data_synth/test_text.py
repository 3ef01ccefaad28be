from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from data_synth.invented_language import Manner, invent_bigram
from harness.base.seeds import stream


def test_successors_are_a_distribution_and_the_stationary_one_stays():
    text = invent_bigram(0, 30, Manner())
    matrix = np.stack([text.successors(v) for v in range(30)])
    np.testing.assert_allclose(matrix.sum(1), 1.0, rtol=1e-12)
    pi = text.stationary()
    np.testing.assert_allclose(pi @ matrix, pi, rtol=1e-9)


def test_without_habit_the_entropy_is_that_of_zipfs_law():
    text = invent_bigram(0, 64, Manner(habit=0.0, zipf=0.0))
    assert text.entropy_bits() == pytest.approx(6.0, rel=1e-12)


def test_the_stated_entropy_is_what_a_long_text_costs():
    text = invent_bigram(3, 20, Manner(habit=0.6, favourites=3, sentence_words=(400, 400)))
    bits = []
    for i in range(40):
        words = text.sentence(stream(3, "test text", i))
        bits += [-np.log2(text.successors(v)[w]) for v, w in pairwise(words)]
    assert np.mean(bits) == pytest.approx(text.entropy_bits(), abs=4 * np.std(bits) / 16_000**0.5)


def test_habit_lowers_the_entropy():
    bits = [invent_bigram(0, 50, Manner(habit=h)).entropy_bits() for h in (0.0, 0.5, 0.9)]
    assert bits[0] > bits[1] > bits[2]


def test_lengths_are_those_asked_for():
    text = invent_bigram(0, 10, Manner(sentence_words=(2, 4)))
    lengths = Counter(len(text.sentence(stream(0, "lengths", i))) for i in range(300))
    assert set(lengths) == {2, 3, 4}
    assert min(lengths.values()) > 60
