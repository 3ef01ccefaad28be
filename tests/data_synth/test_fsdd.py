import dataclasses
import io
import tarfile

import numpy as np
import pytest

import data_synth
from data_synth.corpus import Corpus
from data_synth.public import fsdd
from data_synth.public.fetching import manifest_sha256
from harness.base.errors import UserError
from harness.base.seeds import stream
from tests.data_synth.small import check_alignment, check_noise, recorded_digits, write_wav
from tests.processes import run

RECIPE = fsdd.Recipe(train_takes=2, word_states=3, silence_states=1, rounds=2)


def say(path, digit, key):
    """A hum with its digit's pitch and a change in the middle, 0.15 s."""
    rng = stream(7, "hum", *key)
    t = np.arange(1200) / fsdd.RATE_HZ
    hz = np.where(t < 0.07, 300 + 150 * digit, 2500 - 100 * digit)
    sound = 6000 * np.sin(2 * np.pi * hz * t) + 200 * rng.normal(size=1200)
    write_wav(path, sound)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A corpora folder laid out like the real one, with sounds made here for takes 0 to 11."""
    root = tmp_path_factory.mktemp("corpora")
    folder = root / "fsdd" / "recordings"
    folder.mkdir(parents=True)
    for digit in range(10):
        for who, speaker in enumerate(fsdd.SPEAKERS):
            for take in range(12):
                say(folder / fsdd.recording(digit, speaker, take), digit, (digit, who, take))
    return root


@pytest.fixture
def small(root, monkeypatch, tmp_path):
    """The small corpora folder in effect, and an empty cache."""
    monkeypatch.setattr(fsdd, "TAKES", 12)
    monkeypatch.setitem(fsdd.PRESETS, "smoke", RECIPE)
    monkeypatch.setenv("LAGBENCH_CORPORA", str(root))
    return tmp_path


def copied(root, to):
    """The corpora folder again, to be damaged."""
    folder = to / "fsdd" / "recordings"
    folder.mkdir(parents=True)
    for path in (root / "fsdd" / "recordings").iterdir():
        (folder / path.name).hardlink_to(path)
    return folder


@pytest.fixture(scope="module")
def made(root):
    return fsdd.build(RECIPE, root / "fsdd" / "recordings", lambda line: None)


def test_splits_follow_the_official_numbering(made):
    takes = {
        s: {int(i.rsplit("_", 1)[1]) for i in made.split(s).id}
        for s in ("train", "dev", "clean", "noise")
    }
    assert takes == {
        "train": {10, 11},
        "dev": {5, 6, 7, 8, 9},
        "clean": {0, 1, 2, 3, 4},
        "noise": {0, 1, 2, 3, 4},
    }
    assert len(set(made.utterances.id)) == len(made.utterances)


def test_every_utterance_is_aligned_to_its_own_word(made):
    assert made.n_targets == 31
    assert len(made.features) == len(made.targets) == made.utterances.total_frames
    check_alignment(made)


def test_noise_keeps_the_clean_targets_and_changes_the_sound(made):
    check_noise(made)


def test_the_seed_moves_the_babble_and_nothing_else(made, root):
    other = fsdd.build(
        dataclasses.replace(RECIPE, seed=1), root / "fsdd" / "recordings", lambda line: None
    )
    differs = (other.features != made.features).any(axis=1)
    noise = made.split("noise").start[0]
    assert not differs[:noise].any()
    assert differs[noise:].mean() > 0.9


def test_a_corpus_is_made_once_and_in_another_process_the_same(small, root):
    first = data_synth.load_corpus("fsdd", scale="smoke", cache=small)
    assert (
        data_synth.load_corpus("fsdd", scale="smoke", cache=small).fingerprint == first.fingerprint
    )
    assert len(list((small / "corpora").iterdir())) == 1
    code = (
        "import sys; from pathlib import Path; from data_synth.public import fsdd;"
        "r = fsdd.Recipe(train_takes=2, word_states=3, silence_states=1, rounds=2);"
        "print(fsdd.build(r, Path(sys.argv[1]), lambda line: None).fingerprint)"
    )
    folder = root / "fsdd" / "recordings"
    answer = run(["-c", code, folder])
    assert answer.stdout.strip() == first.fingerprint


def test_no_recordings_anywhere_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.delenv("LAGBENCH_CORPORA", raising=False)
    with pytest.raises(UserError, match=r"no recordings in .*LAGBENCH_CORPORA.* fetch fsdd"):
        data_synth.load_corpus("fsdd", scale="smoke", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_used_when_the_corpora_folder_has_no_digits(small, root, monkeypatch):
    copied(root, small)
    monkeypatch.setenv("LAGBENCH_CORPORA", str(small / "elsewhere"))
    assert fsdd.find(small) == small / "fsdd" / "recordings"


def cut_short(path, raw):
    path.write_bytes(raw[:-500])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path, raw: None, r"3_lucas_7\.wav is missing \(1 of 720 recordings"),
        (cut_short, r"3_lucas_7\.wav: truncated"),
        (lambda path, raw: write_wav(path, np.zeros(300)), r"3_lucas_7\.wav: 2 frames.*at least 3"),
    ],
)
def test_a_recording_that_cannot_be_used_is_named_and_nothing_is_kept(
    small, root, monkeypatch, damage, message
):
    path = copied(root, small / "damaged") / "3_lucas_7.wav"
    raw = path.read_bytes()
    path.unlink()
    damage(path, raw)
    monkeypatch.setenv("LAGBENCH_CORPORA", str(small / "damaged"))
    with pytest.raises(UserError, match=message):
        data_synth.load_corpus("fsdd", scale="smoke", cache=small)
    assert not list(small.glob("corpora/*"))


def archive(folder, to):
    with tarfile.open(to, "w:gz") as tar:
        tar.add(folder, arcname="free-spoken-digit-dataset-x/recordings")
        note = tarfile.TarInfo("free-spoken-digit-dataset-x/README.md")
        tar.addfile(note, io.BytesIO())
    return to.as_uri()


def test_a_fetched_archive_becomes_the_caches_recordings(small, root, monkeypatch):
    folder = root / "fsdd" / "recordings"
    url = archive(folder, small / "a.tar.gz")
    monkeypatch.setattr(fsdd, "MANIFEST_SHA256", manifest_sha256(folder))
    lines = []
    place = fsdd.fetch(small, lines.append, url)
    assert manifest_sha256(place) == manifest_sha256(folder)
    assert lines[-1].startswith("fsdd: 720 files in")
    monkeypatch.delenv("LAGBENCH_CORPORA")
    assert fsdd.find(small) == place
    fsdd.fetch(small, lines.append, "file:///nowhere")
    assert lines[-1].startswith("fsdd: already in")


def test_an_archive_with_other_recordings_is_refused_and_not_kept(small, root):
    url = archive(root / "fsdd" / "recordings", small / "a.tar.gz")
    with pytest.raises(UserError, match=r"SHA-256 is [0-9a-f]{64}, expected 1801eae0"):
        fsdd.fetch(small, lambda line: None, url)
    assert list((small / "fsdd").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_what_is_no_archive_is_refused_and_not_kept(tmp_path, content):
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(UserError, match="could not be fetched"):
        fsdd.fetch(tmp_path, lambda line: None, (tmp_path / "a.tar.gz").as_uri())
    assert list((tmp_path / "fsdd").iterdir()) == []


def test_the_recordings_are_the_published_ones():
    assert manifest_sha256(recorded_digits()) == fsdd.MANIFEST_SHA256


def test_gaussians_of_the_recorded_corpus_recognise_digits(tmp_path):
    from data_synth.align import refit
    from harness.acoustics.hmm import chain_scores, chains

    recorded_digits()
    corpus = data_synth.load_corpus("fsdd", scale="smoke", cache=tmp_path)
    assert (corpus.dim, corpus.n_targets, corpus.frames_of("train")) == (39, 83, 50703)
    assert isinstance(corpus, Corpus)
    train = corpus.frames_of("train")
    model = refit(corpus.features[:train], corpus.targets[:train], corpus.n_targets)
    words = chains(corpus.lexicon, corpus.silence)
    wrong = {}
    for split in corpus.tests:
        u = corpus.split(split)
        best = [
            words.words[chain_scores(model.loglik(corpus.features[s : s + n]), words).argmax()]
            for s, n in zip(u.start, u.frames, strict=True)
        ]
        wrong[split] = np.mean([b != w for b, (w,) in zip(best, u.words, strict=True)])
    assert wrong["clean"] < 0.1
    assert wrong["clean"] < wrong["noise"] < 0.4
