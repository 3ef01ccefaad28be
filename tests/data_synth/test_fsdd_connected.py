import dataclasses
from collections import Counter

import numpy as np
import pytest

from data_synth.public import fsdd
from data_synth.public import fsdd_connected as connected
from data_synth.recorded import read_wav
from data_synth.targets import Effort
from harness.base.seeds import stream
from tests.data_synth.small import check_noise, recorded_digits, write_wav

RECIPE = connected.Recipe(
    recordings=fsdd.Recipe(train_takes=2), effort=Effort(rounds=2, leaves=0, components=1), text=400
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Takes 0 to 11 of every digit and speaker, each a hum of its digit's pitch."""
    place = tmp_path_factory.mktemp("recordings")
    for digit in range(10):
        for who, speaker in enumerate(fsdd.SPEAKERS):
            for take in range(12):
                rng = stream(8, "hum", digit, who, take)
                t = np.arange(1600 + 40 * take) / fsdd.RATE_HZ
                sound = 6000 * np.sin(2 * np.pi * (300 + 150 * digit) * t)
                sound += 200 * rng.normal(size=len(t))
                write_wav(place / fsdd.recording(digit, speaker, take), sound)
    return place


@pytest.fixture(scope="module")
def made(folder):
    return connected.build(RECIPE, folder, lambda line: None)


@pytest.mark.parametrize("split", ["train", "dev", "clean", "noise"])
def test_every_recording_of_a_split_is_said_once(split):
    takes = RECIPE.recordings.takes()[split]
    for speaker in fsdd.SPEAKERS:
        texts = list(connected.draw_strings(RECIPE, split, speaker))
        said = Counter(key for text in texts for key in text)
        assert said == Counter((d, speaker, t) for d in range(10) for t in takes)
        assert {len(text) for text in texts[:-1]} <= set(range(3, 8))


def test_no_recording_is_in_two_of_train_dev_and_test():
    takes = RECIPE.recordings.takes()
    heard = [set(takes[split]) for split in ("train", "dev", "clean")]
    assert len(set.union(*heard)) == sum(map(len, heard))


def test_a_string_is_its_recordings_end_to_end(folder):
    signals, table = connected.read_split(RECIPE, folder, "clean")
    text = next(iter(connected.draw_strings(RECIPE, "clean", fsdd.SPEAKERS[0])))
    parts = [read_wav(folder / fsdd.recording(*key), fsdd.RATE_HZ) for key in text]
    assert (signals[0] == np.concatenate(parts)).all()
    assert table.words[0] == connected.words_of(text)


def test_noise_says_what_clean_says_with_the_same_targets(made):
    check_noise(made)


def test_a_digit_is_a_model_of_its_own(made):
    states = [t for word in fsdd.DIGITS for t in made.lexicon[word]]
    assert len(states) == len(set(states)) == 10 * 3 * connected.PARTS
    assert not set(states) & set(made.silence)


def test_the_text_is_a_loop_of_equally_likely_digits(made):
    counts = Counter(word for said in made.lm_text for word in said)
    share = np.array([counts[d] for d in fsdd.DIGITS]) / sum(counts.values())
    assert len(made.lm_text) == 400
    assert np.abs(share - 0.1).max() < 4 * np.sqrt(0.09 / sum(counts.values()))


def test_the_seed_decides_the_strings_and_is_reproducible(folder, made):
    again = connected.build(RECIPE, folder, lambda line: None)
    assert again.fingerprint == made.fingerprint
    other = dataclasses.replace(RECIPE, recordings=dataclasses.replace(RECIPE.recordings, seed=1))
    assert connected.read_split(other, folder, "clean")[1].words != made.split("clean").words


def test_recorded_digits_join_into_strings_of_held_out_recordings():
    signals, table = connected.read_split(connected.Recipe(), recorded_digits(), "clean")
    assert sum(map(len, table.words)) == 300
    assert len(signals) == len(table)
