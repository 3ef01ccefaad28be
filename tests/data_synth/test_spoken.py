from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from data_synth import spoken as s
from data_synth.invented_language import Manner
from data_synth.tree import SILENCE
from data_synth.voices import Speaker
from harness.acoustics.language_model import word_of
from harness.base.seeds import stream
from tests.processes import run

pytest.importorskip("espeakng_loader")

TINY = s.Recipe(
    train=6, dev=2, test=3, speakers=3, test_speakers=2, manner=Manner(sentence_words=(2, 3))
)


@pytest.fixture(scope="module", params=s.LANGUAGES)
def made(request):
    return s.build(request.param, TINY, lambda line: None)


def test_every_language_speaks_and_phones_are_timed(made):
    assert [len(made.split(x)) for x in ("train", "dev", "clean", "noise")] == [6, 2, 3, 3]
    assert len(made.targets) == len(made.features) == made.utterances.total_frames
    assert made.dim == 39
    first = {made.lexicon[e][0]: None for e in made.lexicon}
    assert set(first) <= set(made.targets.tolist())
    u = made.utterances
    for start, frames, words in zip(u.start, u.frames, u.words, strict=True):
        own = made.targets[start : start + frames] // s.STATES
        phones = [p for i, p in enumerate(own.tolist()) if p and (i == 0 or own[i - 1] != p)]
        entries = {w: [e for e in made.lexicon if word_of(e) == w] for w in words}
        shortest = sum(min(len(made.pronunciations[e]) for e in entries[w]) for w in words)
        assert len(phones) >= 0.8 * shortest


def test_noise_says_what_clean_says_and_sounds_otherwise(made):
    clean, noise = made.split("clean"), made.split("noise")
    assert clean.words == noise.words
    rows, there = (slice(u.start[0], u.start[0] + u.total_frames) for u in (clean, noise))
    assert (made.targets[rows] == made.targets[there]).all()
    assert (made.features[rows] != made.features[there]).mean() > 0.95


def test_another_process_says_the_same_bytes(made):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_spoken as t;"
        "print(t.s.build(sys.argv[2], t.TINY, lambda line: None).fingerprint)"
    )
    answer = run(["-c", code, __file__.rpartition("/")[0], made.name])
    assert answer.stdout.strip() == made.fingerprint


def test_a_sentence_does_not_depend_on_what_was_said_before():
    with Speaker() as voices:
        alone = s.Maker("spoken-english", TINY, voices).utterance("train", 3)
        again = s.Maker("spoken-english", TINY, voices)
        for i in (5, 0, 1):
            again.utterance("train", i)
        after = again.utterance("train", 3)
    assert (alone.signal == after.signal).all()
    assert alone.spans == after.spans


def test_a_frame_belongs_to_the_third_of_the_phone_at_its_middle():
    spans = ((0.0, SILENCE), (480.0, "a"), (1440.0, "b"))
    names = {SILENCE: (0, 1, 2), "a": (3, 4, 5), "b": (6, 7, 8)}
    found = s.frame_targets(spans, 12, names).tolist()
    middles = [160 * i + 200 for i in range(12)]
    assert found[:2] == [1, 2]
    assert [found[i] for i, m in enumerate(middles) if 480 <= m < 800] == [3, 3]
    assert [found[i] for i, m in enumerate(middles) if 1120 <= m < 1440] == [5, 5]
    assert found[-1] == 8


def test_a_room_only_adds_what_comes_later():
    echo = s.room(stream(0, "room"), 0.2)
    assert echo[0] == 1.0
    early, late = (np.mean(echo[a : a + 500] ** 2) for a in (1, 2500))
    assert late < early / 50


def test_stress_is_no_part_of_a_phone():
    assert [s.plain(p) for p in ("'oU", "_:", "s.", "%a")] == ["oU", SILENCE, "s.", "a"]


def test_another_seed_says_other_sentences():
    other = s.build("spoken-english", dataclasses.replace(TINY, seed=1), lambda line: None)
    mine = s.build("spoken-english", TINY, lambda line: None)
    assert other.fingerprint != mine.fingerprint
    assert other.utterances.words != mine.utterances.words
