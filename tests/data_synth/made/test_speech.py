"""Speech made anywhere, in any pieces: the same bits; and the speech of the stored corpora."""

import numpy as np
import pytest
import torch
from scipy import stats

from data_synth.continuous import Maker
from data_synth.made.speech import Speech
from data_synth.presets import PRESETS, recipe
from harness.base.seeds import stream
from harness.networks.feedforward import Dnn, Layout, random_parameters
from harness.speech.evaluation import frame_scores
from harness.speech.frames import FramesOnDevice
from tests.data_synth.made.hour import digest
from tests.data_synth.test_text import entropy_bits, law_of
from tests.logical_device import DEVICE, LogicalDevice

MANY = 400
"""Utterances that distributions are compared on."""


@pytest.fixture(scope="module")
def maker():
    return Maker(recipe("mandarin-like", "smoke"))


@pytest.fixture(scope="module")
def speech(maker):
    return Speech(maker, "train")


@pytest.fixture(scope="module")
def both(maker, speech):
    """As many utterances stored and made."""
    return maker.chunk("train", 0, MANY), speech.make(np.arange(MANY))


def lengths_of(speech, utterances):
    return np.concatenate([f.frames.numpy() for f in speech.draw_sentences(np.arange(utterances))])


def test_the_same_bits_in_chunks_of_any_size(speech):
    assert digest(speech, 90, 90) == digest(speech, 90, 37) == digest(speech, 90, 8)


@pytest.mark.parametrize("name", PRESETS)
def test_an_utterance_does_not_know_its_company(name):
    speech = Speech(Maker(recipe(name, "smoke")), "train")
    alone, among = speech.make(np.array([7])), speech.make(np.array([120, 7, 3]))
    first = len(speech.targets(np.array([120])))
    for one, some in zip(alone, among, strict=True):
        assert torch.equal(one, some[first : first + len(one)])


def test_targets_and_words_are_those_of_the_frames(maker, speech):
    numbers = np.arange(40)
    assert (speech.targets(numbers) == speech.make(numbers).targets.numpy()).all()
    (found,) = speech.draw_sentences(numbers)
    for words, targets, stays in zip(found.words, found.targets, found.stays, strict=True):
        said = [maker.words[int(w)] for w in words if w >= 0]
        heard = [int(t) for t, n in zip(targets, stays, strict=True) if n and t > 2]
        assert heard == [t for word in said for t in maker.lexicon[word]]


def test_lengths_of_utterances_are_those_of_the_stored(maker, speech, both):
    stored = both[0].utterances.frames
    assert stats.ks_2samp(stored, lengths_of(speech, MANY)).pvalue > 0.01


def test_states_last_geometrically_and_silences_as_long_as_they_may(maker, speech):
    (found,) = speech.draw_sentences(np.arange(MANY))
    spoken = found.stays[(found.targets > 2) & (found.stays > 0)].numpy()
    leave = 1.0 / maker.recipe.mean_state_frames
    seen = np.bincount(np.minimum(spoken, 15))[1:]
    law = stats.geom(leave).pmf(np.arange(1, 16))
    law[-1] = stats.geom(leave).sf(14)
    assert stats.chisquare(seen, law / law.sum() * seen.sum()).pvalue > 0.01
    edge = found.stays[:, :3].sum(1).numpy()
    assert (edge.min(), edge.max()) == maker.recipe.silence_frames
    assert stats.chisquare(np.bincount(edge)[edge.min() :]).pvalue > 0.01


def test_words_are_as_frequent_as_the_text_has_them(maker, speech):
    text, (least, most) = maker.text, maker.text.manner.sentence_words
    row = law_of(text)
    here, law = text.often, np.zeros(len(maker.words))
    for place in range(most):
        law += here * min(1.0, (most - place) / (most - least + 1))
        here = here @ row
    found = torch.cat([f.words for f in speech.draw_sentences(np.arange(10 * MANY))])
    seen = np.bincount(found[found >= 0], minlength=len(law))
    assert stats.chisquare(seen, law / law.sum() * seen.sum()).pvalue > 0.01
    before, after = found[:, :-1], found[:, 1:]
    followed = (after >= 0).flatten()
    pairs = np.stack([before.flatten()[followed], after.flatten()[followed]])
    expected = -np.log2(row)[pairs[0], pairs[1]].mean()  # the cross-entropy of what was said
    assert expected == pytest.approx(entropy_bits(text), rel=0.02)


