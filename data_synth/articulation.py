"""From articulators to cepstra: the physics of the synthetic corpus, one utterance at a time."""

from __future__ import annotations

import numpy as np

from harness.kernels.compiling import kernel


@kernel
def smear_and_wobble(
    aims: np.ndarray, noise: np.ndarray, smear: float, wobble: float, pole: float
) -> np.ndarray:
    """Articulators: aims smoothed by two one-pole filters each way, plus AR(1) noise.

    Args:
        aims: float64 [frames, dims].
        noise: float64 [frames, dims], standard normal.
        smear: pole of the filters.
        wobble: standard deviation of the added noise.
        pole: pole of the added noise.

    Returns:
        float64 [frames, dims]: half the causal and half the anticipating smoothing.
    """
    frames, dims = aims.shape
    path = np.empty_like(aims)
    ahead = np.empty(frames)
    step = wobble * np.sqrt(1.0 - pole * pole)
    for d in range(dims):
        inner = two = aims[frames - 1, d]
        for t in range(frames - 1, -1, -1):
            inner = smear * inner + (1.0 - smear) * aims[t, d]
            two = smear * two + (1.0 - smear) * inner
            ahead[t] = two
        inner = two = aims[0, d]
        # The noise starts in its stationary distribution, with variance wobble².
        drift = wobble * noise[0, d]
        for t in range(frames):
            inner = smear * inner + (1.0 - smear) * aims[t, d]
            two = smear * two + (1.0 - smear) * inner
            if t > 0:
                drift = pole * drift + step * noise[t, d]
            path[t, d] = 0.5 * (two + ahead[t]) + drift
    return path


@kernel
def sound(
    path: np.ndarray,
    turn: np.ndarray,
    shift: np.ndarray,
    mouth: np.ndarray,
    bias: np.ndarray,
    spectrum: np.ndarray,
    colour: np.ndarray,
) -> np.ndarray:
    """Log band energies of an articulatory path: V tanh(W (A x + a) + b) + loudness + colour.

    Args:
        path: float64 [frames, dims + 1], the last column loudness.
        turn: A, float64 [dims, dims].
        shift: a, float64 [dims].
        mouth: W, float64 [hidden, dims].
        bias: b, float64 [hidden].
        spectrum: V, float64 [bands, hidden].
        colour: float64 [bands].

    Returns:
        float64 [frames, bands], nepers.
    """
    frames, dims = path.shape[0], path.shape[1] - 1
    hidden, bands = mouth.shape[0], spectrum.shape[0]
    out = np.empty((frames, bands))
    place, units = np.empty(dims), np.empty(hidden)
    for t in range(frames):
        for i in range(dims):
            place[i] = shift[i]
            for j in range(dims):
                place[i] += turn[i, j] * path[t, j]
        for h in range(hidden):
            total = bias[h]
            for i in range(dims):
                total += mouth[h, i] * place[i]
            units[h] = np.tanh(total)
        for b in range(bands):
            total = path[t, dims] + colour[b]
            for h in range(hidden):
                total += spectrum[b, h] * units[h]
            out[t, b] = total
    return out


@kernel
def cepstra(
    speech: np.ndarray, background: np.ndarray, noise: np.ndarray, cosines: np.ndarray
) -> np.ndarray:
    """Cosine transform of log(e^speech + e^background) + noise: float64 [frames, cepstra].

    Args:
        speech: float64 [frames, bands], nepers.
        background: float64 [bands], nepers.
        noise: float64 [frames, bands], nepers.
        cosines: float64 [cepstra, bands].
    """
    frames, bands = speech.shape
    out = np.zeros((frames, cosines.shape[0]))
    for t in range(frames):
        for b in range(bands):
            # log(e^a + e^b) as max + log1p(e^-|a - b|), in which no exp overflows.
            top = max(speech[t, b], background[b])
            gap = abs(speech[t, b] - background[b])
            energy = top + np.log1p(np.exp(-gap)) + noise[t, b]
            for c in range(cosines.shape[0]):
                out[t, c] += cosines[c, b] * energy
    return out


def cosine_transform(rows: int, columns: int) -> np.ndarray:
    """The first rows of the orthonormal type-II discrete cosine transform, float64."""
    angles = np.pi * np.arange(rows)[:, None] * (np.arange(columns) + 0.5) / columns
    basis = np.sqrt(2.0 / columns) * np.cos(angles)
    basis[0] /= np.sqrt(2.0)
    return basis


def waves(bands: int) -> np.ndarray:
    """Basis of smooth curves over the bands: a line and two cosines, float64 [3, bands]."""
    place = (np.arange(bands) + 0.5) / bands
    return np.stack([2 * place - 1, np.cos(np.pi * place), np.cos(2 * np.pi * place)])


def ripple(rng: np.random.Generator, size: float, bands: int) -> np.ndarray:
    """A smooth random curve over the bands, float64 [bands]."""
    return (size * rng.normal(size=(3, 1)) * waves(bands)).sum(axis=0)
