"""Acoustic features: PLP, differences over time, normalisation.

All functions take one utterance and look at no other, so a corpus made in chunks has the same
bytes however it is cut.
Signals are in 16-bit units (−32768..32767), as float64.

PLP is written out here because the one maintained package that offers it (spafe 0.3.3)
departs from the method: its equal-loudness curve is evaluated at band energies in place
of frequencies, and its cepstral recursion multiplies by the coefficient it is computing.
"""

from __future__ import annotations

import numpy as np

WINDOW_S = 0.025
SHIFT_S = 0.010
DELTA_WINDOW = 2
# Added to power spectra: keeps digital silence finite, and lies under the rounding noise of any
# 16-bit recording.
POWER_FLOOR = 1.0


def deltas(static: np.ndarray, window: int = DELTA_WINDOW) -> np.ndarray:
    """Slope of the regression line through ``2 * window + 1`` frames around each frame.

    d_t = Σ_{n=1..N} n (c_{t+n} − c_{t−n}) / (2 Σ n²), with the edge frames repeated
    (The HTK Book 3.4, eq. 5.16; N is ``window``).

    Returns:
        float64 [frames, dim].
    """
    frames = len(static)
    padded = static[np.arange(-window, frames + window).clip(0, frames - 1)]
    slope = np.zeros(static.shape)
    for n in range(1, window + 1):
        slope += n * (padded[window + n :][:frames] - padded[window - n :][:frames])
    return slope / (2 * sum(n * n for n in range(1, window + 1)))


def with_deltas(static: np.ndarray) -> np.ndarray:
    """Static features, their slopes, and the slopes' slopes: [frames, 3 * dim], float64."""
    slopes = deltas(static)
    return np.concatenate([static, slopes, deltas(slopes)], axis=1)


def standardise(features: np.ndarray) -> np.ndarray:
    """Each dimension with mean 0 and variance 1 over the utterance; a constant one is 0.

    Returns:
        float32 [frames, dim].
    """
    centred = features - features.mean(axis=0)
    spread = np.sqrt((centred * centred).mean(axis=0))
    safe = np.where(spread > 1e-8, spread, np.inf)
    return (centred / safe).astype(np.float32)


def split_into_frames(signal: np.ndarray, rate_hz: int) -> np.ndarray:
    """Overlapping pieces of 25 ms every 10 ms, none reaching past the end.

    Returns:
        float64 [frames, samples]; no frames if the signal is shorter than one.
    """
    size, shift = round(WINDOW_S * rate_hz), round(SHIFT_S * rate_hz)
    if len(signal) < size:
        return np.zeros((0, size))
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(signal, np.float64), size)
    return windows[::shift]


def power_spectrum(frames: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Squared magnitude of the windowed frames' Fourier transform, padded to a power of 2.

    Returns:
        float64 [frames, fft / 2 + 1].
    """
    size = 1 << (frames.shape[1] - 1).bit_length()
    return np.abs(np.fft.rfft(frames * window, size)) ** 2


def bark(hz: np.ndarray | float) -> np.ndarray:
    """Frequency on the Bark scale, Ω = 6 asinh(f / 600) (Hermansky 1990, eq. 3)."""
    return 6.0 * np.arcsinh(np.asarray(hz) / 600.0)


def critical_bands(bins: int, rate_hz: int) -> tuple[np.ndarray, np.ndarray]:
    """Masking curves about one Bark apart, from 0 Hz to half the rate (ib., eq. 4).

    Returns:
        Weights float64 [bands, bins] and the bands' centres in hertz, float64 [bands].
    """
    top = float(bark(rate_hz / 2))
    centres = np.linspace(0.0, top, int(np.ceil(top)) + 1)
    gap = bark(np.linspace(0, rate_hz / 2, bins))[None, :] - centres[:, None]
    rise, fall = 2.5 * (gap + 0.5), -1.0 * (gap - 0.5)
    weights = 10.0 ** np.minimum(0.0, np.minimum(rise, fall))
    weights[(gap < -1.3) | (gap > 2.5)] = 0.0
    return weights, 600.0 * np.sinh(centres / 6.0)


def equal_loudness(hz: np.ndarray) -> np.ndarray:
    """Sensitivity of hearing at moderate loudness below 5 kHz (ib., eq. 7, for power)."""
    w2 = (2 * np.pi * np.asarray(hz, np.float64)) ** 2
    return (w2 + 56.8e6) * w2**2 / ((w2 + 6.3e6) ** 2 * (w2 + 0.38e9))


def linear_prediction(correlation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All-pole models by Levinson's and Durbin's recursion, all frames at once.

    Args:
        correlation: float64 [frames, order + 1], autocorrelations at lags 0 to order.

    Returns:
        a, float64 [frames, order + 1] with a_0 = 1 (the model is G / Σ a_k z^−k), and the
        squared gains G², float64 [frames].
    """
    a = np.zeros_like(correlation)
    a[:, 0] = 1.0
    gain = correlation[:, 0].copy()
    for i in range(1, correlation.shape[1]):
        reflection = -(a[:, :i] * correlation[:, i:0:-1]).sum(axis=1) / gain
        a[:, 1 : i + 1] += reflection[:, None] * a[:, i - 1 :: -1][:, :i]
        gain *= 1.0 - reflection**2
    return a, gain


def all_pole_cepstra(a: np.ndarray, gain: np.ndarray, count: int) -> np.ndarray:
    """Cepstra of ln(G² / |A|²): c_0 = ln G², c_n = −a_n − Σ_{k=1..n−1} (k/n) c_k a_{n−k}.

    Args:
        a: float64 [frames, order + 1].
        gain: G², float64 [frames].
        count: number of cepstra, c_0 among them, at most order + 1.

    Returns:
        float64 [frames, count].
    """
    c = np.zeros((len(a), count))
    c[:, 0] = np.log(gain)
    for n in range(1, count):
        k = np.arange(1, n)
        c[:, n] = -a[:, n] - (k / n * c[:, k] * a[:, n - k]).sum(axis=1)
    return c


def plp(signal: np.ndarray, rate_hz: int, count: int = 13) -> np.ndarray:
    """Perceptual linear prediction cepstra (Hermansky, JASA 87, 1990).

    Power spectrum under a Hamming window, critical bands, equal loudness, cube root
    (intensity to loudness), autocorrelation by inverse transform, all-pole model of
    order ``count - 1``, cepstra. The outermost bands copy their neighbours, as in the paper.

    Args:
        signal: [samples], 16-bit units.
        rate_hz: samples a second.
        count: coefficients, c_0 (log gain) among them.

    Returns:
        float64 [frames, count].
    """
    frames = split_into_frames(signal, rate_hz)
    power = power_spectrum(frames, np.hamming(frames.shape[1]))
    bands, centres = critical_bands(power.shape[1], rate_hz)
    loudness = np.cbrt((power + POWER_FLOOR) @ bands.T * equal_loudness(centres))
    loudness[:, 0], loudness[:, -1] = loudness[:, 1], loudness[:, -2]
    correlation = np.fft.irfft(loudness, axis=1)[:, :count]
    return all_pole_cepstra(*linear_prediction(correlation), count)


def utterance_features(signal: np.ndarray, rate_hz: int) -> np.ndarray:
    """PLP cepstra of a signal with slopes and slopes' slopes, normalised: float32 [frames, 39].

    Args:
        signal: [samples], 16-bit units.
        rate_hz: samples a second.
    """
    return standardise(with_deltas(plp(signal, rate_hz)))
