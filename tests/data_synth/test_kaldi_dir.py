from dataclasses import replace
from itertools import pairwise

import kaldiio
import numpy as np
import pytest

from data_synth.public import kaldi_dir as k
from data_synth.public.kaldi_files import read_lexicon, read_table
from data_synth.recorded import Recipe
from data_synth.storage import load
from data_synth.targets import Effort
from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.cli import main

RECIPE = Recipe(effort=Effort(states=1, rounds=2, leaves=0))
PHONES = ("SIL", "a", "b")


def runs(own):
    """Begin, end and phone of each stretch of equal targets."""
    edges = [0, *(1 + np.flatnonzero(np.diff(own))), len(own)]
    return [(int(a), int(b), PHONES[own[a]]) for a, b in pairwise(edges)]


def write_ctm(folder, pdfs, called=str):
    """Times of phones at 100 frames a second."""
    lines = [
        f"{key} 1 {a / 100:.2f} {(b - a) / 100:.2f} {called(phone)}\n"
        for key, own in pdfs.items()
        for a, b, phone in runs(own)
    ]
    (folder / "ctm").write_text(";; a comment\n" + "".join(lines))


def directory(folder, count=20):
    """A data directory with features that tell its phones apart, and its true pdfs."""
    folder.mkdir(parents=True)
    rng = stream(0, "kaldi")
    centres = 5 * rng.normal(size=(3, 4))
    mats, pdfs, texts = {}, {}, {}
    for i in range(count):
        key = f"s{i % 3}-u{i:02d}"
        words = ["ab", "ba"] if i % 2 else ["ba"]
        states = [0, *(1 + "ab".index(c) for c in "".join(words)), 0]
        pdfs[key] = np.repeat(states, rng.integers(4, 8, size=len(states))).tolist()
        mats[key] = (centres[pdfs[key]] + rng.normal(size=(len(pdfs[key]), 4))).astype(np.float32)
        texts[key] = " ".join(words)
    kaldiio.save_ark(str(folder / "feats.ark"), mats, scp=str(folder / "feats.scp"))
    (folder / "text").write_text("".join(f"{u} {w}\n" for u, w in texts.items()))
    (folder / "utt2spk").write_text("".join(f"{u} {u[:2]}\n" for u in texts))
    (folder / "lexicon.txt").write_text("ab a b\nba b a\nba b\n<sil> SIL\n")
    return pdfs


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "train"
    directory(folder)
    return folder


@pytest.fixture
def aligned(tmp_path):
    folder = tmp_path / "aligned"
    pdfs = directory(folder)
    write_ctm(folder, pdfs)
    return folder, pdfs


def read(folder, recipe=RECIPE, lines=None, **options):
    said = [] if lines is None else lines
    folders, lexicon = [k.Folder(folder, "train")], folder / "lexicon.txt"
    return k.read(folders, lexicon, recipe, said.append, **options)


SKIPPING = replace(RECIPE, skip=True)


def test_targets_follow_from_transcripts_where_no_alignment_is_given(folder):
    made = read(folder)
    assert len(made.utterances) == 20
    assert made.tests == ("test",)
    assert [len(made.split(s)) for s in ("train", "dev", "test")] == [16, 2, 2]
    assert made.pronunciations["ba(2)"] == ("b",)
    assert set(made.utterances.speaker) == {"s0", "s1", "s2"}
    assert made.lm_text == made.split("train").words


def test_times_of_phones_are_taken_over_frame_by_frame(aligned):
    folder, pdfs = aligned
    made = read(folder)
    assert (made.n_targets, made.silence) == (3, (0,))
    assert made.lexicon["ab"] == (1, 2)
    u = made.utterances
    for key, start, frames in zip(u.id, u.start, u.frames, strict=True):
        assert made.targets[start : start + frames].tolist() == pdfs[str(key)]


def test_features_come_normalised_from_the_archive(folder):
    made = read(folder)
    u = made.utterances
    key, start, frames = str(u.id[0]), int(u.start[0]), int(u.frames[0])
    raw = kaldiio.load_scp(str(folder / "feats.scp"))[key].astype(np.float64)
    expected = (raw - raw.mean(0)) / raw.std(0)
    np.testing.assert_allclose(made.features[start : start + frames], expected, atol=1e-5)


def edit(path, change):
    path.write_text(change(path.read_text()))


def replaced(name, old, new):
    """A fault: other words in a table."""
    return lambda folder: edit(folder / name, lambda text: text.replace(old, new))


def untimed(folder):
    """A fault: an utterance without times."""
    path = folder / "ctm"
    edit(path, lambda text: "".join(x for x in text.splitlines(True) if "s0-u00" not in x))


