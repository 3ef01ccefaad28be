"""Priors: counted on the training set alone, and subtracted from the logarithm of posteriors."""

from dataclasses import replace

import numpy as np
import torch

from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.speech.evaluation import FrameEvaluator, log_prior, rows_of
from harness.speech.frames import FramesOnDevice


def network():
    net = Dnn(Layout((9, 6, 5)))
    return net, random_parameters(net.layout, torch.Generator().manual_seed(1))[0]


def test_priors_are_the_shares_of_targets_in_training(corpus):
    train = corpus.split("train")
    rows = [
        row
        for start, length in zip(train.start, train.frames, strict=True)
        for row in range(start, start + length)
    ]
    counts = [int(np.sum(corpus.targets[rows] == target)) for target in range(5)]
    assert len(set(counts)) > 2
    assert log_prior(corpus).tolist() == np.log(np.array(counts) / len(rows)).tolist()


def test_a_target_that_training_has_not_counts_once(corpus):
    without = replace(corpus, targets=np.where(corpus.targets == 4, 3, corpus.targets))
    dev = corpus.split("dev").start[0]
    without.targets[dev] = 4  # there are as many targets as before, this one not in training
    prior = log_prior(without)
    train = rows_of(without, "train").numpy()
    counts = np.bincount(without.targets[train], minlength=5)
    assert counts[4] == 0
    assert prior[4] == np.log(1 / (counts.sum() + 1))


def test_scores_of_recognition_are_log_posteriors_less_log_priors(corpus):
    net, model = network()
    frames = FramesOnDevice.from_corpus(corpus, "cpu")
    part = corpus.split("clean")
    found = FrameEvaluator(net, frames, corpus).likelihoods(model, part)
    first, last = net.layout.views(model.unsqueeze(0).double())
    for scores, start, length in zip(found, part.start, part.frames, strict=True):
        x = frames.gather(torch.arange(start, start + length).unsqueeze(0)).x[0].double()
        hidden = torch.sigmoid(x @ first.weight[0].T + first.bias[0])
        logits = hidden @ last.weight[0].T + last.bias[0]
        posterior = logits.exp() / logits.exp().sum(1, keepdim=True)
        share = np.bincount(corpus.targets[rows_of(corpus, "train").numpy()], minlength=5)
        likelihood = posterior.numpy() / (share / share.sum())
        np.testing.assert_allclose(np.exp(scores), likelihood, rtol=1e-5)


def test_a_split_is_thinned_evenly(corpus):
    rows = rows_of(corpus, "dev")
    assert rows_of(corpus, "dev", 10).tolist() == rows[:: len(rows) // 10].tolist()
    assert rows_of(corpus, "dev", 10**9).tolist() == rows.tolist()
