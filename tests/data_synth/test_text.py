from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from data_synth.invented_language import Manner, invent_bigram
from harness.base.seeds import stream


def law_of(text):
    """P(w | v) of a bigram, float64 [words, words]."""
    rows = np.tile((1.0 - text.manner.habit) * text.often, (len(text.often), 1))
    for row, favourites in zip(rows, text.next, strict=True):
        np.add.at(row, favourites, text.manner.habit * text.weights)
    return rows


def entropy_bits(text):
    """Bits a word of a long text: −Σ_v π(v) Σ_w P(w|v) log2 P(w|v), where π = π P."""
    law = law_of(text)
    stays = np.vstack([law.T - np.eye(len(law)), np.ones(len(law))])
    pi = np.linalg.lstsq(stays, np.append(np.zeros(len(law)), 1.0), rcond=None)[0]
    return float(pi @ -(law * np.log2(law)).sum(axis=1))


def test_without_habit_the_entropy_is_that_of_zipfs_law():
    text = invent_bigram(0, 64, Manner(habit=0.0, zipf=0.0))
    assert entropy_bits(text) == pytest.approx(6.0, rel=1e-12)


def test_the_stated_entropy_is_what_a_long_text_costs():
    text = invent_bigram(3, 20, Manner(habit=0.6, favourites=3, sentence_words=(400, 400)))
    law, bits = law_of(text), []
    for i in range(40):
        words = text.sentence(stream(3, "test text", i))
        bits += [-np.log2(law[v, w]) for v, w in pairwise(words)]
    assert np.mean(bits) == pytest.approx(entropy_bits(text), abs=4 * np.std(bits) / 16_000**0.5)


def test_lengths_are_those_asked_for():
    text = invent_bigram(0, 10, Manner(sentence_words=(2, 4)))
    lengths = Counter(len(text.sentence(stream(0, "lengths", i))) for i in range(300))
    assert set(lengths) == {2, 3, 4}
    assert min(lengths.values()) > 60
