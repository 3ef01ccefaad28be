import dataclasses

import numpy as np
import pytest

from data_synth import SCALES, presets
from data_synth import continuous as c
from data_synth.invented_language import Manner
from data_synth.storage import load, write_chunks
from data_synth.tree import SILENCE
from tests.data_synth.small import check_noise

TINY = c.Recipe(
    train=12, dev=4, speakers=4, test_speakers=2, words=20, phones=10, homophones=0.2,
    characters=True, manner=Manner(sentence_words=(2, 4)), pause=0.5, lm_sentences=9,
    conditions=(
        c.Condition("clean", 5), c.Condition("noise", 5, snr_db=(0.0, 5.0), speech_of="clean"),
        c.Condition("quick", 5, hurry=2.0),
    ),
)  # fmt: skip


def corpus(folder, recipe=TINY, utterances=200):
    folder.mkdir()
    maker = c.Maker(recipe)
    write_chunks(folder, maker.card(), maker.chunks(utterances))
    return load(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("continuous") / "tiny")


def test_the_bytes_do_not_depend_on_the_chunk_size(tiny, tmp_path):
    assert corpus(tmp_path / "threes", utterances=3).fingerprint == tiny.fingerprint


def test_another_seed_makes_another_corpus(tiny, tmp_path):
    other = corpus(tmp_path / "other", dataclasses.replace(TINY, seed=1))
    assert other.fingerprint != tiny.fingerprint


def test_targets_walk_through_the_words_with_whole_silences_between(tiny):
    u = tiny.utterances
    pauses = 0
    for start, frames, words in zip(u.start, u.frames, u.words, strict=True):
        targets = tiny.targets[start : start + frames]
        visits = targets[np.flatnonzero(np.diff(targets, prepend=-1))].tolist()
        assert visits[:3] == visits[-3:] == [0, 1, 2]
        at = 3
        for word in words:
            if visits[at] == 0:
                assert visits[at : at + 3] == [0, 1, 2]
                at, pauses = at + 3, pauses + 1
            states = list(tiny.lexicon[word])
            assert visits[at : at + len(states)] == states
            at += len(states)
        assert at == len(visits) - 3
    assert pauses > 10


def test_the_lexicon_follows_from_tree_and_pronunciations(tiny):
    for word, phones in tiny.pronunciations.items():
        assert tiny.lexicon[word] == tiny.tree.targets(phones)
        assert len(tiny.lexicon[word]) == 3 * len(phones)


def test_a_phones_ends_depend_on_its_neighbours_and_its_middle_does_not(tiny):
    phones = [p for p in tiny.tree.roots if p != SILENCE]
    for phone in phones:
        found = [
            {
                tiny.tree(left, phone, right, s)
                for left in tiny.tree.roots
                for right in (left, SILENCE)
            }
            for s in range(3)
        ]
        assert len(found[0]) == len(found[2]) == 1 + TINY.families
        assert len(found[1]) == 1
    assert tiny.n_targets == 3 + len(phones) * (2 * (1 + TINY.families) + 1)


def test_homophones_share_their_sounds_and_characters_are_chinese(tiny):
    assert len(tiny.lexicon) == 20
    assert len(set(tiny.pronunciations.values())) == 16
    assert all(len(w) == 1 and "\u4e00" <= w <= "\u9fff" for w in tiny.lexicon)


def test_noise_is_the_clean_set_in_another_background(tiny):
    check_noise(tiny)


def test_hurried_speech_is_shorter(tiny):
    words = {
        s: sum(len(tiny.pronunciations[w]) for ws in tiny.split(s).words for w in ws)
        for s in tiny.tests
    }
    pace = {s: tiny.frames_of(s) / words[s] for s in tiny.tests}
    assert pace["quick"] < 0.8 * pace["clean"]


def test_every_split_but_the_same_speech_has_people_of_its_own(tiny):
    people = {s: set(tiny.split(s).speaker) for s in ("train", "dev", "clean", "quick")}
    assert sum(map(len, people.values())) == len(set().union(*people.values()))


def test_the_language_models_text_is_apart_from_what_is_said(tiny):
    assert len(tiny.lm_text) == 9
    assert {w for s in tiny.lm_text for w in s} <= set(tiny.lexicon)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_grow_with_the_scale_and_can_be_said(name):
    sizes = [presets.recipe(name, scale).train for scale in SCALES]
    assert sizes == sorted(sizes)
    recipe = presets.recipe(name, "smoke")
    maker = c.Maker(recipe)
    for condition in recipe.conditions:
        features, targets, _, words = maker.utterance(condition.name, 0)
        assert len(features) == len(targets) >= len(words)
        assert features.shape[1] == 39
        assert np.isfinite(features).all()


def test_the_test_sets_are_the_papers():
    names = {n: [x.name for x in presets.recipe(n, "smoke").conditions] for n in presets.PRESETS}
    assert names["mandarin-like"] == ["clean", "noise"]
    assert names["conversational"] == ["swb", "callhome", "hub5-swb", "swb2p3", "swb-cell"]
    assert names["voice-search-small"] == names["voice-search-large"] == ["test"]
