from pathlib import Path

import numpy as np
import pytest
import soundfile

import data_synth
from data_synth import recorded as r
from data_synth.public import aishell
from data_synth.recorded import read_flac
from data_synth.targets import Effort
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.cli import main

RATE = 16_000
LETTERS = "abc"
EFFORT = Effort(states=2, rounds=2, leaves=0)


def sing(path, letters, key, rate=RATE):
    """A hum for every letter, 80 ms each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    t = np.arange(int(0.08 * len(letters) * rate)) / rate
    hz = np.repeat([400 + 900 * LETTERS.index(c) for c in letters], int(0.08 * rate))
    noise = stream(9, "sing", key).normal(size=len(t))
    sound = 6000 * np.sin(2 * np.pi * hz * t) + 100 * noise
    soundfile.write(str(path), sound.astype(np.int16), rate)


@pytest.fixture
def aishell_root(tmp_path, monkeypatch):
    """A corpora folder with an invented sample of AISHELL: two speakers of 20 utterances."""
    folder = tmp_path / "corpora" / aishell.FOLDERS[1]
    lines = []
    for i in range(40):
        name, who = f"BAC{i:03d}", f"S{i // 20}"
        text = "中国人"[i % 3] + " " + "人民"[i % 2]
        sing(folder / "wav" / "train" / who / f"{name}.wav", "abcabc", i)
        lines.append(f"{name} {text}")
    (folder / "transcript").mkdir()
    (folder / aishell.TRANSCRIPT).write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setenv("LAGBENCH_CORPORA", str(tmp_path / "corpora"))
    monkeypatch.setenv("LAGBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(aishell, "RECIPE", r.Recipe(effort=EFFORT))
    return folder


@pytest.fixture
def with_lexicon(aishell_root):
    """The sample with a lexicon of its own, in which every character is two phones."""
    place = aishell_root.parent / "resource_aishell"
    place.mkdir()
    (place / "lexicon.txt").write_text("中 a b\n国 b c\n人 c a\n民 a c\n", "utf-8")
    return aishell_root


def first(folder):
    return folder / "wav" / "train" / "S0" / "BAC000.wav"


def no_words(folder):
    path = folder / aishell.TRANSCRIPT
    path.write_text(path.read_text("utf-8").replace("BAC000 中 人", "BAC000 ", 1), "utf-8")


def silent_for(samples):
    """A damage: so many samples in place of the first recording."""
    return lambda folder: soundfile.write(str(first(folder)), np.zeros(samples, np.int16), RATE)


DAMAGES = [
    (
        lambda folder: first(folder).write_bytes(first(folder).read_bytes()[:300]),
        r"BAC000\.wav: (truncated|not a whole wav file)",
    ),
    (lambda folder: sing(first(folder), "abc", 0, rate=8000), r"wav: 16-bit, .* 8000 Hz; .* 160"),
    (lambda folder: first(folder).write_bytes(b""), r"BAC000\.wav: not a whole wav file"),
    (silent_for(0), r"BAC000\.wav: (truncated|not a whole wav file)"),
    (silent_for(100), r"BAC000\.wav: shorter than one frame \(100 samples\)"),
    (no_words, r"BAC000\.wav: empty transcript"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_bad_recording_is_refused_in_one_line_or_left_out_and_counted(
    with_lexicon, damage, message
):
    damage(with_lexicon)
    with pytest.raises(UserError, match=message) as error:
        data_synth.load_corpus("aishell", scale="smoke")
    assert "\n" not in str(error.value)
    assert "--skip-bad" in str(error.value)
    lines = []
    made = data_synth.load_corpus("aishell", scale="smoke", skip=True, progress=lines.append)
    assert len(made.split("train")) == 31
    assert "corpus aishell: 1 of 40 utterances left out:" in lines


def test_text_that_is_not_utf8_is_named_with_its_line(with_lexicon, capsys, tmp_path):
    path = with_lexicon / aishell.TRANSCRIPT
    lines = path.read_bytes().split(b"\n")
    lines[2] = b"BAC002 \xe9"
    path.write_bytes(b"\n".join(lines))
    assert main(["corpus", "make", "aishell", "--out", str(tmp_path / "o")]) == 2
    said = capsys.readouterr().err
    assert "transcript_v0.8.txt: line 3 is not UTF-8 text" in said
    assert said.count("\n") == 1


def store(path, kind, samples):
    """Write half a second of another format than the suffix says."""
    with path.open("wb") as file:
        soundfile.write(file, np.full(RATE // 2, 0.1), RATE, format=kind, subtype=samples)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:300]), "truncated|not a whole flac"),
        (lambda path: path.write_bytes(b""), "not a whole flac file"),
        (lambda path: sing(path, "abc", 0, rate=8000), "channels: 1, 8000 Hz; .* 16000 Hz"),
        (lambda path: path.unlink(), "not a whole flac file|cannot be read"),
        (lambda path: store(path, "WAV", "FLOAT"), "WAV of FLOAT; a flac file"),
        (lambda path: store(path, "AIFF", "PCM_16"), "AIFF of PCM_16; a flac file"),
        (lambda path: store(path, "OGG", "VORBIS"), "OGG of VORBIS; a flac file"),
    ],
)
def test_a_bad_flac_is_refused(tmp_path, damage, message):
    path = tmp_path / "a.flac"
    sing(path, "abc", 0)
    damage(path)
    with pytest.raises(UserError, match=message):
        read_flac(path, RATE)


def test_a_word_without_pronunciation_is_named(tmp_path):
    one = r.Recording("u", "s", "train", ("ab", "zz"), tmp_path / "u.wav")
    with pytest.raises(UserError, match="word 'zz' has no pronunciation"):
        r.features_of(one, r.Recipe(), {"ab": ()})


def test_a_corpus_that_cannot_skip_says_so():
    with pytest.raises(UserError, match="--skip-bad: corpus parametric has none; allowed: aishell"):
        data_synth.load_corpus("parametric", scale="smoke", skip=True)


def test_a_flac_comes_back_sample_by_sample(tmp_path):
    sound = stream(0, "flac").integers(-32768, 32767, size=500).astype(np.int16)
    soundfile.write(str(tmp_path / "x.flac"), sound, RATE)
    assert (read_flac(tmp_path / "x.flac", RATE) == sound).all()


def test_a_sample_is_parted_by_place_and_characters_are_words(aishell_root):
    pytest.importorskip("pypinyin")
    made = data_synth.load_corpus("aishell", scale="smoke")
    assert [len(made.split(s)) for s in ("train", "dev", "test")] == [32, 4, 4]
    assert set(made.split("test").speaker) == {"S0", "S1"}
    assert made.utterances.words[0] == ("中", "人")
    assert made.pronunciations["中"] == ("zh", "ong")
    assert made.pronunciations["国"] == ("g", "uo")


def test_the_whole_corpus_has_its_official_splits(aishell_root):
    for i, split in enumerate(("dev", "test")):
        (aishell_root / "wav" / split).mkdir()
        old = aishell_root / "wav" / "train" / "S1" / f"BAC{38 + i:03d}.wav"
        new = aishell_root / "wav" / split / f"S{7 + i}" / old.name
        new.parent.mkdir()
        old.rename(new)
    splits = [x.split for x in aishell.recordings(aishell_root)]
    assert splits == ["train"] * 38 + ["dev", "test"]


def test_the_corpuss_own_lexicon_is_used_where_it_is(aishell_root):
    place = aishell_root.parent / "resource_aishell"
    place.mkdir()
    (place / "lexicon.txt").write_text("中 zh ong1\n中 zh ong4\n中国 zh ong1 g uo2\n", "utf-8")
    assert aishell.readings(aishell_root, ["中", "国"]) == {
        "中": ("zh", "ong1"),
        "中(2)": ("zh", "ong4"),
    }


def test_signs_are_dropped_and_letters_are_capitals():
    assert aishell.characters("三星 (ｄr.)") == ("三", "星", "D", "R")


def test_recordings_without_transcripts_are_refused(aishell_root):
    (aishell_root / aishell.TRANSCRIPT).write_text("other 中\n", "utf-8")
    with pytest.raises(UserError, match="no recording of wav"):
        aishell.recordings(aishell_root)


def test_absent_recordings_say_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("LAGBENCH_CORPORA", str(tmp_path))
    with pytest.raises(UserError, match="lagbench corpus fetch aishell"):
        data_synth.load_corpus("aishell", scale="smoke", cache=Path(tmp_path))
