"""The speech of a split, utterance by utterance, wherever it is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data_synth.articulation import waves
from data_synth.continuous import Maker
from data_synth.corpus import Made
from data_synth.made import sound
from data_synth.made.counters import Draws
from data_synth.made.sentences import Tables, Visits, visits

FORMAT = 1
"""Grows when the same recipe would no longer make the same speech."""
AT_ONCE = {"cpu": 32, "cuda": 512}
"""Utterances made together: what fits a processor's cache, and what keeps a GPU busy."""
NAMED_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Voices:
    """Everybody in a split, on a device; see ``invented.Voice``.

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
    """Makes any utterance of a split, the same bits in whatever company.

    Args:
        maker: whose recipe, language, text and voices these are.
        split: of the recipe.
        device: where it is made, ``"cpu"`` or ``"cuda"``.
    """

    maker: Maker
    split: str
    device: str = "cpu"

    @property
    def utterances(self) -> int:
        """How many there are."""
        return self.maker.conditions[self.split].utterances

    @property
    def dim(self) -> int:
        """Numbers in a frame: cepstra, their slopes, and the slopes' slopes."""
        return 3 * self.maker.recipe.cepstra

    def on(self, device: str) -> Speech:
        """The same on another device."""
        return self if device == self.device else replace(self, device=device)

    def said(self, numbers: np.ndarray) -> Iterator[Visits]:
        """What is said in some utterances, a few thousand at a time."""
        for part in _cut(numbers, NAMED_AT_ONCE):
            yield self._visits(self._draws(part))

    def targets(self, numbers: np.ndarray) -> np.ndarray:
        """Targets of some utterances, one after another, int32 [N]."""
        parts = [found.of_frames.cpu().numpy() for found in self.said(numbers)]
        return np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32)

    def make(self, numbers: np.ndarray) -> Made:
        """Some utterances, in the order given.

        Args:
            numbers: int64 [U], which.
        """
        pieces = [
            self.piece(part) for part in _cut(numbers, AT_ONCE[torch.device(self.device).type])
        ]
        return Made(*(torch.cat(column) for column in zip(*pieces, strict=True)))

    def piece(self, numbers: np.ndarray) -> Made:
        """As ``make``, all of them together."""
        draws = self._draws(numbers)
        found = self._visits(draws)
        lengths = found.frames.cpu().numpy()  # the one question to a device
        longest = int(lengths.max())
        at, rows = found.at(longest), torch.as_tensor(_rows(lengths, longest)).to(self.device)
        features = self._features(found, at, draws).flatten(1).index_select(1, rows)
        return Made(features.T.contiguous(), found.targets.gather(1, at).flatten()[rows])

    def _features(self, found: Visits, at: Tensor, draws: Draws) -> Tensor:
        """Normalised features ``[dim, U, longest]``."""
        r, here, frames = self.maker.recipe, self.maker.conditions[self.split], found.frames
        path = self._path(found, at, draws)
        voices = self._voices
        turn, shift, bias = (
            part[..., found.speaker].unsqueeze(-1)
            for part in (voices.turn, voices.shift, voices.bias)
        )
        ripple, humming = (
            here.channel * r.channel_spread * draws.normal(name, 3) for name in ("channel", "hum")
        )
        colour = voices.colour[:, found.speaker, None] + self._ripples(ripple)
        units = sound.weighted(self._mouth, sound.weighted(turn, path[:-1], shift), bias).tanh_()
        speech = sound.weighted(self._spectrum, units, path[-1] + colour)
        least, most = here.snr_db
        snr = (least + (most - least) * draws.uniform("snr", 1)[0]) * (np.log(10.0) / 10.0)
        level = voices.level[found.speaker] + self._levels(ripple) - snr.float()
        noise = r.band_noise * draws.normal("band", r.bands, path.shape[2])
        background = level[:, None] + self._ripples(humming)
        static = sound.cepstra(speech, background, noise, self._cosines)
        first = sound.slopes(static, frames)
        whole = torch.cat([static, first, sound.slopes(first, frames)])
        return sound.normalised(whole, frames)

    def _path(self, found: Visits, at: Tensor, draws: Draws) -> Tensor:
        """Articulators in every frame, ``[articulation + 1, U, longest]``."""
        r, dims = self.maker.recipe, self._places.shape[0]
        aims = self._places[:, found.targets] + self._ways[:, found.ways]
        aims += r.jitter * draws.normal("jitter", dims, found.targets.shape[1])
        aims = aims.gather(2, at.expand(dims, -1, -1))
        noise = draws.normal("wobble", dims, at.shape[1])
        return sound.smeared(aims, found.frames, r.smear) + sound.wobbling(
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
        return Tables.of(self.maker, self.split, self.device)

    @cached_property
    def _voices(self) -> Voices:
        maker, spread = self.maker, self.maker.conditions[self.split].speaker
        own = [maker.voice(person, spread) for person in maker.people(self.split)]
        turn, shift, colour = (
            np.stack([getattr(v, name) for v in own], -1) for name in ("turn", "shift", "colour")
        )
        bias = np.stack([maker.language.mouth_bias + v.hidden for v in own], -1)
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
        return sound.weighted(self._waves, sizes, sizes.new_zeros(1, 1, 1))

    def _levels(self, sizes: Tensor) -> Tensor:
        """Their means over the bands, ``[U]``."""
        means = self._put(waves(self.maker.recipe.bands).mean(1))[None]
        return sound.weighted(means, sizes, sizes.new_zeros(1, 1, 1))[0, :, 0]

    def _put(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values, np.float32)).to(self.device)


def _cut(numbers: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for first in range(0, len(numbers), size):
        yield numbers[first : first + size]


def _rows(lengths: np.ndarray, longest: int) -> np.ndarray:
    """Where frames that are there lie among ``[U, longest]`` laid flat."""
    return np.flatnonzero(np.arange(longest) < lengths[:, None])