def test_speakers_are_heard_equally_often(maker, speech):
    heard = torch.cat([f.speaker for f in speech.draw_sentences(np.arange(2 * MANY))])
    assert stats.chisquare(np.bincount(heard, minlength=maker.recipe.speakers)).pvalue > 0.01


def test_frames_have_the_moments_of_the_stored_ones(both):
    stored, made = both
    x, y = np.asarray(stored.features, np.float64), made.features.double().numpy()
    half = len(stored.targets[: stored.utterances.start[MANY // 2]])
    apart = np.abs(np.cov(x[:half].T) - np.cov(x[half:].T)).mean()
    assert np.abs(np.cov(x.T) - np.cov(y.T)).mean() < apart
    for k in range(x.shape[1]):
        assert stats.skew(x[:, k]) == pytest.approx(stats.skew(y[:, k]), abs=0.15)
        assert stats.kurtosis(x[:, k]) == pytest.approx(stats.kurtosis(y[:, k]), abs=0.3)


def test_each_target_sounds_as_it_does_in_stored_speech(both):
    """Means by target are as far from half the stored speech as the other half's are."""
    stored, made = both
    half = int(stored.utterances.start[MANY // 2])
    parts = [
        (stored.features[:half], stored.targets[:half]),
        (stored.features[half:], stored.targets[half:]),
        (made.features[:half].numpy(), made.targets[:half].numpy()),
    ]
    often = np.flatnonzero(np.min([np.bincount(t, minlength=400) for _, t in parts], 0) > 49)
    first, second, mine = (np.stack([x[t == k].mean(0) for k in often]) for x, t in parts)
    assert len(often) > 50
    assert np.abs(mine - first).mean() == pytest.approx(np.abs(second - first).mean(), rel=0.1)


def laid_out(features, targets, lengths):
    """Speech as networks see it, and the rows of its frames."""
    start = np.cumsum(lengths) - lengths
    frames = FramesOnDevice.from_arrays(features, targets, start, lengths, 5, "cpu")
    return frames, torch.arange(len(targets))


def test_a_network_learns_from_it_what_it_learns_from_stored_speech(maker, speech, both):
    stored, made = both
    dev = maker.chunk("dev", 0, 40)
    judged = laid_out(dev.features, dev.targets, dev.utterances.frames)
    net = Dnn(Layout((429, 64, maker.senones.tree.n_targets)))
    errors = []
    for features, targets, lengths in (
        (stored.features, stored.targets, stored.utterances.frames),
        (made.features.numpy(), made.targets.numpy(), lengths_of(speech, MANY)),
    ):
        frames, rows = laid_out(features, targets, lengths)
        stack = random_parameters(net.layout, torch.Generator().manual_seed(0), 4.0)
        order = torch.as_tensor(stream(0, "order").permutation(len(rows))[: 500 * 128])
        for chosen in order.view(-1, 1, 128):
            gradient = torch.empty_like(stack)
            net.gradient(stack, *frames.gather(rows[chosen]), gradient)
            stack -= 0.01 * gradient
        errors.append(frame_scores(net, stack[0], *judged).frame_error)
    assert errors[0] == pytest.approx(errors[1], abs=0.02)
    assert max(errors) < 0.75  # guessing errs in 94%


def test_a_device_makes_it_without_help(maker):
    """On a device that is not there: no operation takes tensors of host and device."""
    with LogicalDevice() as device:
        Speech(maker, "train", str(DEVICE)).make(np.arange(3))
    assert not device.counts.mixes
    assert len({at.split(" at ")[1] for at in device.counts.round_trips}) == 1  # their lengths
