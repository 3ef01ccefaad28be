import dataclasses

import numpy as np
import pytest

from data_synth.invented_language import Recipe, invent_language, invent_voice, invent_words
from data_synth.parametric import PRESETS


def test_words_differ_and_many_differ_in_one_phone():
    words = list(invent_words(PRESETS["smoke"]).values())
    assert len(set(words)) == 40
    close = sum(
        any(len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1 for b in words)
        for a in words
    )
    assert close >= 24


def test_every_phone_has_a_name_of_its_own():
    single = Recipe(words=60, phones=60, word_phones=(1, 1), minimal_pairs=0.0)
    assert sorted(invent_words(single).values()) == [(phone,) for phone in range(60)]


def test_a_preset_of_any_size_speaks_the_same_language():
    small, large = (invent_language(PRESETS[scale]) for scale in ("smoke", "paper"))
    assert small.words == large.words
    assert (small.places == large.places).all()


def test_closeness_is_the_distance_within_a_family_over_that_between():
    recipe = Recipe(phones=400, words=1, closeness=0.3, state_spread=0.0)
    places = invent_language(recipe).places[3::3].reshape(100, 4, -1)
    within = places.std(axis=1, ddof=1).mean()
    between = places.mean(axis=1).std(axis=0, ddof=1).mean()
    assert within == pytest.approx(0.3, rel=0.1)
    assert between == pytest.approx(1.0, rel=0.1)


def test_without_spread_all_speakers_sound_alike():
    same = dataclasses.replace(PRESETS["smoke"], speaker_spread=0.0)
    voices = [invent_voice(same, speaker) for speaker in (0, 1)]
    assert (voices[0].turn == np.eye(6)).all()
    for part in ("turn", "shift", "hidden", "colour"):
        assert (getattr(voices[0], part) == getattr(voices[1], part)).all()
