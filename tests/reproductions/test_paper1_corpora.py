"""Paper 1 on corpora that are not the paper's: other test sets, other words, bad recordings."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_synth.corpus import Corpus
from harness.speech import frames as corpora
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper1_async_asgd import claims, exhibits
from reproductions.paper1_async_asgd.experiments import (
    CHUNK_HOURS,
    chunk_name,
    differences,
    minibatch_of,
)
from tests.reproductions.by_hand import RunsByHand
from tests.stand_in import utterances

UTTERANCES = 50
SETTINGS = ("one_pass", "multi_pass", "one_pass_hand", *map(chunk_name, CHUNK_HOURS[1:]))


def corpus_of(name: str, tests: tuple[str, ...], test_speaker: str) -> Corpus:
    """Four utterances of ten frames a split; the words are characters of one state each."""
    splits = [split for split in ("train", "dev", *tests) for _ in range(4)]
    speakers = np.array([test_speaker if split in tests else "s" for split in splits])
    table = replace(utterances(splits, 10, "人"), speaker=speakers)
    features = np.zeros((table.total_frames, 3), np.float32)
    targets = np.zeros(table.total_frames, np.int32)
    said = (("人", "人"),)
    return Corpus(name, features, targets, table, {"人": (0,)}, tests=tests, lm_text=said)


def one_test_set() -> Subject:
    return Subject("smoke", corpus_of("aishell", ("test",), "s"), 11, "cpu")


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, list[Run]]:
    """Two seeds of every setting on a corpus whose only test set is ``test``."""
    book, made = RunsByHand(tmp_path, UTTERANCES), {}
    for number, name in enumerate(SETTINGS):
        models = ("iterate",) if name == "multi_pass" else ("average", "iterate", "window")
        made[name] = []
        for seed in range(2):
            wrong = 5 + number + seed
            rows = [(f"test_frame_error/{m}", wrong / UTTERANCES / 2, 1.0, 1.0) for m in models]
            rates = {f"test/{model}/0": (wrong - 0.5) / UTTERANCES for model in models}
            losses = {"dev_loss/iterate": 1.5, "train_loss": 1.2 + 0.1 * seed}
            summary = {"passes": 1, "stopped": 1, **losses}
            made[name].append(book.finish(summary, rows, rates, turns=1))
    return made


def test_a_test_set_the_paper_does_not_have_is_measured_without_its_figures(runs):
    subject = one_test_set()
    for exhibit in (exhibits.table1(subject, runs), exhibits.table2(subject, runs)):
        assert exhibit.rows
        assert all(row.paper is None and row.measured is not None for row in exhibit.rows)
    close = claims.one_pass_close(subject, runs)
    assert (close.paper, close.measured) == (None, pytest.approx(5.5 / 6.5))
    frames = next(part for part in close.parts if part.measure == "frames")
    assert frames.measured == pytest.approx(5.5 / 6.5)


def test_a_corpus_without_noisy_speech_leaves_that_claim_undecided_and_says_why(runs):
    claim = claims.noise_harder(one_test_set(), runs)
    assert (claim.here, claim.measured, claim.parts[0].measured) == ("unclear", None, None)
    assert "aishell has no clean and noisy test sets" in claim.note


def test_errors_are_named_for_what_the_corpus_has():
    def told(name: str, **changes: Any) -> str:
        corpus = replace(corpus_of(name, ("test",), "s"), **changes)
        return exhibits.error_note(Subject("smoke", corpus, 11, "cpu"))

    assert "characters too" in told("aishell")
    assert "errors in words" in told("conversational")
    assert "isolated-word" in told("fsdd", lm_text=())


@pytest.mark.parametrize(("speaker", "which"), [("s", "the same"), ("t", "other")])
def test_the_differences_tell_whether_the_test_speakers_were_heard_in_training(speaker, which):
    subject = Subject("smoke", corpus_of("aishell", ("test",), speaker), 11, "cpu")
    rows = {thing: ours for thing, _, ours in differences(subject)}
    assert rows["test sets"] == f"test: 4 utterances of {which} speakers"
    assert rows["error on the test sets"] == "characters, decoded with a bigram"


@pytest.mark.parametrize(("name", "skip"), [("aishell", True), ("fsdd", False)])
def test_recordings_that_cannot_be_used_are_left_out_where_a_corpus_can_do_so(
    name, skip, monkeypatch
):
    asked = {}

    def load(corpus: str, **options: Any) -> Any:
        asked.update(options, corpus=corpus)
        return SimpleNamespace(fingerprint="f")

    monkeypatch.setattr(corpora, "load_corpus", load)
    config: Any = SimpleNamespace(corpus=name, scale="smoke", corpus_seed=11, fingerprint="f")
    corpora.corpus_of(config)
    del asked["progress"]
    assert asked == {"corpus": name, "scale": "smoke", "seed": 11, "skip": skip}


@pytest.mark.parametrize(
    ("scale", "frames", "minibatch"),
    [("smoke", 73_089, 16), ("smoke", 180_762, 64), ("laptop", 500_000, 32), ("paper", 10**8, 256)],
)
def test_a_smoke_pass_over_a_large_corpus_has_larger_minibatches_and_not_more_folds(
    scale, frames, minibatch
):
    corpus: Any = SimpleNamespace(frames_of=lambda split: frames)
    assert minibatch_of(Subject(scale, corpus, 11, "cpu")) == minibatch
