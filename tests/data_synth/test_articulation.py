import numpy as np
import pytest
from scipy.fft import dct
from scipy.signal import lfilter

from data_synth.articulation import cepstra, cosine_transform, smear_and_wobble, sound
from harness.base.seeds import stream


def test_articulators_follow_two_filters_each_way():
    aims = stream(0, "aims").normal(size=(30, 2))
    found = smear_and_wobble(aims, np.zeros_like(aims), 0.4, 1.0, 0.8)

    def twice(x):
        for _ in range(2):
            x = lfilter([0.6], [1, -0.4], x, zi=[0.4 * x[0]])[0]
        return x

    for d in range(2):
        x = aims[:, d]
        both = 0.5 * (twice(x) + twice(x[::-1])[::-1])
        np.testing.assert_allclose(found[:, d], both, atol=1e-12)


def test_articulatory_noise_is_autoregressive_with_the_size_asked_for():
    noise = stream(0, "noise").normal(size=(40_000, 1))
    drift = smear_and_wobble(np.zeros_like(noise), noise, 0.4, 0.5, 0.8)[:, 0]
    assert drift.std() == pytest.approx(0.5, rel=0.05)
    assert np.corrcoef(drift[1:], drift[:-1])[0, 1] == pytest.approx(0.8, abs=0.02)


def test_sound_is_a_tanh_layer_between_two_linear_maps():
    rng = stream(0, "sound")
    path, turn, shift = rng.normal(size=(5, 4)), rng.normal(size=(3, 3)), rng.normal(size=3)
    mouth, bias = rng.normal(size=(7, 3)), rng.normal(size=7)
    spectrum, colour = rng.normal(size=(6, 7)), rng.normal(size=6)
    units = np.tanh((path[:, :3] @ turn.T + shift) @ mouth.T + bias)
    expected = units @ spectrum.T + path[:, 3:] + colour
    found = sound(path, turn, shift, mouth, bias, spectrum, colour)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_cepstra_are_the_cosine_transform_of_speech_plus_background():
    rng = stream(0, "cepstra")
    speech, background = rng.normal(0, 5, size=(4, 24)), rng.normal(0, 5, size=24)
    noise = rng.normal(size=(4, 24))
    expected = dct(np.logaddexp(speech, background) + noise, norm="ortho")[:, :13]
    found = cepstra(speech, background, noise, cosine_transform(13, 24))
    np.testing.assert_allclose(found, expected, atol=1e-12)
