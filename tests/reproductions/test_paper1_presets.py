"""Paper 1's larger presets: their configurations exist, and the paper's network trains."""

import math
from dataclasses import replace

import numpy as np
import pytest

from data_synth.corpus import Corpus
from harness.algorithms.schedules import Constant
from harness.experiment import loop
from harness.experiment.run import run as train
from harness.speech import frames
from harness.speech.task import Frames
from harness.store import Store
from reproductions.paper import Subject
from reproductions.paper1_async_asgd import PAPER
from reproductions.paper1_async_asgd.experiments import REPORTED
from tests.stand_in import noise_of

INPUTS, TARGETS = REPORTED["paper"]["layers"][0], REPORTED["paper"]["layers"][-1]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """One short utterance a split, as wide as the paper's: 39 features, 10,217 targets."""
    return noise_of(("train", "dev", "clean", "noise"), 39, TARGETS)


def test_the_paper_preset_has_the_papers_network_minibatches_and_shares(corpus):
    runs = PAPER.experiments(Subject("paper", corpus, 11, "cpu"), 11)
    names = ("one_pass", "multi_pass", "search", "chunk_25")
    one, many, part, large = (
        c for c in map(runs.get, names) if isinstance(getattr(c, "task", None), Frames)
    )
    inputs = corpus.dim * (2 * corpus.context + 1)
    levels = [inputs, *one.task.hidden, corpus.n_targets]
    assert levels == REPORTED["paper"]["layers"] == [INPUTS, *[2048] * 7, TARGETS]
    assert [(s.minibatch, s.share) for s in one.stages] == [(256, 1.0)]
    assert [s.minibatch for s in many.stages] == [64, 256, 256, 1024]
    assert many.stages[0].share == 0.25
    assert part.stages[0].share == 0.2
    assert one.chunk == 1 / 500
    assert large.chunk == 25 / 500


def make_two_folds(short, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "_load_cached", lambda *settings: corpus)
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", math.inf)  # of hundreds of megabytes
    run = train(short, Store(tmp_path), lambda progress: None)
    assert (run.status, run.summary["folds"]) == ("done", 2)
    before, after = run.curve("dev_loss/iterate")[1]
    assert np.isfinite([before, after]).all()
    assert before != after
    return run


@pytest.mark.nightly
def test_the_papers_network_makes_its_first_folds_on_a_cpu(corpus, tmp_path, monkeypatch):
    """Two minibatches of twelve frames in place of 256: the arithmetic is the same."""
    config = PAPER.experiments(Subject("paper", corpus, 11, "cpu"), 11)["one_pass"]
    assert isinstance(getattr(config, "task", None), Frames)
    stage = replace(config.stages[0], minibatch=12)
    short = config.vary(
        stages=(stage,), passes=1, initial=None, evaluations=1, tested="never", workers=2,
        schedule=Constant(0.008 / 256), chunk=1.0,
    )  # fmt: skip
    run = make_two_folds(short, corpus, tmp_path, monkeypatch)
    # The cluster is charged for the paper's 256 frames: one cycle of 135 ms, and a second fold.
    assert 0.13 < run.summary["virtual_s"] < 0.17
