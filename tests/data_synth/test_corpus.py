import errno
from dataclasses import replace

import numpy as np
import pytest

from data_synth import load_corpus
from data_synth.corpus import frame_edges, splice_index
from data_synth.storage import Chunk, load, new_folder, save, write_chunks
from harness.base.errors import UserError
from tests.data_synth.small import small_corpus, utterances


def test_splicing_repeats_the_edge_frames_of_each_utterance():
    rows = splice_index(utterances([3, 1, 2], start=10), 2)
    assert rows.tolist() == [
        [10, 10, 10, 11, 12], [10, 10, 11, 12, 12], [10, 11, 12, 12, 12], [13, 13, 13, 13, 13],
        [14, 14, 14, 15, 15], [14, 14, 15, 15, 15],
    ]  # fmt: skip


def test_frame_edges_name_each_frames_own_row():
    row, first, last = frame_edges(utterances([2, 1], start=5))
    assert row.tolist() == [5, 6, 7]
    assert first.tolist() == [5, 5, 7]
    assert last.tolist() == [6, 6, 7]


def test_splits_hold_their_own_utterances():
    corpus = small_corpus()
    assert corpus.split("dev").id.tolist() == ["dev-0", "dev-1"]
    assert corpus.frames_of("train") == 8
    assert corpus.frames_of("noise") == 0
    assert corpus.n_targets == 5


def test_an_unknown_split_is_named_with_those_that_exist():
    with pytest.raises(UserError, match=r"'trian' \(did you mean 'train'\?\).*clean, dev, noise"):
        small_corpus().split("trian")


def test_a_saved_corpus_comes_back_whole(tmp_path):
    corpus = small_corpus()
    save(corpus, tmp_path / "c")
    back = load(tmp_path / "c")
    assert isinstance(back.features, np.memmap)
    assert (back.features == corpus.features).all()
    assert (back.targets == corpus.targets).all()
    assert back.utterances.words == corpus.utterances.words
    assert back.utterances.start.tolist() == corpus.utterances.start.tolist()
    assert back.utterances.start.dtype == np.int64
    assert back.card == corpus.card
    assert back.fingerprint == corpus.fingerprint == back.computed_fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_the_fingerprint_sees_every_part():
    corpus = small_corpus()
    u = corpus.utterances
    others = [
        replace(corpus, name="other"),
        replace(corpus, context=4),
        replace(corpus, lexicon={"one": (2, 3), "two": (3, 3, 4)}),
        replace(corpus, features=corpus.features + np.float32(1)),
        replace(corpus, targets=corpus.targets[::-1]),
        replace(corpus, utterances=replace(u, words=(("two",), *u.words[1:]))),
        replace(corpus, utterances=replace(u, speaker=u.speaker[::-1])),
    ]
    assert len({corpus.fingerprint, *(c.fingerprint for c in others)}) == 1 + len(others)


def test_the_bytes_on_disk_do_not_depend_on_the_chunks(tmp_path):
    corpus = small_corpus()
    whole = [Chunk(corpus.features, corpus.targets, corpus.utterances)]
    pieces = []
    for start, end, rows in ((0, 4, [0, 1]), (4, 15, [2, 3, 4])):
        table = corpus.utterances.take(np.array(rows)).shifted(-start)
        pieces.append(Chunk(corpus.features[start:end], corpus.targets[start:end], table))
    for name, chunks in (("whole", whole), ("pieces", pieces)):
        (tmp_path / name).mkdir()
        write_chunks(tmp_path / name, corpus.card, chunks)
    for file in ("features.npy", "targets.npy", "utterances.parquet", "corpus.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "pieces" / file).read_bytes()


def test_a_corpus_is_not_saved_over_another(tmp_path):
    save(small_corpus(), tmp_path / "c")
    with pytest.raises(UserError, match="exists already"):
        save(small_corpus(), tmp_path / "c")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"c: cannot write here"):
        save(small_corpus(), tmp_path / "file" / "c")


def test_a_disk_that_fills_up_is_named_and_nothing_is_kept(tmp_path):
    def fill(folder):
        (folder / "features.npy").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"cannot write here \(No space left on device\)"):
        new_folder(tmp_path / "c", fill)
    assert list(tmp_path.iterdir()) == []


def test_whoever_finishes_first_keeps_the_folder(tmp_path):
    def fill(folder):
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "theirs").touch()

    new_folder(tmp_path / "c", fill)
    assert [p.name for p in tmp_path.rglob("*")] == ["c", "theirs"]


@pytest.mark.parametrize(
    "file", ["features.npy", "targets.npy", "utterances.parquet", "corpus.json"]
)
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_corpus_is_refused_in_one_line(tmp_path, file, damage):
    save(small_corpus(), tmp_path / "c")
    path = tmp_path / "c" / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="not a whole corpus") as error:
        load(tmp_path / "c")
    assert "\n" not in str(error.value)
    assert str(tmp_path / "c") in str(error.value)


def test_arrays_of_different_lengths_are_refused(tmp_path):
    save(small_corpus(), tmp_path / "c")
    np.save(tmp_path / "c" / "targets.npy", np.zeros(14, np.int32))
    with pytest.raises(UserError, match=r"features\.npy has 15 frames, targets.npy 14"):
        load(tmp_path / "c")


def test_a_folder_stands_where_the_name_of_a_corpus_may(tmp_path):
    corpus = small_corpus()
    save(corpus, tmp_path / "mine")
    found = load_corpus(str(tmp_path / "mine"), scale="smoke")
    assert found.fingerprint == corpus.fingerprint
    assert found.name == str(tmp_path / "mine")
    with pytest.raises(UserError, match=r"unknown 'nowhere'.*the folder of a saved corpus"):
        load_corpus("nowhere", scale="smoke")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        load_corpus(str(tmp_path / "empty"), scale="smoke")
