"""Outer gradients of many utterances at once, on a GPU or the CPU: ``mmi``'s, to rounding.

``mmi`` itself processes, one by one, utterances that a batch cannot: with lattices, with given
alignments, with unusable scores or words, or with sums beyond a double's range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.acoustics.mmi import REMEMBERED, Alignment, Outer, SequenceCriterion, Trouble, Words
from harness.acoustics.sums import Chain, Chains, Loop, best_paths, chain, factors, sums


@dataclass(frozen=True, eq=False)
class Outers:
    """The outer gradients of a batch; see ``mmi.Outer`` for each.

    Attributes:
        value: float64 [B], values of the criterion.
        gradient: float64 [B, T, K], on the device; zero behind an utterance's end.
        kept: bool [B, T], whether a frame has a gradient.
        rejected, cancelled: int64 [B], frames left out.
        trouble: one entry per utterance, None if there is none.
        lengths: int64 [B], frames.
    """

    value: np.ndarray
    gradient: Tensor
    kept: np.ndarray
    rejected: np.ndarray
    cancelled: np.ndarray
    trouble: list[Trouble | None]
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.trouble)

    def __getitem__(self, i: int) -> Outer:
        """One utterance's, on the CPU."""
        n = int(self.lengths[i])
        gradient, kept = self.gradient[i, :n].cpu().numpy(), self.kept[i, :n]
        counts = int(self.rejected[i]), int(self.cancelled[i])
        return Outer(float(self.value[i]), gradient, kept, *counts, self.trouble[i])


class BatchedCriterion:
    """A criterion for whole batches.

    Args:
        single: the criterion for one utterance.
        device: torch device of the log posteriors and gradients.
    """

    def __init__(self, single: SequenceCriterion, device: str = "cpu") -> None:
        self.single, self.device = single, device
        self._loop = Loop(factors(single.graph), device)
        self._prior = torch.as_tensor(single.log_prior, device=device)

        @lru_cache(REMEMBERED)
        def get_chain(words: Words) -> Chain:
            return chain(single.references.graph(words))

        self._chain = get_chain

    def outers(
        self,
        log_posteriors: Tensor,
        lengths: Sequence[int],
        references: Sequence[Sequence[str]],
        alignments: Sequence[Alignment | None] | None = None,
    ) -> Outers:
        """Values and outer gradients.

        Args:
            log_posteriors: [B, T, K] on the device, any values behind an utterance's end.
            lengths: frames of each utterance.
            references: words of each utterance's transcript.
            alignments: the numerator's path of each utterance; None to search for it.
        """
        words, given = [tuple(r) for r in references], list(alignments or [None] * len(lengths))
        out = _empty(log_posteriors, np.array(lengths, np.int64))
        together = self._select_batch(log_posteriors, out.lengths, words, given)
        if len(together):
            self._fill(out, together, log_posteriors, [words[i] for i in together])
        # NaN: a sum left a double's range; that utterance falls back to the lattice
        done = {i for i in together.tolist() if not math.isnan(out.value[i])}
        for i in range(len(out)):
            if i not in done:
                alone = log_posteriors[i, : out.lengths[i]].cpu().numpy()
                _put(out, i, self.single.outer(alone, words[i], given[i]))
        return out

    def _select_batch(
        self,
        log_posteriors: Tensor,
        lengths: np.ndarray,
        words: list[Words],
        given: list[Alignment | None],
    ) -> np.ndarray:
        """Indices of the utterances that can be processed as a batch."""
        if self.single.criterion.denominator == "lattice":
            return np.zeros(0, np.int64)
        frames = torch.arange(log_posteriors.shape[1], device=self.device)
        behind = frames >= torch.as_tensor(lengths, device=self.device)[:, None]
        finite = (torch.isfinite(log_posteriors.amax(2)) | behind).all(1).cpu().numpy()
        usable = finite & (lengths > 0) & np.array([g is None for g in given])
        usable &= np.array([not self.single.references.unsayable(w) for w in words])
        return np.flatnonzero(usable)

    def _fill(
        self, out: Outers, chosen: np.ndarray, log_posteriors: Tensor, words: list[Words]
    ) -> None:
        """Process the utterances ``chosen`` [b] together; inexact ones keep a value of NaN.

        The host synchronises with the device twice per batch, whatever its size.
        """
        at, frames = torch.as_tensor(chosen, device=self.device), int(out.lengths[chosen].max())
        lengths = torch.as_tensor(out.lengths[chosen], device=self.device)
        inside = torch.arange(frames, device=self.device) < lengths[:, None]
        some = log_posteriors[at, :frames]
        scores = self.single.criterion.kappa * (some.double() - self._prior)
        batch = _Batch(torch.where(inside[:, :, None], scores, 0.0), lengths, inside)
        found = self._compute_gradients(batch, self._compute_numerators(batch, words))
        kept = found.alive & ~found.rejected & found.exact[:, None]
        gradient = torch.where(kept[:, :, None], found.direction, 0.0)
        out.gradient[at, :frames] = self.single.criterion.kappa * gradient
        cancelled = inside & ~found.alive & ~found.rejected
        fates = torch.stack([kept, found.rejected, cancelled]).cpu().numpy()
        out.value[chosen] = torch.where(found.exact, found.value, math.nan).cpu().numpy()
        out.kept[chosen, :frames] = fates[0]
        out.rejected[chosen], out.cancelled[chosen] = fates[1:].sum(2)
        for i, any_kept in zip(chosen.tolist(), fates[0].any(1), strict=True):
            out.trouble[i] = None if any_kept else "nothing kept"

    def _compute_numerators(self, batch: _Batch, words: list[Words]) -> _NumeratorBatch:
        rules = self.single.criterion
        chains = Chains([self._chain(w) for w in words], self.device)
        summed = rules.numerator == "sum"
        targets, gamma, log_z = None, None, None
        if not summed or rules.kind in ("smbr", "bmmi"):
            best = best_paths(chains, batch.scores, batch.lengths)
            targets, log_z = best.targets, best.score
            gamma = _hot(targets, batch.scores, batch.inside)
        if not summed and gamma is not None and log_z is not None:
            return _NumeratorBatch(log_z, gamma, torch.isfinite(log_z), gamma, targets)
        found = sums(chains, batch.scores, batch.lengths)
        return _NumeratorBatch(found.log_z, found.gamma, found.exact, gamma, targets)

    def _compute_gradients(self, batch: _Batch, said: _NumeratorBatch) -> _BatchGradients:
        rules, nowhere = self.single.criterion, torch.zeros_like(batch.inside)
        if rules.kind == "numerator":
            return _BatchGradients(said.log_z, said.gamma, nowhere, batch.inside, said.exact)
        scores = batch.scores
        if rules.kind == "bmmi" and said.hot is not None:
            scores = scores + rules.boost * (batch.inside[:, :, None].double() - said.hot)
        targets = said.targets if rules.kind == "smbr" else None
        den = sums(self._loop, scores, batch.lengths, targets)
        if den.through is not None and said.hot is not None:
            value = (den.gamma * said.hot).sum((1, 2))
            direction, rejected = den.through - den.gamma * value[:, None, None], nowhere
        else:
            value, direction = said.log_z - den.log_z, said.gamma - den.gamma
            agreed = (said.gamma * (den.gamma >= rules.reject_below)).sum(2)
            rejected = batch.inside & (agreed < 0.5)
        alive = batch.inside & (direction.abs().sum(2) >= rules.cancel_below)
        return _BatchGradients(value, direction, rejected, alive, said.exact & den.exact)


