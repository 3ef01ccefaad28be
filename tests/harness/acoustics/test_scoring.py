import jiwer
import kaldialign
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.acoustics.scoring import edits, word_errors
from harness.judge.utterances import rate_ci

SENTENCES = st.lists(st.sampled_from("abc"), max_size=6)


def every_alignment(reference, hypothesis):
    """The edits of every way to align two sentences."""
    if not reference and not hypothesis:
        yield 0, 0, 0
    if reference and hypothesis:
        wrong = int(reference[0] != hypothesis[0])
        for s, i, d in every_alignment(reference[1:], hypothesis[1:]):
            yield s + wrong, i, d
    if hypothesis:
        for s, i, d in every_alignment(reference, hypothesis[1:]):
            yield s, i + 1, d
    if reference:
        for s, i, d in every_alignment(reference[1:], hypothesis):
            yield s, i, d + 1


@settings(max_examples=60)
@given(SENTENCES.filter(lambda s: len(s) < 4), SENTENCES.filter(lambda s: len(s) < 4))
def test_edits_are_the_fewest_of_every_alignment_with_most_substitutions(reference, hypothesis):
    best = min(every_alignment(reference, hypothesis), key=lambda e: (sum(e), -e[0]))
    assert edits(reference, hypothesis) == best


@settings(max_examples=100)
@given(SENTENCES, SENTENCES)
def test_kaldialign_and_jiwer_count_as_many(reference, hypothesis):
    total = sum(edits(reference, hypothesis))
    assert kaldialign.edit_distance(reference, hypothesis)["total"] == total
    if reference:
        rate = jiwer.wer(" ".join(reference), " ".join(hypothesis))
        assert word_errors([reference], [hypothesis]).rate == pytest.approx(rate, rel=1e-14)


def test_counts_of_a_set_go_into_the_judges_intervals():
    said = [("a", "b"), ("c",), ("a", "a", "b")]
    heard = [("a", "b"), ("c", "c"), ("b",)]
    found = word_errors(said, heard)
    assert found.errors.tolist() == [0, 1, 2]
    assert found.lengths.tolist() == [2, 1, 3]
    assert found.rate == 0.5
    assert rate_ci(found.errors[None], found.lengths).estimate == 0.5


def test_every_reference_needs_its_hypothesis():
    with pytest.raises(ValueError, match="zip"):
        word_errors([("a",)], [])
