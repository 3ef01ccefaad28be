"""The speech of a split, utterance by utterance, its physics on a device, and a corpus of it.

Of such a corpus only the development and test sets are stored.

The physics is that of ``articulation``, for many utterances at once, in torch and elementwise.
Its arrays are ``[dims, utterances, frames]``, utterances padded to one length. What comes after an
utterance's end, and what lies beside it, changes none of its bits: no sum runs over a
dimension whose length depends on other utterances, and there is no matrix product, because a
library would choose its order of summation.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_synth import continuous
from data_synth.articulation import waves
from data_synth.continuous import Maker, Recipe
from data_synth.corpus import Corpus, Made, Utterances, join
from data_synth.features import DELTA_WINDOW
from data_synth.made.sentences import Draws, Tables, Visits, visits
from data_synth.storage import progress_counter

FORMAT = 1
"""Version of the generator; raised when the same recipe no longer gives the same speech."""

AT_ONCE = {"cpu": 32, "cuda": 512}
"""Utterances made together: what fits a processor's cache, and what keeps a GPU busy."""

NAMED_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Voices:
    """Parameters of all speakers of a split, on a device; see ``invented_language.Voice``.

    Attributes:
        turn: [articulation, articulation, speakers].
        shift, bias, colour: [articulation], [hidden] and [bands] by speakers; ``bias`` has
            the mouth's own in it.
        level: [speakers], mean of the colour.
    """

    turn: Tensor
    shift: Tensor
    bias: Tensor
    colour: Tensor
    level: Tensor