class _Batch(NamedTuple):
    """Scores [B, T, K], 0 behind an utterance's end; lengths [B]; mask [B, T] of the frames."""

    scores: Tensor
    lengths: Tensor
    inside: Tensor


class _NumeratorBatch(NamedTuple):
    """Numerators' log Z [B], γ [B, T, K], exactness [B]; one-hot and targets of the best path.

    The last two, [B, T, K] and [B, T], are None if the criterion does not compare states.
    """

    log_z: Tensor
    gamma: Tensor
    exact: Tensor
    hot: Tensor | None
    targets: Tensor | None


class _BatchGradients(NamedTuple):
    """Values [B], o / κ [B, T, K], masks [B, T] of rejected and of live frames, exactness [B]."""

    value: Tensor
    direction: Tensor
    rejected: Tensor
    alive: Tensor
    exact: Tensor


def _hot(targets: Tensor, like: Tensor, inside: Tensor) -> Tensor:
    """One-hot targets [B, T, K], zero behind an utterance's end."""
    hot = torch.zeros_like(like)
    return hot.scatter_(2, targets[:, :, None], inside[:, :, None].double())


def _empty(like: Tensor, lengths: np.ndarray) -> Outers:
    batch = len(lengths)
    return Outers(
        np.full(batch, math.nan),
        torch.zeros(like.shape, dtype=torch.float64, device=like.device),
        np.zeros(like.shape[:2], np.bool_),
        np.zeros(batch, np.int64),
        np.zeros(batch, np.int64),
        [None] * batch,
        lengths,
    )


def _put(out: Outers, i: int, one: Outer) -> None:
    out.value[i], out.trouble[i] = one.value, one.trouble
    out.rejected[i], out.cancelled[i] = one.rejected, one.cancelled
    out.gradient[i, : one.frames] = torch.as_tensor(one.gradient, device=out.gradient.device)
    out.kept[i, : one.frames] = one.kept
