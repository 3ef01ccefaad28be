"""Acoustic features: differences over time and normalisation per utterance.

All functions take one utterance, [frames, dim], and look at no other, so a corpus
made in chunks has the same bytes however it is cut.
"""

from __future__ import annotations

import numpy as np

DELTA_WINDOW = 2


def deltas(static: np.ndarray, window: int = DELTA_WINDOW) -> np.ndarray:
    """Slope of the regression line through ``2 * window + 1`` frames around each frame.

    d_t = Σ_{n=1..N} n (c_{t+n} − c_{t−n}) / (2 Σ n²), with the edge frames repeated
    (The HTK Book 3.4, eq. 5.16; N is ``window``).

    Returns:
        float64 [frames, dim].
    """
    frames = len(static)
    padded = np.pad(np.asarray(static, np.float64), ((window, window), (0, 0)), mode="edge")
    slope = np.zeros(static.shape)
    for n in range(1, window + 1):
        ahead, behind = padded[window + n :][:frames], padded[window - n :][:frames]
        slope += n * (ahead - behind)
    return slope / (2 * sum(n * n for n in range(1, window + 1)))


def with_deltas(static: np.ndarray) -> np.ndarray:
    """Static features, their slopes, and the slopes' slopes: [frames, 3 * dim], float64."""
    first = deltas(static)
    return np.concatenate([static, first, deltas(first)], axis=1)


def normalised(features: np.ndarray) -> np.ndarray:
    """Each dimension with mean 0 and variance 1 over the utterance; a constant one is 0.

    Returns:
        float32 [frames, dim].
    """
    centred = features - features.mean(axis=0)
    spread = centred.std(axis=0)
    return np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-8).astype(
        np.float32
    )
