from harness.acoustics.language_model import Lexicon, variants, word_of


def test_a_second_pronunciation_belongs_to_its_word():
    assert [word_of(e) for e in ("the(2)", "the", "(2)", "f(x)", "a)")] == [
        "the", "the", "(2)", "f(x)", "a)",
    ]  # fmt: skip
    assert variants({"a": (), "the": (), "the(2)": ()}) == {"a": ("a",), "the": ("the", "the(2)")}


def test_entries_with_a_number_are_pronunciations_of_one_word():
    lexicon = Lexicon.from_entries({"either": (1, 2), "either(2)": (3,), "or": (4,)})
    assert lexicon.words == {"either": ((1, 2), (3,)), "or": ((4,),)}
