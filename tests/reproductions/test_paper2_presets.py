"""Paper 2's larger presets: their configurations exist, and the paper's network trains."""

import pytest

from data_synth.corpus import Corpus
from harness.experiment.experiment import Experiment
from harness.speech.task import Frames
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging import PAPER
from reproductions.paper2_ng_averaging.prediction import REPORTED
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
