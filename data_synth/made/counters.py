"""Random numbers that are functions of their place: Philox2x32-10, in torch's integers.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The key is
what is drawn, the counter's words are utterance and place; so a number is the same on every
device, whatever else is drawn with it. Everything made of them here is elementwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.base.seeds import stream_key

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
        split: whose utterances.
        utterances: their numbers, int64 ``[U]``, below 2³².
    """

    seed: int
    split: str
    utterances: Tensor

    def uniform(self, purpose: str, count: int) -> Tensor:
        """Between 0 and 1, neither included: float64 ``[count, U]``."""
        place = self._range(-(-count // 2))[:, None]
        one, other = self._words(purpose, place, self.utterances)
        return (torch.cat([one, other]).double() + 0.5)[:count] * STEP

    def below(self, purpose: str, limit: int, count: int = 1) -> Tensor:
        """Integers from 0 to ``limit`` − 1, equally likely: int64 ``[count, U]``."""
        return (self.uniform(purpose, count) * limit).long()

    def normal(self, purpose: str, count: int, places: int = 1) -> Tensor:
        """Standard normal numbers, float32 ``[count, U, places]``; those of a place stay its own.

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