@dataclass(frozen=True, eq=False)
class Speech:
    """Makes any utterance of a split; its bits do not depend on the others in the batch.

    Args:
        maker: source of the recipe, language, text and voices.
        split: of the recipe.
        device: ``"cpu"`` or ``"cuda"``.
    """

    maker: Maker
    split: str
    device: str = "cpu"

    @property
    def utterances(self) -> int:
        """Number of utterances."""
        return self.maker.conditions[self.split].utterances

    @property
    def dim(self) -> int:
        """Numbers in a frame: cepstra, their slopes, and the slopes' slopes."""
        return 3 * self.maker.recipe.cepstra

    def on(self, device: str) -> Speech:
        """The same on another device."""
        return self if device == self.device else replace(self, device=device)

    def draw_sentences(self, numbers: np.ndarray) -> Iterator[Visits]:
        """Words and states of some utterances, a few thousand at a time."""
        for part in _cut(numbers, NAMED_AT_ONCE):
            yield self._visits(self._draws(part))

    def targets(self, numbers: np.ndarray) -> np.ndarray:
        """Targets of some utterances, one after another, int32 [N]."""
        parts = [visits.frame_targets.cpu().numpy() for visits in self.draw_sentences(numbers)]
        return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)

    def make(self, numbers: np.ndarray) -> Made:
        """Some utterances, in the order given.

        Args:
            numbers: int64 [U], indices of the utterances.
        """
        pieces = [
            self.piece(part) for part in _cut(numbers, AT_ONCE[torch.device(self.device).type])
        ]
        return Made(*(torch.cat(column) for column in zip(*pieces, strict=True)))

    def piece(self, numbers: np.ndarray) -> Made:
        """As ``make``, in one batch."""
        draws = self._draws(numbers)
        visits = self._visits(draws)
        lengths = visits.frames.cpu().numpy()  # the one question to a device
        longest = int(lengths.max())
        at, rows = (
            visits.visit_index(longest),
            torch.as_tensor(_rows(lengths, longest)).to(self.device),
        )
        features = self._features(visits, at, draws).flatten(1).index_select(1, rows)
        return Made(features.T.contiguous(), visits.targets.gather(1, at).flatten()[rows])

    def _features(self, visits: Visits, at: Tensor, draws: Draws) -> Tensor:
        """Normalised features ``[dim, U, longest]``."""
        r, condition, frames = self.maker.recipe, self.maker.conditions[self.split], visits.frames
        path = self._path(visits, at, draws)
        voices = self._voices
        turn, shift, bias = (
            part[..., visits.speaker].unsqueeze(-1)
            for part in (voices.turn, voices.shift, voices.bias)
        )
        ripple, humming = (
            condition.channel * r.channel_spread * draws.normal(name, 3)
            for name in ("channel", "hum")
        )
        colour = voices.colour[:, visits.speaker, None] + self._ripples(ripple)
        units = sum_weighted(self._mouth, sum_weighted(turn, path[:-1], shift), bias).tanh_()
        speech = sum_weighted(self._spectrum, units, path[-1] + colour)
        least, most = condition.snr_db
        snr = (least + (most - least) * draws.uniform("snr", 1)[0]) * (np.log(10.0) / 10.0)
        level = voices.level[visits.speaker] + self._levels(ripple) - snr.float()
        noise = r.band_noise * draws.normal("band", r.bands, path.shape[2])
        background = level[:, None] + self._ripples(humming)
        static = cepstra(speech, background, noise, self._cosines)
        deltas = slopes(static, frames)
        features = torch.cat([static, deltas, slopes(deltas, frames)])
        return standardise(features, frames)

    def _path(self, visits: Visits, at: Tensor, draws: Draws) -> Tensor:
        """Articulators in every frame, ``[articulation + 1, U, longest]``."""
        r, dims = self.maker.recipe, self._places.shape[0]
        aims = self._places[:, visits.targets] + self._ways[:, visits.ways]
        aims += r.jitter * draws.normal("jitter", dims, visits.targets.shape[1])
        aims = aims.gather(2, at.expand(dims, -1, -1))
        noise = draws.normal("wobble", dims, at.shape[1])
        return smooth_aims(aims, visits.frames, r.smear) + wobble_path(
            noise, r.wobble, r.wobble_pole
        )

    def _draws(self, numbers: np.ndarray) -> Draws:
        split = self.maker.conditions[self.split].speech_of or self.split
        return Draws(self.maker.recipe.seed, split, torch.as_tensor(numbers).to(self.device))

    def _visits(self, draws: Draws) -> Visits:
        return visits(self.maker, self._tables, self.split, draws)

    # -- the maker's parameters, on the device ---------------------------------------------

    @cached_property
    def _tables(self) -> Tables:
        return Tables.from_maker(self.maker, self.split, self.device)

    @cached_property
    def _voices(self) -> Voices:
        maker, spread = self.maker, self.maker.conditions[self.split].speaker
        voices = [maker.voice(person, spread) for person in maker.people(self.split)]
        turn, shift, colour = (
            np.stack([getattr(v, name) for v in voices], -1) for name in ("turn", "shift", "colour")
        )
        bias = np.stack([maker.language.mouth_bias + v.hidden for v in voices], -1)
        return Voices(*map(self._put, (turn, shift, bias, colour, colour.mean(0))))

    @cached_property
    def _places(self) -> Tensor:
        return self._put(self.maker.senones.places.T)

    @cached_property
    def _ways(self) -> Tensor:
        """Displacements ``[dims, 1 + phones * variants]``, the first of silence."""
        flat = self.maker.language.variants.reshape(-1, self.maker.recipe.articulation + 1)
        return self._put(np.concatenate([np.zeros_like(flat[:1]), flat]).T)

    @cached_property
    def _mouth(self) -> Tensor:
        return self._put(self.maker.language.mouth)

    @cached_property
    def _spectrum(self) -> Tensor:
        return self._put(self.maker.language.spectrum)

    @cached_property
    def _cosines(self) -> Tensor:
        return self._put(self.maker.language.cosines)

    @cached_property
    def _waves(self) -> Tensor:
        return self._put(waves(self.maker.recipe.bands).T)

    def _ripples(self, sizes: Tensor) -> Tensor:
        """``articulation.ripple`` of each utterance, ``[bands, U, 1]``, of ``sizes [3, U, 1]``."""
        return sum_weighted(self._waves, sizes, sizes.new_zeros(1, 1, 1))

    def _levels(self, sizes: Tensor) -> Tensor:
        """Their means over the bands, ``[U]``."""
        means = self._put(waves(self.maker.recipe.bands).mean(1))[None]
        return sum_weighted(means, sizes, sizes.new_zeros(1, 1, 1))[0, :, 0]

    def _put(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values, np.float32)).to(self.device)


