import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from data_synth.corpus import Corpus
from data_synth.storage import load, save
from data_synth.tree import Tree, expand_lexicon, monophone_tree, tree_from
from harness.base.errors import UserError
from tests.stand_in import utterances

TREE = Tree(
    {"a": (0, ~2), "b": (~3, 1)},
    (("left", ("b",), ~0, ~1), ("right", ("a", "sil"), 2, ~4), ("left", ("a",), ~5, ~6)),
)


@pytest.mark.parametrize(
    ("context", "target"),
    [
        (("b", "a", "b", 0), 0), (("sil", "a", "b", 0), 1), (("b", "a", "b", 1), 2),
        (("a", "b", "a", 0), 3), (("a", "b", "b", 1), 4), (("a", "b", "sil", 1), 5),
        (("b", "b", "a", 1), 6),
    ],
)  # fmt: skip
def test_questions_lead_to_the_target_of_a_context(context, target):
    assert TREE(*context) == target


def test_a_words_edges_see_silence():
    assert TREE.targets(("a", "b")) == (1, 2, 3, 5)
    assert expand_lexicon({"ab": ("a", "b"), "a": ("a",)}, TREE) == {
        "ab": (1, 2, 3, 5),
        "a": (1, 2),
    }
    assert TREE.n_targets == 7


def test_a_tree_survives_json():
    assert tree_from(json.loads(json.dumps(asdict(TREE)))) == TREE


def test_untied_targets_are_numbered_in_order():
    tree = monophone_tree({"a": 3, "b": 2}, first=3)
    assert tree.targets(("b", "a")) == (6, 7, 3, 4, 5)
    assert tree.n_targets == 8


def corpus():
    table = utterances(["train"], 2, "ab")
    said = {"ab": ("a", "b")}
    text = (("ab", "ab"), ("á",))
    data = np.zeros((2, 1), np.float32), np.zeros(2, np.int32)
    return Corpus(
        "t", *data, table, expand_lexicon(said, TREE), pronunciations=said, tree=TREE, lm_text=text
    )


def test_tree_pronunciations_and_text_come_back_from_disk(tmp_path):
    saved = corpus()
    save(saved, tmp_path / "c")
    back = load(tmp_path / "c")
    assert (back.tree, back.pronunciations, back.lm_text) == (
        saved.tree,
        saved.pronunciations,
        saved.lm_text,
    )
    assert back.n_targets == 7
    others = [
        saved,
        replace(saved, tree=None),
        replace(saved, pronunciations={}),
        replace(saved, lm_text=()),
    ]
    assert len({each.fingerprint for each in others}) == 4
    assert back.fingerprint == saved.fingerprint


def test_a_lost_text_is_noticed(tmp_path):
    save(corpus(), tmp_path / "c")
    (tmp_path / "c" / "lm_text.parquet").unlink()
    with pytest.raises(UserError, match=r"not a whole corpus .*lm_text\.parquet"):
        load(tmp_path / "c")
