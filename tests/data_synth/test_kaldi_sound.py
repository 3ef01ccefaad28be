"""Kaldi directories without features, and those whose phones have times."""

import numpy as np
import pytest
from kaldiio import load_scp, save_ark

from data_synth.features import utterance_features
from data_synth.public import kaldi_dir as k
from data_synth.tree import SILENCE, monophone_tree
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.cli import main
from tests.data_synth.small import write_wav
from tests.data_synth.test_kaldi_dir import (
    PHONES,
    RECIPE,
    SKIPPING,
    directory,
    read,
    write_ctm,
)

RATE = 8000


def write_sound(path, frames: int, rate: int = RATE) -> np.ndarray:
    """A recording of noise with so many frames; returns its samples."""
    size = round(0.025 * rate) + (frames - 1) * rate // 100
    samples = stream(frames, path.stem).integers(-3000, 3000, size=size).astype("<i2")
    write_wav(path, samples, rate)
    return samples.astype(float)


@pytest.fixture
def sound(tmp_path):
    """A directory of recordings, their true targets and their samples."""
    folder = tmp_path / "sound"
    pdfs = directory(folder)
    (folder / "feats.scp").unlink()
    samples = {key: write_sound(folder / f"{key}.wav", len(own)) for key, own in pdfs.items()}
    (folder / "wav.scp").write_text("".join(f"{key} {key}.wav\n" for key in pdfs))
    write_ctm(folder, pdfs)
    return folder, pdfs, samples


def features(made, key):
    u = made.utterances
    at = u.id.tolist().index(key)
    return made.features[u.start[at] : u.start[at] + u.frames[at]]


def test_features_are_made_of_recordings_at_their_own_rate(sound):
    folder, _, samples = sound
    made = read(folder)
    assert len(made.utterances) == 20
    expected = utterance_features(samples["s0-u00"], RATE)
    assert np.array_equal(features(made, "s0-u00"), expected)


def test_segments_cut_utterances_out_of_recordings(sound):
    folder, pdfs, samples = sound
    whole = read(folder)
    joined = np.concatenate(list(samples.values()))
    write_wav(folder / "all.wav", joined)
    (folder / "wav.scp").write_text("all all.wav\n")
    ends = np.cumsum([len(own) for own in samples.values()]) / RATE
    starts = [0.0, *ends[:-1]]
    lines = [f"{key} all {a} {b}\n" for key, a, b in zip(pdfs, starts, ends, strict=True)]
    (folder / "segments").write_text("".join(lines))
    assert read(folder).fingerprint == whole.fingerprint


def numbered(folder, pdfs):
    (folder / "phones.txt").write_text("".join(f"{p} {n}\n" for n, p in enumerate(PHONES)))
    write_ctm(folder, pdfs, lambda phone: str(PHONES.index(phone)))


def placed(folder, pdfs):
    write_ctm(folder, pdfs, lambda phone: phone if phone == "SIL" else f"{phone}_I")


@pytest.mark.parametrize("write", [numbered, placed])
def test_every_form_of_times_gives_the_same_targets(sound, write):
    folder, pdfs, _ = sound
    timed = read(folder)
    (folder / "ctm").unlink()
    write(folder, pdfs)
    assert read(folder).fingerprint == timed.fingerprint


def test_the_states_of_a_phone_share_its_frames_and_silence_has_what_no_phone_has():
    from data_synth.public.kaldi_targets import spread

    tree = monophone_tree({SILENCE: 2, "a": 3})
    times = [(0.02, 0.05, "a"), (0.05, 0.11, "a"), (0.13, 0.14, "a")]
    assert spread(times, 16, tree).tolist() == [0, 1, 2, 3, 4, 2, 2, 3, 3, 4, 4, 0, 1, 2, 0, 1]
    assert spread([], 4, tree).tolist() == [0, 0, 1, 1]


def by_file(folder, seconds):
    (folder / "frame_shift").write_text("0.005\n")


def by_durations(folder, seconds):
    (folder / "utt2dur").write_text("".join(f"{key} {s}\n" for key, s in seconds.items()))


def by_segments(folder, seconds):
    (folder / "wav.scp").write_text("all all.sph |\n")
    (folder / "segments").write_text("".join(f"{k} all 1 {1 + s}\n" for k, s in seconds.items()))


def by_recordings(folder, seconds):
    for key, length in seconds.items():
        write_sound(folder / f"{key}.wav", round(100 * (length - 0.015)))
    (folder / "wav.scp").write_text("".join(f"{key} {key}.wav\n" for key in seconds))