def _cut(numbers: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _rows(lengths: np.ndarray, longest: int) -> np.ndarray:
    """Indices of the frames before each utterance's end in a flattened ``[U, longest]``."""
    return np.flatnonzero(np.arange(longest) < lengths[:, None])


NEGLIGIBLE = 2.0**-24
"""Filter coefficients below this are dropped: their terms vanish in float32."""


def one_pole(x: Tensor, pole: float) -> Tensor:
    """y_t = x_t + pole y_{t−1} along the last dimension, y_{−1} = 0, by doubling.

    Hillis and Steele 1986. ``x`` is overwritten.
    """
    reach, factor = 1, pole
    while factor > NEGLIGIBLE and reach < x.shape[-1]:
        x[..., reach:] += x[..., :-reach] * factor
        reach, factor = 2 * reach, factor * factor
    return x


def smooth_aims(aims: Tensor, frames: Tensor, smear: float) -> Tensor:
    """Half the causal and half the anticipating smoothing by two one-pole filters each.

    Args:
        aims: ``[dims, U, T]``; values after an utterance's end are ignored.
        frames: int64 ``[U]``.
        smear: pole of the filters, which start in the steady state of the edge's value.
    """
    places = torch.arange(aims.shape[2], device=aims.device)
    inside = places < frames[:, None]
    edge = (frames - 1).expand(len(aims), -1)[:, :, None]
    start, edge = aims[:, :, :1], aims.gather(2, edge)
    gain = (1.0 - smear) * (1.0 - smear)
    causal = one_pole(one_pole((aims - start) * gain, smear), smear) + start
    back = ((aims - edge) * gain * inside).flip(2)
    return 0.5 * (causal + (one_pole(one_pole(back, smear), smear).flip(2) + edge))


def wobble_path(noise: Tensor, wobble: float, pole: float) -> Tensor:
    """Autoregressive noise of standard deviation ``wobble``, of normal ``noise [dims, U, T]``."""
    steps = noise * (wobble * (1.0 - pole * pole) ** 0.5)
    steps[:, :, 0] = wobble * noise[:, :, 0]
    return one_pole(steps, pole)


def sum_weighted(weights: Tensor, x: Tensor, start: Tensor) -> Tensor:
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
    return sum_weighted(cosines, energy, torch.zeros_like(energy[:1]))


def pad_edges(x: Tensor, frames: Tensor, beyond: int) -> Tensor:
    """Each utterance with its edge frames repeated: ``[dims, U, T + 2 beyond]``."""
    places = torch.arange(-beyond, x.shape[2] + beyond, device=x.device)
    index = torch.minimum(places.clamp_min(0), frames[:, None] - 1)
    return x.gather(2, index.expand(len(x), -1, -1))


def slopes(x: Tensor, frames: Tensor, window: int = DELTA_WINDOW) -> Tensor:
    """``features.deltas`` of every utterance."""
    wide, length = pad_edges(x, frames, window), x.shape[2]
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


def standardise(x: Tensor, frames: Tensor) -> Tensor:
    """Mean 0 and variance 1 over each utterance's frames; a constant dimension is 0."""
    inside = (torch.arange(x.shape[2], device=x.device) < frames[:, None]).float()
    count = frames[:, None].float()
    centred = (x - total(x * inside) / count) * inside
    spread = (total(centred * centred) / count).sqrt()
    return centred / torch.where(spread > 1e-8, spread, torch.inf)


def make(
    name: str, recipe: Recipe, scale: str, *, cache: Path, progress: Callable[[str], None]
) -> Corpus:
    """The corpus of a recipe: training speech is generated on the training device, the rest stored.

    Words and targets of the training speech are made here: 4 bytes a frame.
    """
    without = dataclasses.replace(recipe, train=0)
    stored = continuous.make(name, without, scale, cache=cache, progress=progress)
    speech = Speech(Maker(recipe, name), "train")
    table, targets = draw_utterances(speech, progress)
    return dataclasses.replace(
        stored,
        targets=np.concatenate([stored.targets, targets]),
        utterances=join([stored.utterances, table.shifted(len(stored.features))]),
        speech=speech,
        stored_fingerprint=fingerprint(stored, recipe, targets),
    )


def draw_utterances(
    speech: Speech, progress: Callable[[str], None]
) -> tuple[Utterances, np.ndarray]:
    """All utterances of a split, and their targets, int32 [frames]."""
    maker, split, every = speech.maker, speech.split, np.arange(speech.utterances)
    person = maker.people(split).start
    speakers = np.array([f"speaker-{person + s:04d}" for s in range(len(maker.people(split)))])
    frames: list[np.ndarray] = []
    voices: list[np.ndarray] = []
    words: list[tuple[str, ...]] = []
    targets: list[np.ndarray] = []
    tell = progress_counter(
        progress, f"{maker.name} corpus", len(every), "training utterances drawn"
    )
    for batch in speech.draw_sentences(every):
        frames.append(batch.frames.numpy())
        voices.append(speakers[batch.speaker.numpy()])
        rows: list[list[int]] = batch.words.numpy().tolist()
        words += [tuple(maker.words[w] for w in row if w >= 0) for row in rows]
        targets.append(batch.frame_targets.numpy().astype(np.int32))
        tell(len(words))
    lengths = np.concatenate(frames)
    table = Utterances(
        id=np.array([f"{split}-{i:07d}" for i in range(len(every))]),
        speaker=np.concatenate(voices),
        split=np.full(len(every), split),
        start=np.cumsum(lengths) - lengths,
        frames=lengths,
        words=tuple(words),
    )
    return table, np.concatenate(targets)


def fingerprint(stored: Corpus, recipe: Recipe, targets: np.ndarray) -> str:
    """SHA-256 (hex) of the stored part, of all targets, and of the inputs of the features."""
    content = {
        "stored": stored.fingerprint,
        "targets": hashlib.sha256(targets.data).hexdigest(),
        "recipe": dataclasses.asdict(recipe),
        "format": FORMAT,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
