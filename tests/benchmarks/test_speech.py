"""What sequence training's executor costs beyond its arithmetic, within one run.

Four replicas train one pass of a small task, asynchronously, as timed. Beside it stands a loop
that does nothing but what training needs: every utterance's forward pass and outer gradient, and
the gradients of as many minibatches of kept frames. Timing, reads, slots, folds and checkpoints
are what is above 1; measuring the model is in neither.
"""

from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import torch

from data_synth import load_corpus
from harness.acoustics.mmi import Criterion
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.schedules import Constant
from harness.experiment.experiment import Stage
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.simulator.cluster import load_cluster
from harness.speech.sequence import Setup
from harness.speech.sequence_training import SequenceTraining
from harness.speech.task import Frames
from harness.store import Store
from tests.benchmarks.test_replay import speech_of
from tests.experiments import experiment, sequence_experiment

CLUSTER = Path(__file__).parents[2] / "reproductions" / "clusters" / "distbelief.toml"
HIDDEN, REPLICAS, SLOTS, UTTERANCES = (128, 128), 4, 4, 40


def small_task():
    """Paper 3's small task, of which the first training utterances are used."""
    corpus = load_corpus("voice-search-small", scale="smoke")
    table = corpus.utterances
    beyond = np.flatnonzero(table.split == "train")[UTTERANCES:]
    split = table.split.copy()
    split[beyond] = "rest"
    return replace(corpus, utterances=replace(table, split=split))


def configured(corpus):
    cluster = load_cluster(CLUSTER)
    named = {"corpus": "small", "scale": "smoke", "corpus_seed": 0, "fingerprint": "small"}
    both = {**named, "cluster": cluster, "timed_layers": (429, *HIDDEN)}
    start = experiment(Frames,
        **both, hidden=HIDDEN, activation="relu", initial=None, algorithm=AsyncSgd(),
        schedule=Constant(1e-4), stages=(Stage(100, 100),), passes=1, chunk=1.0, evaluations=1,
        workers=1, seed=0,
    )  # fmt: skip
    criterion = Criterion(kappa=0.3, numerator="sum", reject_below=0.0)
    return sequence_experiment(
        **both, start=start, criterion=criterion, seed=0, workers=REPLICAS, slots=SLOTS,
        rate=1e-5, passes=1, evaluations=1, held_out=1, decode_cost=1.27, tested="never",
    )  # fmt: skip


class Unmeasured(SequenceTraining):
    """A training whose model nobody measures."""

    def evaluate(self) -> None:
        self.measured.append(-1.0)


def trained(config, corpus, model, folder):
    """One pass by the executor; the training afterwards."""
    with Store(folder).begin(config.to_dict()) as writer:
        training = Unmeasured(writer, config, corpus, model, lambda progress: None)
        training.run()
    return training


def bare(setup, minibatches):
    """Every utterance's outer gradient, and the gradients of so many minibatches."""
    every = range(len(setup.train))
    decoded = setup.decoder.decode([setup.part] * len(every), every)
    x = torch.cat([each.x for each in decoded])
    outer = torch.cat([each.gradient for each in decoded])
    stack = setup.part.unsqueeze(0)
    out = torch.empty_like(stack)
    for k in range(minibatches):
        rows = torch.arange(k * SLOTS, (k + 1) * SLOTS) % len(x)
        setup.loss.gradient(stack, x[rows].unsqueeze(0), outer[rows].unsqueeze(0), out)


def test_a_pass_of_sequence_training_over_its_bare_arithmetic(compare, tmp_path):
    corpus = small_task()
    config = configured(corpus)
    inputs = corpus.dim * (2 * corpus.context + 1)
    net = Dnn(Layout((inputs, *HIDDEN, corpus.n_targets)), "relu")
    model = random_parameters(net.layout, torch.Generator().manual_seed(0))[0]
    setup = Setup.from_config(config, corpus, model)
    training = trained(config, corpus, model, tmp_path / "first")
    folds = training.executor.server.version
    assert training.epoch == 1.0
    assert training.total.kept + training.tally.kept > 0.6 * SLOTS * folds
    stores = count()
    compare(
        lambda: trained(config, corpus, model, tmp_path / str(next(stores))),
        lambda: bare(setup, folds),
        at_most=3.0,
        rounds=3,
    )


def test_gathering_spliced_frames_over_indexing(compare):
    speech, _ = speech_of((440, 64, 352))
    rows = torch.randint(len(speech.targets), (4, 256))
    spliced = torch.randn(len(speech.targets), 440)
    compare(lambda: speech.gather(rows), lambda: spliced[rows], at_most=1.6)
