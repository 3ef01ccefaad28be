"""The physics of ``articulation`` for many utterances at once, in torch and elementwise.

Arrays are ``[dims, utterances, frames]``, utterances padded to one length. What comes after an
utterance's end, and what lies beside it, changes none of its bits: no sum here is over a
dimension whose length others decide, and no matrix product, whose order of summation would be
a library's to choose.
"""

from __future__ import annotations

import torch
from torch import Tensor

from data_synth.features import DELTA_WINDOW

NEGLIGIBLE = 2.0**-24
"""What of a filter's past is left out, as float32 does."""


def one_pole(x: Tensor, pole: float) -> Tensor:
    """y_t = x_t + pole y_{t−1} along the last dimension, y_{−1} = 0, by doubling.

    Hillis and Steele 1986. ``x`` is overwritten.
    """
    reach, factor = 1, pole
    while factor > NEGLIGIBLE and reach < x.shape[-1]:
        x[..., reach:] += x[..., :-reach] * factor
        reach, factor = 2 * reach, factor * factor
    return x


def smeared(aims: Tensor, frames: Tensor, smear: float) -> Tensor:
    """Half the causal and half the anticipating smoothing by two one-pole filters each.

    Args:
        aims: ``[dims, U, T]``; after an utterance's end of no matter.
        frames: int64 ``[U]``.
        smear: pole of the filters, which start as if the edge had lasted for ever.
    """
    places = torch.arange(aims.shape[2], device=aims.device)
    inside = places < frames[:, None]
    last = (frames - 1).expand(len(aims), -1)[:, :, None]
    first, last = aims[:, :, :1], aims.gather(2, last)
    gain = (1.0 - smear) * (1.0 - smear)
    causal = one_pole(one_pole((aims - first) * gain, smear), smear) + first
    back = ((aims - last) * gain * inside).flip(2)
    return 0.5 * (causal + (one_pole(one_pole(back, smear), smear).flip(2) + last))


def wobbling(noise: Tensor, wobble: float, pole: float) -> Tensor:
    """Autoregressive noise of standard deviation ``wobble``, of normal ``noise [dims, U, T]``."""
    fresh = noise * (wobble * (1.0 - pole * pole) ** 0.5)
    fresh[:, :, 0] = wobble * noise[:, :, 0]
    return one_pole(fresh, pole)


def weighted(weights: Tensor, x: Tensor, start: Tensor) -> Tensor:
    """Weighted sums, start + Σ_j weights[:, j] x_j, summed in the order of j.

    Args:
        weights: ``[out, in]`` of all utterances, or ``[out, in, U, 1]`` of each.
        x: ``[in, U, T]``.
        start: what broadcasts to ``[out, U, T]``.
    """
    weights = weights if weights.ndim == 4 else weights[:, :, None, None]
    total = weights[:, 0] * x[0] + start
    for j in range(1, len(x)):
        total += weights[:, j] * x[j]
    return total


def cepstra(speech: Tensor, background: Tensor, noise: Tensor, cosines: Tensor) -> Tensor:
    """Cosine transform of log(e^speech + e^background) + noise: ``[cepstra, U, T]``."""
    top = torch.maximum(speech, background)
    energy = (speech - background).abs_().neg_().exp_().log1p_().add_(top).add_(noise)
    return weighted(cosines, energy, torch.zeros_like(energy[:1]))


def held(x: Tensor, frames: Tensor, beyond: int) -> Tensor:
    """Each utterance with its edge frames repeated: ``[dims, U, T + 2 beyond]``."""
    places = torch.arange(-beyond, x.shape[2] + beyond, device=x.device)
    index = torch.minimum(places.clamp_min(0), frames[:, None] - 1)
    return x.gather(2, index.expand(len(x), -1, -1))


def slopes(x: Tensor, frames: Tensor, window: int = DELTA_WINDOW) -> Tensor:
    """``features.deltas`` of every utterance."""
    wide, length = held(x, frames, window), x.shape[2]
    slope = torch.zeros_like(x)
    for n in range(1, window + 1):
        ahead, behind = wide[:, :, window + n :], wide[:, :, window - n :]
        slope += n * (ahead[:, :, :length] - behind[:, :, :length])
    return slope / (2 * sum(n * n for n in range(1, window + 1)))


def total(x: Tensor) -> Tensor:
    """Sums over the last dimension ``[..., 1]`` in halves: zeros at the end change no bit."""
    while (length := x.shape[-1]) > 1:
        half = 1 << (length - 1).bit_length() - 1
        front = x[..., :half].clone()
        front[..., : length - half] += x[..., half:]
        x = front
    return x


def normalised(x: Tensor, frames: Tensor) -> Tensor:
    """Mean 0 and variance 1 over each utterance's frames; a constant dimension is 0."""
    inside = (torch.arange(x.shape[2], device=x.device) < frames[:, None]).float()
    count = frames[:, None].float()
    centred = (x - total(x * inside) / count) * inside
    spread = (total(centred * centred) / count).sqrt()
    return centred / torch.where(spread > 1e-8, spread, torch.inf)