FAULTS = [
    (replaced("utt2spk", "s0-u00 s0\n", ""), r"utterance s0-u00: no speaker in utt2spk"),
    (replaced("text", "s0-u00 ba\n", ""), r"utterance s0-u00: no transcript in text"),
    (replaced("text", "s0-u00 ba\n", "s0-u00\n"), r"utterance s0-u00: empty transcript"),
    (replaced("text", "00 ba\n", "00 zz\n"), r"utterance s0-u00: word 'zz' is not in the lexicon"),
    (replaced("feats.scp", ".ark:7\n", ".ark:70000\n"), r"s0-u00: .*feats\.ark:70000 cannot be"),
    (replaced("feats.scp", "feats.ark:7\n", "no.ark:7\n"), r"s0-u00: .*no\.ark:7 cannot be read"),
    (untimed, r"utterance s0-u00: no times of phones"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_an_inconsistency_is_named_and_refused_or_skipped_and_counted(aligned, fault, message):
    folder, _ = aligned
    fault(folder)
    with pytest.raises(UserError, match=message) as error:
        read(folder)
    assert "\n" not in str(error.value)
    lines = []
    made = read(folder, SKIPPING, lines)
    assert len(made.utterances) == 19
    assert lines[0] == "corpus kaldi: 1 of 20 utterances left out:"


def test_alignments_of_frames_are_refused_with_the_ways_out(folder):
    (folder / "ali.1.gz").touch()
    with pytest.raises(UserError, match=r"alignments of frames.*ali-to-phones.*--realign"):
        read(folder)
    assert read(folder, realign=True).n_targets == 3


def test_a_directory_is_imported_by_command_with_its_own_splits(folder, tmp_path, capsys):
    directory(tmp_path / "eval", 6)
    arpa = "\\data\\\nngram 1=4\n\n\\1-grams:\n-1 </s>\n-99 <s>\n-0.5 ab\n-0.5 ba\n\n\\end\\\n"
    (tmp_path / "lm.txt").write_text(arpa)
    out = tmp_path / "out"
    arguments = ["corpus", "import", "kaldi", str(folder), "--out", str(out)]
    arguments += ["--dev", str(tmp_path / "eval"), "--test", str(tmp_path / "eval")]
    arguments += ["--lm", str(tmp_path / "lm.txt"), "--rounds", "2", "--leaves", "0"]
    assert main(arguments) == 0
    made = load(out)
    assert made.tests == ("eval",)
    assert [len(made.split(s)) for s in ("train", "dev", "eval")] == [20, 6, 6]
    assert (out / "lm.arpa").read_text() == arpa
    assert "fingerprint" in capsys.readouterr().out


def test_what_no_directory_is_for_is_parted_off_the_training_directory(folder, tmp_path):
    directory(tmp_path / "eval", 6)
    lexicon = folder / "lexicon.txt"
    train, other = k.Folder(folder, "train"), tmp_path / "eval"
    made = k.read([train, k.Folder(other, "eval")], lexicon, RECIPE, lambda line: None)
    assert [len(made.split(s)) for s in ("train", "dev", "eval")] == [18, 2, 6]
    made = k.read([train, k.Folder(other, "dev")], lexicon, RECIPE, lambda line: None)
    assert [len(made.split(s)) for s in ("train", "dev", "test")] == [18, 6, 2]


def test_a_directory_too_small_to_be_parted_is_refused(tmp_path):
    directory(tmp_path / "small", 6)
    with pytest.raises(UserError, match="too few utterances to part off dev and test"):
        read(tmp_path / "small")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("lexicon.txt", b"ab\n", "line 1: word 'ab' has no phones"),
        ("lexicon.txt", b"\n", "no words"),
        ("text", b"s0-u00 ba\ns0-u00 ab\n", "line 2: s0-u00 occurs twice"),
        ("text", b"s0-u00 b\xff\n", "line 1 is not UTF-8 text"),
    ],
)
def test_a_bad_table_is_one_line_and_exit_code_2(folder, tmp_path, capsys, name, text, message):
    (folder / name).write_bytes(text)
    assert main(["corpus", "import", "kaldi", str(folder), "--out", str(tmp_path / "o")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_line_feeds_end_a_line(folder, sign):
    edit(folder / "text", lambda text: text.replace("ab ba", f"ab{sign}ba").replace("\n", "\r\n"))
    edit(folder / "lexicon.txt", lambda text: text.replace("a b", f"a{sign}b"))
    table = read_table(folder / "text")
    assert len(table) == 20
    assert table["s1-u01"].split() == ["ab", "ba"]
    assert read_lexicon(folder / "lexicon.txt")["ab"] == ("a", "b")


@pytest.mark.parametrize("name", ["feats.scp", "text", "utt2spk"])
def test_utterances_without_features_are_counted_in_one_line(aligned, name):
    folder, _ = aligned
    edit(folder / name, lambda text: "".join(text.splitlines(keepends=True)[:17]))
    lines = []
    assert len(read(folder, SKIPPING, lines).utterances) == 17
    is_silent = name == "feats.scp"
    told = "3 of 20 utterances have no recording or features, and are left out: s0-u18, s1-u19, s2"
    assert any(told in line for line in lines) == is_silent
