import dataclasses

import pytest

import data_synth
from data_synth import parametric as p
from data_synth.storage import load, write_chunks
from tests.data_synth.small import check_alignment, check_noise

TINY = p.Recipe(train=30, dev=8, test=10, speakers=5, test_speakers=3)


def corpus(folder, recipe=TINY):
    folder.mkdir()
    write_chunks(folder, p.Maker(recipe).card(), p.Maker(recipe).chunks())
    return load(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("parametric") / "tiny")


def test_another_seed_makes_another_corpus(tiny, tmp_path):
    other = corpus(tmp_path / "other", dataclasses.replace(TINY, seed=1))
    assert other.fingerprint != tiny.fingerprint


def test_more_training_data_leaves_what_was_there_alone(tiny, tmp_path):
    more = corpus(tmp_path / "more", dataclasses.replace(TINY, train=40))
    old = tiny.frames_of("train")
    assert more.frames_of("train") > old
    assert (more.features[:old] == tiny.features[:old]).all()


def test_splits_have_the_sizes_asked_for_and_speakers_of_their_own(tiny):
    assert {s: len(tiny.split(s)) for s in TINY.sizes()} == TINY.sizes()
    people = {s: set(tiny.split(s).speaker) for s in TINY.sizes()}
    assert people["clean"] == people["noise"]
    assert not people["train"] & people["dev"]
    assert not (people["train"] | people["dev"]) & people["clean"]


def test_noise_is_the_clean_test_set_in_another_background(tiny):
    check_noise(tiny)


def test_targets_walk_through_silence_the_word_and_silence(tiny):
    check_alignment(tiny)


def test_a_lexicon_entry_is_three_states_a_phone(tiny):
    for word, phones in p.Maker(TINY).language.words.items():
        assert len(tiny.lexicon[word]) == 3 * len(phones)
    assert tiny.n_targets == 3 + 3 * TINY.phones


def test_a_corpus_is_made_once_and_then_found(tmp_path, monkeypatch):
    monkeypatch.setitem(p.PRESETS, "smoke", TINY)
    lines = []
    first = data_synth.load_corpus(
        "parametric", scale="smoke", cache=tmp_path, progress=lines.append
    )
    assert lines[-1].endswith("58 of 58 utterances made")
    lines.clear()
    again = data_synth.load_corpus(
        "parametric", scale="smoke", cache=tmp_path, progress=lines.append
    )
    assert not lines
    assert again.fingerprint == first.fingerprint
    assert len(list((tmp_path / "corpora").iterdir())) == 1
    data_synth.load_corpus("parametric", scale="smoke", cache=tmp_path, seed=1)
    assert len(list((tmp_path / "corpora").iterdir())) == 2


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setitem(p.PRESETS, "smoke", TINY)
    monkeypatch.setenv("LAGBENCH_CACHE", str(tmp_path / "here"))
    data_synth.load_corpus("parametric", scale="smoke")
    assert (tmp_path / "here" / "corpora").is_dir()
