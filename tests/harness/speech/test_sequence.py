"""What held-out and test speech is recognised with: posteriors less priors."""

import numpy as np
import torch

from harness.acoustics.mmi import Criterion, SequenceCriterion
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.speech import held_out as module
from harness.speech.decoding import log_posteriors, references_of
from harness.speech.frames import FramesOnDevice
from harness.speech.held_out import SequenceEvaluator

PRIOR = np.log([0.5, 0.2, 0.15, 0.1, 0.05])


def test_what_is_tuned_and_what_is_tested_are_posteriors_less_priors(corpus, monkeypatch):
    net = Dnn(Layout((9, 6, 5)), "relu")
    model = random_parameters(net.layout, torch.Generator().manual_seed(2))[0]
    frames = FramesOnDevice.from_corpus(corpus, "cpu")
    criterion = SequenceCriterion(Criterion(kappa=0.5), references_of(corpus), PRIOR)
    evaluator = SequenceEvaluator(net, frames, corpus, criterion, held_out=3)
    seen, tuned = [], []
    true_recognise, true_tune = module.recognise, module.tune

    def recognise(graph, scores, scale, beam):
        seen.extend(scores)
        return true_recognise(graph, scores, scale, beam)

    def tune(said, scores, graph, **choices):
        tuned.extend(scores := list(scores))
        return true_tune(said, scores, graph, **choices)

    monkeypatch.setattr(module, "recognise", recognise)
    monkeypatch.setattr(module, "tune", tune)

    def expected(part):
        for start, length in zip(part.start.tolist(), part.frames.tolist(), strict=True):
            x = frames.gather(torch.arange(start, start + length).unsqueeze(0)).x[0]
            yield (log_posteriors(net, model, x) - PRIOR).tolist()

    held_out = corpus.split("dev").take(np.array([0, 2, 3]))  # three of four, evenly
    for tune_on_held_out in (
        evaluator.evaluate_held_out,
        lambda model: evaluator.tune_decoding(model, order=1),
    ):
        tuned.clear()
        found = tune_on_held_out(model)
        assert [each.tolist() for each in tuned] == list(expected(held_out))
    for test in corpus.tests:
        evaluator.test(test, model, 1, found)
    tested = [scores for test in corpus.tests for scores in expected(corpus.split(test))]
    assert [each.tolist() for each in seen] == tested
