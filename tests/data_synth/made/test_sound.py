"""The same physics as ``articulation`` and ``features``, which have it one utterance at a time."""

import numpy as np
import pytest
import torch

from data_synth import articulation, features
from data_synth.made import speech
from harness.base.seeds import stream

FRAMES = torch.tensor([23, 40, 1])
LONGEST = 40


@pytest.fixture(scope="module")
def rng():
    return stream(0, "sound of many")


def padded(rng, dims):
    """Three utterances ``[dims, 3, 40]``, rubbish after their ends."""
    return torch.as_tensor(rng.normal(size=(dims, len(FRAMES), LONGEST)).astype(np.float32))


def each(x):
    """Every utterance by itself, float64 [frames, dims]."""
    return [x[:, u, :n].T.double().numpy() for u, n in enumerate(FRAMES.tolist())]


def close(found, expected):
    for one, other in zip(each(found), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6)


def test_articulators_are_smeared_and_wobble(rng):
    aims, noise = padded(rng, 7), padded(rng, 7)
    found = speech.smooth_aims(aims, FRAMES, 0.35) + speech.wobble_path(noise, 0.4, 0.8)
    pairs = zip(each(aims), each(noise), strict=True)
    close(found, [articulation.smear_and_wobble(a, n, 0.35, 0.4, 0.8) for a, n in pairs])


def test_a_layer_is_a_sum_in_order(rng):
    x, weights, bias = padded(rng, 5), rng.normal(size=(4, 5)), rng.normal(size=4)
    weights, bias = weights.astype(np.float32), bias.astype(np.float32)
    found = speech.sum_weighted(torch.as_tensor(weights), x, torch.as_tensor(bias)[:, None, None])
    close(found, [rows @ weights.T.astype(np.float64) + bias for rows in each(x)])


def test_cepstra_are_those_of_one_utterance(rng):
    signals, noise, background = padded(rng, 24) * 5, padded(rng, 24), padded(rng, 24)[:, :, :1]
    cosines = articulation.cosine_transform(13, 24)
    table = torch.as_tensor(cosines.astype(np.float32))
    alone = [
        articulation.cepstra(s, background[:, u, 0].double().numpy(), n, cosines)
        for u, (s, n) in enumerate(zip(each(signals), each(noise), strict=True))
    ]
    for one, other in zip(
        each(speech.cepstra(signals, background, noise, table)), alone, strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_slopes_repeat_the_edges_of_each_utterance(rng):
    x = padded(rng, 3)
    close(speech.slopes(x, FRAMES), [features.deltas(rows) for rows in each(x)])


def test_features_are_normalised_over_each_utterance(rng):
    x = padded(rng, 3) + 2.0
    found = speech.standardise(x, FRAMES)
    close(found, [features.standardise(rows) for rows in each(x)])
    assert (found[:, 2, 0] == 0).all()  # a single frame is constant


@pytest.mark.parametrize("length", [1, 2, 3, 64, 65])
def test_sums_do_not_know_how_far_they_are_padded(rng, length):
    x = torch.as_tensor(rng.normal(size=(2, length)).astype(np.float32))
    wide = torch.nn.functional.pad(x, (0, 100))
    assert torch.equal(speech.total(x), speech.total(wide))
    np.testing.assert_allclose(speech.total(x)[:, 0], x.double().sum(1), atol=1e-4)
