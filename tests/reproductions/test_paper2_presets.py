"""Paper 2's larger presets: their configurations exist, and the paper's network trains."""

from dataclasses import replace

import pytest

from data_synth.corpus import Corpus
from harness.acoustics.rbm import WideRandom
from harness.algorithms.averaging import ModelAveraging
from harness.experiment.experiment import Experiment
from harness.simulator import Averaging
from harness.speech.task import Frames
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging import PAPER
from reproductions.paper2_ng_averaging.prediction import REPORTED
from tests.reproductions.test_paper1_presets import make_two_folds
from tests.stand_in import noise_of

PRINTED = REPORTED["paper"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Short utterances, as wide as the paper's: 40 features, 8,806 targets."""
    return noise_of(("train", "train", "dev", "swb", "callhome"), 40, PRINTED["layers"][-1])


def experiments(scale: str, corpus: Corpus) -> dict[str, Experiment[Frames]]:
    found = PAPER.experiments(Subject(scale, corpus, 11, "cpu"), 11)
    return {
        name: config
        for name, config in found.items()
        if isinstance(getattr(config, "task", None), Frames)
    }


def test_the_paper_preset_has_the_papers_network_minibatches_and_rates(corpus):
    runs = experiments("paper", corpus)
    inputs = corpus.dim * (2 * corpus.context + 1)
    for workers in PRINTED["nodes"]:
        config = runs[f"ng_{workers}"]
        assert [inputs, *config.task.hidden, corpus.n_targets] == PRINTED["layers"]
        assert [stage.minibatch for stage in config.stages] == [PRINTED["minibatch"]]
        assert config.schedule.rate == pytest.approx(0.32 * workers)
        assert config.passes == PRINTED["epochs"]


def test_the_papers_network_makes_its_first_folds_on_a_cpu(corpus, tmp_path, monkeypatch):
    """Two workers with two minibatches of six frames in place of ten of 1024."""
    config = experiments("paper", corpus)["ng_32"]
    assert isinstance(config.protocol, Averaging)
    assert isinstance(config.algorithm, ModelAveraging)
    short = config.vary(
        stages=(replace(config.stages[0], minibatch=6),), passes=1, tested="never",
        initial=WideRandom(), workers=2, protocol=replace(config.protocol, every=2),
    )  # fmt: skip
    make_two_folds(short, corpus, tmp_path, monkeypatch)
