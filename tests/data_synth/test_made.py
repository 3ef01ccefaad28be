"""A corpus whose training speech is made: the same sets beside it as where all is stored."""

from dataclasses import replace

import numpy as np
import pytest

from data_synth import continuous, presets
from data_synth.continuous import Maker
from data_synth.corpus import frame_edges
from data_synth.presets import PRESETS, recipe
from data_synth.storage import load, save


def silent(line):
    pass


@pytest.fixture(scope="module")
def small():
    plain = recipe("conversational", "smoke", 3)
    few = tuple(replace(c, utterances=3) for c in plain.conditions[:2])
    return replace(plain, train=30, dev=4, conditions=few, lm_sentences=20)


@pytest.fixture(scope="module")
def found(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    return continuous.make_as_needed("conversational", small, "gpu", cache=folder, progress=silent)


def test_its_speech_is_that_of_the_stored_corpus(small, found, tmp_path):
    whole = continuous.make("conversational", small, "gpu", cache=tmp_path, progress=silent)
    for split in ("train", "dev", *whole.tests):
        theirs, own = whole.split(split), found.split(split)
        assert own.words == theirs.words
        assert own.speaker.tolist() == theirs.speaker.tolist()
        rows, ours = frame_edges(theirs)[0], frame_edges(own)[0]
        assert (whole.targets[rows] == found.targets[ours]).all()
        stored = found.speech(np.arange(30)) if split == "train" else found.features[ours]
        assert (whole.features[rows] == stored).all()
    assert (found.lexicon, found.lm_text, found.tree) == (whole.lexicon, whole.lm_text, whole.tree)


def test_training_utterances_are_the_last_rows_and_no_features_are_stored(found):
    train = found.split("train")
    assert len(train) == 30
    assert int(train.start[0]) == len(found.features)
    assert len(found.targets) == len(found.features) + train.total_frames


def test_people_of_training_are_heard_nowhere_else(found):
    heard = set(found.split("train").speaker)
    assert heard.isdisjoint(found.utterances.speaker[found.utterances.split != "train"])


def test_a_fingerprint_knows_what_training_speech_is_made_of(small, found, tmp_path):
    recipe = replace(small, wobble=0.41)
    other = continuous.make_as_needed("c", recipe, "gpu", cache=tmp_path, progress=silent)
    assert other.fingerprint != found.fingerprint
    assert (other.targets[-100:] == found.targets[-100:]).all()  # only the sound is another


def test_asked_to_it_is_stored_after_all(found, tmp_path):
    save(found, tmp_path / "whole")
    whole = load(tmp_path / "whole")
    assert (whole.targets == found.targets).all()
    assert whole.utterances.plain() == found.utterances.plain()
    assert (whole.features[len(found.features) :] == found.speech(np.arange(30))).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("scale", ["gpu", "paper"])
def test_every_language_of_a_large_scale_can_be_invented(name, scale):
    wanted = recipe(name, scale)
    assert len(Maker(replace(wanted, lm_sentences=0)).words) == wanted.words


def test_more_words_than_can_be_are_refused():
    with pytest.raises(ValueError, match="1024 are possible"):
        Maker(replace(recipe("mandarin-like", "smoke"), words=2000))


def test_large_scales_are_made_and_others_stored(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(continuous, "make_as_needed", lambda *a, **k: asked.append("made"))
    monkeypatch.setattr(continuous, "make", lambda *a, **k: asked.append("stored"))
    for scale in ("laptop", "gpu", "paper"):
        presets.maker_of("mandarin-like")(scale, seed=0, cache=tmp_path, progress=silent)
    assert asked == ["stored", "made", "made"]
