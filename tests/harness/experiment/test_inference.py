"""Runs where autograd cannot be asked: the same bytes, and cheaper calls."""

import pytest
import torch

from harness.acoustics.rbm import Recipe
from harness.algorithms.averaging import ModelAveraging
from harness.experiment.run import run as execute
from harness.experiment.run import run as train
from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner
from harness.simulator.protocols.averaging import Averaging
from harness.speech import task
from harness.store import Store
from tests.folds import ALGORITHMS
from tests.killed import kept_bytes
from tests.silence import silent

NG = NaturalGradient(Preconditioner(2, 2), Preconditioner(3, 2), PerSample(0.4))


@pytest.fixture
def grid_run(corpus, monkeypatch):
    """A run as a grid executes it, on a corpus that is there."""
    monkeypatch.setattr(task, "load_corpus_with_targets", lambda *_: corpus)
    return lambda config, store: execute(config, store, silent)


SETTINGS = {
    name: {"algorithm": algorithm, "workers": 4}
    | ({"protocol": Averaging(1, overlap=name == "eager DiLoCo")} if algorithm.rounds else {})
    for name, algorithm in ALGORITHMS.items()
}
NATURAL = {"algorithm": ModelAveraging(NG), "protocol": Averaging(3), "initial": Recipe()}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["natural gradient, pretrained", *SETTINGS])
def test_a_run_gives_the_bytes_of_one_with_autograd_at_hand(
    name, configure, corpus, tmp_path, grid_run
):
    config = configure(passes=1, **SETTINGS.get(name, NATURAL))
    with_autograd = train(config, Store(tmp_path / "with"), silent)
    without = grid_run(config, Store(tmp_path / "without"))
    assert kept_bytes(without) == kept_bytes(with_autograd)


def test_autograd_is_there_again_after_a_run(configure, tmp_path, grid_run):
    grid_run(configure(passes=1), Store(tmp_path))
    assert not torch.is_inference_mode_enabled()
