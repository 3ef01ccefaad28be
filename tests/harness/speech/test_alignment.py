"""Forced alignments in place of a corpus's own targets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from data_synth.align import Aligner
from harness.base.errors import UserError
from harness.experiment.run import run as execute
from harness.networks.feedforward import Dnn, Layout
from harness.speech.task import (
    ForcedAlignment,
    compute_forced_targets,
    final_model,
    load_corpus_with_targets,
    target_change_rate,
)
from harness.store.schema import TARGETS
from tests.silence import silent


def knows_the_truth(corpus):
    """A network of one layer, whose outputs are the logarithms of Gaussian densities."""
    rows = corpus.targets[:, None] == np.arange(5)
    means = np.stack([corpus.features[own].mean(axis=0) for own in rows.T])
    weight = np.zeros((5, 9), np.float32)
    weight[:, 3:6] = means  # of three spliced frames, the one in the middle
    bias = np.log(rows.mean(axis=0)) - 0.5 * (means**2).sum(axis=1)
    stack = np.concatenate([weight.ravel(), bias.astype(np.float32)])
    return Dnn(Layout((9, 5)), "relu"), torch.as_tensor(stack), weight[:, 3:6], bias


def test_the_paths_are_those_of_a_search_through_each_word_s_chain(corpus, configure):
    net, model, weight, bias = knows_the_truth(corpus)
    rule = ForcedAlignment(configure(), 1e3)  # so large that transitions do not count
    found = compute_forced_targets(net, model, corpus, rule)
    train = corpus.split("train")
    prior = np.log(np.bincount(corpus.targets[: train.total_frames], minlength=5))
    every, aligner = corpus.utterances, Aligner(corpus.lexicon, ())
    for first, length, words in zip(every.start, every.frames, every.words, strict=True):
        rows = slice(first, first + length)
        scores = corpus.features[rows] @ weight.T + bias - prior
        assert (found[rows] == aligner.align(words, scores).targets).all()
    assert found.dtype == np.int32
    assert 0.0 < target_change_rate(corpus, found, "train") < 0.2


def test_an_utterance_too_short_for_its_words_keeps_its_targets(corpus, configure):
    net, model, *_ = knows_the_truth(corpus)
    long = (("yes",) * 9, *corpus.utterances.words[1:])
    said = replace(corpus, utterances=replace(corpus.utterances, words=long))
    found = compute_forced_targets(net, model, said, ForcedAlignment(configure(), 0.3))
    first = int(corpus.utterances.frames[0])
    assert (found[:first] == corpus.targets[:first]).all()


def test_what_moved_is_counted_in_its_split_alone(corpus):
    changed = corpus.targets.copy()
    dev = corpus.split("dev")
    changed[dev.start[0]] += 1
    assert target_change_rate(corpus, changed, "dev") == 1 / dev.total_frames
    assert target_change_rate(corpus, changed, "train") == 0.0


def test_a_training_takes_the_alignment_for_its_targets(configure, finished):
    config = configure(targets=ForcedAlignment(configure(), 0.3))
    run = execute(config.task.targets, finished, silent)
    found = load_corpus_with_targets(config, finished, silent)
    assert (found.targets == load_file(run.path(TARGETS))["targets"]).all()
    assert run.summary["moved_train"] > 0.0
    own, other = (execute(c, finished, silent) for c in (configure(), config))
    assert not torch.equal(final_model(own), final_model(other))
    assert load_corpus_with_targets(config, finished, silent) is found


def test_targets_that_a_light_run_lacks_are_made_again(configure, finished):
    rule = ForcedAlignment(configure(), 0.3)
    path = execute(rule, finished, silent).path(TARGETS)
    before = load_file(path)["targets"]
    path.unlink()
    assert execute(rule, finished, silent).status == "done", "who needs them not has a whole run"
    assert not path.exists()
    found = load_corpus_with_targets(configure(targets=rule), finished, silent)
    assert (found.targets == before).all()


def test_a_second_alignment_is_counted_against_the_first(configure, finished, corpus):
    first = configure(targets=ForcedAlignment(configure(), 0.3))
    again = execute(ForcedAlignment(first, 0.3), finished, silent)
    before = load_corpus_with_targets(first, finished, silent)
    found = load_file(again.path(TARGETS))["targets"]
    assert again.summary["moved_train"] == target_change_rate(before, found, "train")


def test_sequence_training_goes_on_with_the_targets_of_its_start(sequence, configure, finished):
    own = configure(activation="relu", passes=1)
    other = own.vary(targets=ForcedAlignment(own, 0.3))
    runs = [execute(sequence(start=start), finished, silent) for start in (own, other)]
    first = [run.curve("dev_frame_error/iterate")[1][0] for run in runs]
    assert first[0] != first[1]
    wanted = replace(sequence(start=other), passes=0)
    assert execute(wanted, finished, silent).summary["folds"] == 0


def test_a_network_that_diverged_aligns_nothing(configure, finished):
    config = configure(
        targets=ForcedAlignment(configure(schedule=replace(configure().schedule, rate=1e38)), 0.3)
    )
    with pytest.raises(UserError, match=r"targets: .*diverged"):
        load_corpus_with_targets(config, finished, silent)
