"""Words, states and durations of many utterances at once, and the random numbers for them.

The laws are those of ``continuous.Maker`` and ``invented_language.Bigram``, and the parameters are
theirs: here are tables of them and other random numbers. All comparisons are of integers and of
float64 numbers that every device has alike, so words, states and durations are the same bits on
all of them.

Random numbers are functions of their place: Philox2x32-10, in torch's integers (Salmon, Moraes,
Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The key is what is drawn,
the counter's words are utterance and place; so a number is the same on every device, whatever
else is drawn with it. Everything made of them here is elementwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data_synth.continuous import Maker
from data_synth.invented_language import SILENCE_STATES, STATES_A_PHONE, edges_of
from harness.base.seeds import stream_key


@dataclass(frozen=True, eq=False)
class Tables:
    """A maker's words and laws on a device.

    Attributes:
        often, liked, stays: cumulative probabilities (``invented_language.edges_of``) of any word,
            of a word's favourites, and of the frames of a state, from 1.
        next: int64 [words, favourites].
        targets: int64 [words, most states], -1 after a word's last.
        phones: int64 [words, most phones], 0 after a word's last.
    """

    often: Tensor
    liked: Tensor
    stays: Tensor
    next: Tensor
    targets: Tensor
    phones: Tensor

    @classmethod
    def from_maker(cls, maker: Maker, split: str, device: str) -> Tables:
        """The tables of a split; its ``hurry`` shortens the stays in states."""
        text, hurry = maker.text, maker.conditions[split].hurry
        targets = _pad_rows([maker.lexicon[w] for w in maker.words], -1)
        phones = _pad_rows([maker.phones[w] for w in maker.words], 0)
        stays = _geometric(min(1.0, hurry / maker.recipe.mean_state_frames))
        parts = edges_of(text.often), edges_of(text.weights), stays, text.next, targets, phones
        return cls(*(torch.as_tensor(part).to(device) for part in parts))


@dataclass(frozen=True, eq=False)
class Visits:
    """Utterances as sequences of HMM states with durations; unused visits have 0 frames.

    Attributes:
        words: int64 [U, most words], -1 after a sentence's last.
        speaker: int64 [U], counted within the split.
        targets: int64 [U, V].
        stays: int64 [U, V], frames of each visit.
        ways: int64 [U, V], row of the displacements of phones, 0 for silence.
    """

    words: Tensor
    speaker: Tensor
    targets: Tensor
    stays: Tensor
    ways: Tensor

    @cached_property
    def ends(self) -> Tensor:
        """The frame after each visit, int64 [U, V]."""
        return self.stays.cumsum(1)

    @property
    def frames(self) -> Tensor:
        """Length of each utterance, int64 [U]."""
        return self.ends[:, -1]

    @property
    def frame_targets(self) -> Tensor:
        """Targets of all frames, one utterance after another, int64 [N]."""
        return self.targets.flatten().repeat_interleave(self.stays.flatten())

    def visit_index(self, longest: int) -> Tensor:
        """Index of the visit of every frame, int64 [U, longest]; the last one after the end."""
        every = torch.arange(longest, device=self.ends.device).expand(len(self.ends), -1)
        index = torch.searchsorted(self.ends, every.contiguous(), right=True)
        return index.clamp_max_(self.ends.shape[1] - 1)


def visits(maker: Maker, tables: Tables, split: str, draws: Draws) -> Visits:
    """The sentences of some utterances and the states they go through."""
    words = sentences(maker, tables, draws)
    said, stays, ways = _draw_word_states(maker, tables, draws, words)
    quiet = _draw_silences(maker, draws, words)
    silent = torch.arange(SILENCE_STATES, device=words.device).expand(*words.shape, -1)
    targets = torch.cat([said, silent], 2).flatten(1)
    lasting = torch.cat([stays, quiet[:, 1:]], 2).flatten(1)
    ways = torch.cat([ways, torch.zeros_like(silent)], 2).flatten(1)
    start = silent[:, 0]
    return Visits(
        words,
        draws.integers("speaker", len(maker.people(split)))[0],
        torch.cat([start, targets], 1),
        torch.cat([quiet[:, 0], lasting], 1),
        torch.cat([torch.zeros_like(start), ways], 1),
    )


def sentences(maker: Maker, tables: Tables, draws: Draws) -> Tensor:
    """Word numbers, int64 [U, most words], -1 after the last; see ``text.Bigram.sentence``."""
    manner = maker.text.manner
    least, most = manner.sentence_words
    length = least + draws.integers("length", most - least + 1)[0]
    anybody = torch.searchsorted(tables.often, draws.uniform("anybody", most), right=True)
    liked = torch.searchsorted(tables.liked, draws.uniform("liked", most), right=True)
    usual = draws.uniform("habit", most) < manner.habit
    words = [anybody[0]]
    for i in range(1, most):
        words.append(torch.where(usual[i], tables.next[words[-1], liked[i]], anybody[i]))
    said = torch.stack(words, 1)
    return torch.where(torch.arange(most, device=said.device) < length[:, None], said, -1)


def _draw_word_states(
    maker: Maker, tables: Tables, draws: Draws, words: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets, frames and displacements of every word's states, each ``[U, words, states]``."""
    number, variants = words.clamp_min(0), maker.recipe.variants
    phones, targets = tables.phones[number], tables.targets[number]
    there = (targets >= 0) & (words >= 0)[:, :, None]
    way = _as(draws.integers("variant", variants, phones[0].numel()), phones)
    ways = (1 + phones * variants + way).repeat_interleave(STATES_A_PHONE, 2)
    drawn = _as(draws.uniform("stay", targets[0].numel()), targets)
    stays = 1 + torch.searchsorted(tables.stays, drawn, right=True)
    return targets.clamp_min(0), stays * there, ways * there


