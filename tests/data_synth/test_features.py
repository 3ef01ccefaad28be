import numpy as np
import pytest
from scipy.linalg import solve_toeplitz
from scipy.signal import lfilter

from data_synth import features as f
from harness.base.seeds import stream

RATE = 8000


def speech_like(seed=0, samples=4000, rate=RATE):
    """Noise through two resonances, in 16-bit units."""
    rng = stream(seed, "speech-like")
    signal = rng.normal(size=samples)
    for hz, width in ((500, 80), (1800, 120)):
        r = np.exp(-np.pi * width / rate)
        signal = lfilter([1], [1, -2 * r * np.cos(2 * np.pi * hz / rate), r * r], signal)
    return np.round(3000 * signal / signal.std())


def test_slopes_are_those_of_a_least_squares_line():
    x = stream(0, "x").normal(size=(12, 3))
    slopes = f.deltas(x)
    for t in range(2, 10):
        expected = np.polyfit(np.arange(-2, 3), x[t - 2 : t + 3], 1)[0]
        np.testing.assert_allclose(slopes[t], expected, atol=1e-13)


def test_the_slope_at_an_edge_repeats_the_edge_frame():
    x = np.array([[1.0], [2.0], [4.0]])
    assert f.deltas(x)[0, 0] == (1 * (2 - 1) + 2 * (4 - 1)) / 10


def test_one_frame_has_no_slope():
    assert (f.with_deltas(np.ones((1, 2))) == [[1, 1, 0, 0, 0, 0]]).all()


def test_normalised_features_have_mean_zero_and_variance_one():
    x = f.standardise(stream(0, "x").normal(3.0, 7.0, size=(50, 4)))
    assert x.dtype == np.float32
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-6)


def test_a_constant_dimension_becomes_zero():
    assert (f.standardise(np.full((5, 2), 3.0)) == 0).all()


@pytest.mark.parametrize(
    ("samples", "frames"), [(199, 0), (200, 1), (279, 1), (280, 2), (8000, 98)]
)
def test_frames_never_reach_past_the_end(samples, frames):
    assert f.split_into_frames(np.zeros(samples), RATE).shape == (frames, 200)


def test_linear_prediction_solves_the_normal_equations():
    correlation = np.stack(
        [np.correlate(x, x, "full")[59:72] for x in stream(1, "x").normal(size=(4, 60))]
    )
    a, gain = f.linear_prediction(correlation)
    for r, found, g in zip(correlation, a, gain, strict=True):
        solved = solve_toeplitz(r[:-1], -r[1:])
        np.testing.assert_allclose(found[1:], solved, rtol=1e-9)
        assert g == pytest.approx(r[0] + r[1:] @ solved, rel=1e-10)


def test_all_pole_cepstra_are_those_of_the_models_spectrum():
    correlation = np.correlate(x := speech_like(samples=400), x, "full")[399:412][None]
    a, gain = f.linear_prediction(correlation)
    log_spectrum = np.log(gain) - np.log(np.abs(np.fft.fft(a, 1 << 16)) ** 2)
    by_fourier = np.fft.ifft(log_spectrum).real[:, :13]
    found = f.all_pole_cepstra(a, gain, 13)
    np.testing.assert_allclose(found[:, 0], by_fourier[:, 0], rtol=1e-9)
    # c_n of ln |H|² holds half of each pair of conjugate quefrencies.
    np.testing.assert_allclose(found[:, 1:], by_fourier[:, 1:], atol=1e-9)


def plp_frame_by_the_book(frame, rate, count):
    """Hermansky's five steps with plain loops, direct sums and a linear solver."""
    n = len(frame)
    size = 256
    shaped = [x * (0.54 - 0.46 * np.cos(2 * np.pi * i / (n - 1))) for i, x in enumerate(frame)]
    hz = [rate * k / size for k in range(size // 2 + 1)]
    power = [
        abs(sum(x * np.exp(-2j * np.pi * k * i / size) for i, x in enumerate(shaped))) ** 2 + 1
        for k in range(size // 2 + 1)
    ]
    omega = [6 * np.log(h / 600 + np.sqrt((h / 600) ** 2 + 1)) for h in hz]
    bands = int(np.ceil(omega[-1])) + 1
    heard = []
    for b in range(bands):
        centre = omega[-1] * b / (bands - 1)
        total = 0.0
        for om, p in zip(omega, power, strict=True):
            gap = om - centre
            if -1.3 <= gap <= -0.5:
                total += p * 10 ** (2.5 * (gap + 0.5))
            elif -0.5 < gap < 0.5:
                total += p
            elif 0.5 <= gap <= 2.5:
                total += p * 10 ** (-1.0 * (gap - 0.5))
        w = 2 * np.pi * 600 * np.sinh(centre / 6)
        loud = (w**2 + 56.8e6) * w**4 / ((w**2 + 6.3e6) ** 2 * (w**2 + 0.38e9))
        heard.append((total * loud) ** (1 / 3))
    heard[0], heard[-1] = heard[1], heard[-2]
    both_sides = heard + heard[-2:0:-1]
    m = len(both_sides)
    r = [
        sum(h * np.cos(2 * np.pi * k * i / m) for i, h in enumerate(both_sides)) / m
        for k in range(count)
    ]
    a = np.array([1.0, *solve_toeplitz(r[:-1], -np.array(r[1:]))])
    gain = float(np.dot(r, a))
    model = np.log(gain) - np.log(np.abs(np.fft.fft(a, 4096)) ** 2)
    return np.fft.ifft(model).real[:count]


def test_plp_agrees_with_its_definition_step_by_step():
    signal = speech_like(samples=400)
    found = f.plp(signal, RATE)
    assert found.shape == (3, 13)
    for t in range(3):
        expected = plp_frame_by_the_book(signal[80 * t : 80 * t + 200], RATE, 13)
        np.testing.assert_allclose(found[t], expected, rtol=1e-6, atol=1e-7)


def test_louder_speech_moves_only_the_gain_of_plp():
    signal = speech_like()
    quiet, loud = f.plp(signal, RATE), f.plp(8 * signal, RATE)
    # Loudness is the cube root of power, so 64 times the power is 4 times the loudness.
    np.testing.assert_allclose(loud[:, 0] - quiet[:, 0], np.log(4), atol=1e-3)
    np.testing.assert_allclose(loud[:, 1:], quiet[:, 1:], atol=1e-3)


def test_digital_silence_stays_finite():
    assert np.isfinite(f.utterance_features(np.zeros(2000), RATE)).all()


def test_features_are_cepstra_and_two_differences():
    assert f.utterance_features(speech_like(), RATE).shape == (48, 39)
