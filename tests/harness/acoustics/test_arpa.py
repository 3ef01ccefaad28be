import math

import pytest

from harness.acoustics.language_model import BEGIN, UNKNOWN, read_arpa, train
from harness.base.errors import UserError
from tests.arpa_files import write_arpa

BIGRAM = """Made by hand.

\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-99\t<s>\t-0.5
-1.0\t</s>
-0.25 yes -0.3
-0.75\tno

\\2-grams:
-0.1 <s> yes
-0.2 yes </s>

\\end\\
"""


def written(tmp_path, text, name="lm.arpa"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_means_what_its_back_off_rule_says(tmp_path):
    model = read_arpa(written(tmp_path, BIGRAM))
    ten = math.log(10)
    assert model.order == 2
    assert model.words == ("yes", "no")
    assert model.log_prob("yes", (BEGIN,)) == pytest.approx(-0.1 * ten, rel=1e-15)
    assert model.log_prob("no", (BEGIN,)) == pytest.approx((-0.5 - 0.75) * ten, rel=1e-15)
    assert model.log_prob("no", ("yes",)) == pytest.approx((-0.3 - 0.75) * ten, rel=1e-15)
    assert model.log_prob("no", ("no",)) == pytest.approx(-0.75 * ten, rel=1e-15)
    assert model.log_prob(BEGIN) == -math.inf


def test_without_unk_an_unknown_word_is_impossible(tmp_path):
    model = read_arpa(written(tmp_path, BIGRAM))
    assert model.log_prob("perhaps", ("yes",)) == -math.inf
    assert model.log_prob(UNKNOWN) == -math.inf


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
def test_a_model_comes_back_from_its_file(tmp_path, name):
    model = train([("a", "b"), ("b", "ç"), ("a",), ("b", "b", "a")], 3)
    write_arpa(model, tmp_path / name)
    back = read_arpa(tmp_path / name)
    assert back.order == 3
    assert set(back.words) == set(model.words)
    assert dict(back.log_probs) == pytest.approx(dict(model.log_probs), rel=1e-11)
    assert dict(back.backoffs) == pytest.approx(dict(model.backoffs), rel=1e-11)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("\\end\\", "", "without a line"),
        ("ngram 2=2", "ngram 2=3", "announces 3 n-grams of order 2, holds 2"),
        ("ngram 2=2\n", "", "not all announced"),
        ("-0.75\tno", "x\tno", "line 11: 'x'; a base-10 logarithm"),
        ("-0.75\tno", "nan\tno", "line 11: 'nan'; a finite"),
        ("-0.1 <s> yes", "-0.1 yes", "line 14: '-0.1 yes'; allowed"),
        ("ngram 2=2", "ngram 2=two", "line 5: 'two'; a whole number"),
        ("\\2-grams:", "\\two-grams:", "line 13: 'two'; a whole number"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path, old, new, complaint):
    path = written(tmp_path, BIGRAM.replace(old, new))
    with pytest.raises(UserError) as caught:
        read_arpa(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_compressed_and_foreign_bytes_are_one_line_each(tmp_path):
    (tmp_path / "latin.arpa").write_bytes("\\data\\ é".encode("latin-1"))
    (tmp_path / "plain.gz").write_bytes(b"not compressed")
    for name, complaint in (
        ("absent", "cannot be read"),
        ("latin.arpa", "UTF-8"),
        ("plain.gz", "cannot be read"),
    ):
        with pytest.raises(UserError, match=complaint):
            read_arpa(tmp_path / name)