def _draw_silences(maker: Maker, draws: Draws, words: Tensor) -> Tensor:
    """Frames of the silences' states ``[U, 1 + words, 3]``: first, and after each word."""
    r, (_, most) = maker.recipe, words.shape
    there = torch.nn.functional.pad(words >= 0, (1, 1), value=False)
    edge = there[:, 1:] != there[:, :-1]  # before the first word, after the last
    edge[:, 0] = True
    pause = there[:, 1:-1] & draws.uniform("pause", most).T.lt(r.pause)
    edges, pauses = (
        least + draws.integers(name, top - least + 1, most + 1).T
        for name, (least, top) in (("silence", r.silence_frames), ("gap", r.pause_frames))
    )
    between = torch.nn.functional.pad(pause, (1, 0), value=False)
    frames = torch.where(edge, edges, torch.where(between, pauses, 0))
    outer = frames // 3
    return torch.stack([outer, frames - 2 * outer, outer], 2)


def _as(drawn: Tensor, like: Tensor) -> Tensor:
    """Drawn numbers ``[places, U]`` in the shape ``[U, ...]`` of ``like``."""
    return drawn.T.contiguous().view(like.shape)


def _geometric(leave: float) -> np.ndarray:
    """Geometric distribution function 1 − (1 − leave)^k at k = 1, 2, ..., as far as 32 bits reach.

    ``leave`` is the probability of leaving a state after each frame.
    """
    most = 1 if leave == 1.0 else int(np.ceil(np.log(0.5 * STEP) / np.log1p(-leave)))
    return 1.0 - (1.0 - leave) ** np.arange(1.0, most)


def _pad_rows(rows: list[tuple[int, ...]], filling: int) -> np.ndarray:
    most = max(map(len, rows))
    return np.array([(*row, *[filling] * (most - len(row))) for row in rows], np.int64)


MULTIPLIER, WEYL, ROUNDS = 0xD256D193, 0x9E3779B9, 10

LOW = 0xFFFFFFFF

STEP = 2.0**-32


def philox(low: Tensor, high: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """The two 32-bit words of a counter's two, all in int64 from 0 to 2³² − 1.

    Args:
        low: the counter's first word.
        high: the second; they are broadcast.
        key: 32 bits.
    """
    for _ in range(ROUNDS):
        product = low * MULTIPLIER  # its sign is wrong from 2⁶³ on, its bits are not
        low, high = (product >> 32) & LOW ^ high ^ key, product & LOW
        key = (key + WEYL) & LOW
    return low, high


@dataclass(frozen=True, eq=False)
class Draws:
    """The random numbers of some utterances.

    Args:
        seed: of the corpus.
        split: name of the split.
        utterances: numbers of the utterances, int64 ``[U]``, below 2³².
    """

    seed: int
    split: str
    utterances: Tensor

    def uniform(self, purpose: str, count: int) -> Tensor:
        """Between 0 and 1, neither included: float64 ``[count, U]``."""
        place = self._range(-(-count // 2))[:, None]
        one, other = self._words(purpose, place, self.utterances)
        return (torch.cat([one, other]).double() + 0.5)[:count] * STEP

    def integers(self, purpose: str, limit: int, count: int = 1) -> Tensor:
        """Integers from 0 to ``limit`` − 1, equally likely: int64 ``[count, U]``."""
        return (self.uniform(purpose, count) * limit).long()

    def normal(self, purpose: str, count: int, places: int = 1) -> Tensor:
        """Standard normal numbers, float32 ``[count, U, places]``, a function of the place alone.

        Box and Muller 1958: √(−2 ln u) times the cosine and the sine of 2π v.
        """
        pairs = -(-count // 2)
        place = self._range(places) * pairs + self._range(pairs)[:, None, None]
        one, other = self._words(purpose, place, self.utterances[:, None])
        radius = (one.float() * STEP + 0.5 * STEP).log_().mul_(-2.0).sqrt_()
        angle = other.float() * (STEP * 2.0 * math.pi)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]

    def _words(self, purpose: str, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        key = stream_key(self.seed, f"made {self.split}, {purpose}") & LOW
        return philox(low, high, key)

    def _range(self, count: int) -> Tensor:
        return torch.arange(count, device=self.utterances.device)