@pytest.mark.parametrize("tell", [by_file, by_durations, by_segments, by_recordings])
def test_times_of_phones_are_counted_in_the_features_own_frames(tmp_path, tell):
    """Two frames every 10 ms have the phones that one has."""
    folder = tmp_path / "fine"
    pdfs = directory(folder)
    matrices = load_scp(str(folder / "feats.scp"))
    table = {key: np.repeat(matrices[key], 2, 0) for key in pdfs}
    save_ark(str(folder / "feats.ark"), table, scp=str(folder / "feats.scp"))
    tell(folder, {key: len(own) / 100 for key, own in pdfs.items()})
    write_ctm(folder, pdfs)
    made = read(folder)
    for key, own in pdfs.items():
        at = made.utterances.id.tolist().index(key)
        start = made.utterances.start[at]
        found = made.targets[start : start + made.utterances.frames[at]]
        assert np.mean(found == np.repeat(own, 2)) > 0.95
    assert made.frame_shift_s == pytest.approx(0.005, rel=0.02)


def test_frame_shifts_that_cannot_be_or_differ_are_refused(tmp_path):
    folders = [k.Folder(tmp_path / name, name) for name in ("train", "dev")]
    for folder in folders:
        directory(folder.path)
    (folders[1].path / "frame_shift").write_text("0.005\n")
    with pytest.raises(UserError, match=r"frame shifts of 0.01, 0.005 s; allowed: one"):
        k.read(folders, folders[0].path / "lexicon.txt", RECIPE, print)
    (folders[1].path / "frame_shift").write_text("10 ms\n")
    with pytest.raises(UserError, match=r"dev/frame_shift: not the seconds between frames"):
        k.read(folders, folders[0].path / "lexicon.txt", RECIPE, print)


@pytest.mark.parametrize("further_s", [None, 0.004, 0.4])
def test_segments_end_where_kaldi_ends_them(sound, further_s):
    """At the end of the recording: with -1, and if they go on for less than half a second."""
    folder, pdfs, _ = sound
    whole = read(folder).fingerprint
    seconds = {key: 0.015 + len(own) / 100 for key, own in pdfs.items()}
    ends = {key: -1 if further_s is None else s + further_s for key, s in seconds.items()}
    (folder / "segments").write_text("".join(f"{key} {key} 0 {end}\n" for key, end in ends.items()))
    assert read(folder).fingerprint == whole


def broken(folder, line):
    text = (folder / "ctm").read_text()
    (folder / "ctm").write_text(text.replace(";; a comment\n", line))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("s0-u00 1 0 0 zz\n", "utterance s0-u00: phone 'zz' is not in the lexicon"),
        ("s0-u00 1 90 1 a\n", "utterance s0-u00: phones whose times are out of order"),
        ("s9-u99 1 x 1 a\n", r"ctm: line 1: needed: UTTERANCE CHANNEL START DURATION PHONE"),
        ("s9-u99 1 1\n", r"ctm: line 1: needed: UTTERANCE"),
        ("s9-u99 1 -1 1 a\n", r"ctm: line 1: a time below 0"),
    ],
)
def test_times_that_cannot_be_are_named(sound, line, message):
    folder, _, _ = sound
    broken(folder, line)
    with pytest.raises(UserError, match=message):
        read(folder)


def test_times_that_go_on_after_the_frames_are_left_out_and_counted(sound):
    folder, _, _ = sound
    with (folder / "ctm").open("a") as file:
        file.write("s0-u00 1 99 1 SIL\n")
    lines = []
    assert len(read(folder, SKIPPING, lines).utterances) == 19
    assert "10000 of phones' times" in lines[1]


def tabled(name, line):
    """A fault: a table of one line."""
    return lambda folder: (folder / name).write_text(f"{line}\n")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            lambda folder: (folder / "wav.scp").unlink(),
            "neither feats.scp nor wav.scp; needed: fea",
        ),
        (tabled("wav.scp", "s0-u00 sph2pipe x.sph |"), "a command, and commands are not run; need"),
        (tabled("wav.scp", "s0-u00 x.mp3"), "allowed: .wav, .flac files"),
        (
            lambda folder: write_sound(folder / "s1-u01.wav", 40, 2 * RATE),
            "utterance s1-u01: .*16000 Hz; a wav file, 16-bit, one channel, 8000 Hz",
        ),
        (tabled("segments", "s0-u00 s0-u00 0 99"), "s0-u00: .*segment from 0.0 to 99.0 s of"),
        (tabled("segments", "s0-u00 other 0 1"), "segments: s0-u00: needed: UTTERANCE RECORDING"),
    ],
)
def test_a_directory_that_lacks_something_is_told_what_is_needed(
    sound, tmp_path, capsys, fault, message
):
    folder, _, _ = sound
    fault(folder)
    with pytest.raises(UserError, match=message):
        read(folder)
    words = ["corpus", "import", "kaldi", str(folder), "--out", str(tmp_path / "o")]
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_recordings_without_any_alignment_become_a_corpus_by_command(sound, tmp_path, capsys):
    folder, _, _ = sound
    (folder / "ctm").unlink()
    out = tmp_path / "out"
    words = ["corpus", "import", "kaldi", str(folder), "--out", str(out)]
    assert main([*words, "--rounds", "2", "--leaves", "0"]) == 0
    assert "39 features" in capsys.readouterr().out
