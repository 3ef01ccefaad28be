import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.acoustics.language_model import BEGIN, END, UNKNOWN, train

TEXT = ("a b a", "a c", "b a b a c", "c c a b", "a b c", "b", "d a")
SENTENCES = [tuple(line.split()) for line in TEXT]
WORDS = ("a", "b", "c", "d", END, UNKNOWN)


def padded():
    return [(BEGIN, *words, END) for words in SENTENCES]


def count(gram):
    """Occurrences in the text, by looking at every place; <s> is never counted as predicted."""
    n = len(gram)
    return sum(
        said[i : i + n] == gram for said in padded() for i in range(len(said) - n + 1) if i + n > 1
    )


def kneser_ney(word, history, order):
    """Chen and Goodman's equations, on counts found by scanning the text."""
    vocabulary = (BEGIN, *WORDS)

    def c(gram):
        if len(gram) == order or gram[0] == BEGIN:
            return count(gram)
        return sum(count((v, *gram)) > 0 for v in vocabulary)

    n = len(history)
    below = kneser_ney(word, history[1:], order) if n else 1 / len(WORDS)
    every = [c(gram) for gram in product(vocabulary, repeat=n + 1) if gram[-1] != BEGIN]
    ones, twos = every.count(1), every.count(2)
    discount = ones / (ones + 2 * twos) if ones and twos else 0.5
    counts = [c((*history, w)) for w in WORDS]
    total, kinds = sum(counts), sum(x > 0 for x in counts)
    if not total:
        return below
    return max(c((*history, word)) - discount, 0) / total + discount * kinds / total * below


def histories(order):
    for n in range(order):
        yield from product(("a", "b", "c", "d", UNKNOWN), repeat=n)
        if n:
            yield from ((BEGIN, *rest) for rest in product("abcd", repeat=n - 1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_kneser_ney_is_its_equations_on_scanned_counts(order):
    model = train(SENTENCES, order)
    for history in histories(order):
        for word in WORDS:
            expected = math.log(kneser_ney(word, history, order))
            assert model.log_prob(word, history) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_after_every_history_the_probabilities_sum_to_one(text, order):
    model = train(text, order)
    for history in {(), *model.backoffs}:
        total = sum(math.exp(model.log_prob(w, history)) for w in (*model.words, END, UNKNOWN))
        assert total == pytest.approx(1.0, abs=1e-12)


def test_words_outside_the_vocabulary_are_counted_and_scored_as_unknown():
    model = train(SENTENCES, 2, vocabulary=("a", "b"))
    assert model.words == ("a", "b")
    assert model.log_prob("never heard", ("a",)) == model.log_prob(UNKNOWN, ("a",))
    assert model.log_prob("c", ("d",)) == model.log_prob(UNKNOWN, (UNKNOWN,))
    assert model.log_prob("c", ("a",)) > train(SENTENCES, 2).log_prob("zebra", ("a",))


def test_words_of_the_vocabulary_that_were_never_said_can_be():
    model = train(SENTENCES, 2, vocabulary=("a", "b", "c", "d", "e"))
    assert math.isfinite(model.log_prob("e", ("a",)))
    assert model.log_prob("e") == model.log_prob(UNKNOWN)


def test_only_the_last_words_of_a_history_count():
    model = train(SENTENCES, 2)
    assert model.log_prob("a", ("c", "c", "b")) == model.log_prob("a", ("b",))


@pytest.mark.parametrize(("text", "order"), [([], 2), ([("<s>",)], 2), ([("a",)], 0)])
def test_no_text_marks_as_words_and_order_zero_are_refused(text, order):
    with pytest.raises(ValueError, match=r"allowed|no text"):
        train(text, order)
