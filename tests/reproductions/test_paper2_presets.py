"""Paper 2's larger presets: their configurations exist, and the paper's network trains."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from data_synth.corpus import Corpus, Utterances
from harness.acoustics.rbm import WideRandom
from harness.algorithms.averaging import ModelAveraging
from harness.simulator import Averaging
from harness.speech.frames import RunConfig
from harness.store import Store
from harness.training import loop
from harness.training.run import train
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging import PAPER
from reproductions.paper2_ng_averaging.prediction import REPORTED

PRINTED = REPORTED["paper"]
SCALES = ("smoke", "laptop", "gpu", "paper")
FRAMES = 24


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Short utterances, as wide as the paper's: 40 features, 8,806 targets."""
    splits = ("train", "train", "dev", "swb", "callhome")
    n, draw, last = len(splits), np.random.default_rng(0), PRINTED["layers"][-1] - 1
    table = Utterances(
        np.array([f"u{i}" for i in range(n)]),
        np.array(["s"] * n),
        np.array(splits),
        np.arange(n, dtype=np.int64) * FRAMES,
        np.full(n, FRAMES, np.int64),
        (("yes",),) * n,
    )
    features = draw.standard_normal((n * FRAMES, 40)).astype(np.float32)
    targets = draw.choice([0, 1, last], n * FRAMES).astype(np.int32)
    return Corpus("tiny", features, targets, table, {"yes": (0, 1), "no": (last,)})


def experiments(scale: str, corpus: Corpus) -> dict[str, RunConfig]:
    found = PAPER.experiments(Subject(scale, corpus, 11, "cpu"), 11)
    return {name: config for name, config in found.items() if isinstance(config, RunConfig)}


def test_the_paper_preset_has_the_papers_network_minibatches_and_rates(corpus):
    runs = experiments("paper", corpus)
    inputs = corpus.dim * (2 * corpus.context + 1)
    for workers in PRINTED["nodes"]:
        config = runs[f"ng_{workers}"]
        assert [inputs, *config.hidden, corpus.n_targets] == PRINTED["layers"]
        assert [stage.minibatch for stage in config.stages] == [PRINTED["minibatch"]]
        assert config.schedule.rate == pytest.approx(0.32 * workers)
        assert config.passes == PRINTED["epochs"]


def test_the_papers_network_makes_its_first_folds_on_a_cpu(corpus, tmp_path, monkeypatch):
    """Two workers with two minibatches of six frames in place of ten of 1024."""
    config = experiments("paper", corpus)["ng_32"]
    assert isinstance(config.protocol, Averaging)
    assert isinstance(config.algorithm, ModelAveraging)
    short = replace(
        config, stages=(replace(config.stages[0], minibatch=6),), passes=1, tested="never",
        initial=WideRandom(), workers=2, protocol=replace(config.protocol, every=2),
    )  # fmt: skip
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", math.inf)  # of hundreds of megabytes
    run = train(short, corpus, Store(tmp_path), lambda progress: None)
    assert (run.status, run.summary["folds"]) == ("done", 2)
    before, after = run.curve("dev_loss/iterate")[1]
    assert np.isfinite([before, after]).all()
    assert before != after
