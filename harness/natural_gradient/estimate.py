# torch.linalg says no types:
# pyright: reportUnknownMemberType=false
"""What online natural gradient knows of the rows one side of a layer sees.

The second moment of rows x is modelled as ``F = Rᵀ diag(d) R + ρ I`` (Povey, Zhang and
Khudanpur, arXiv 1410.7455), with k orthonormal rows in R. Shape letters: R replicas, N rows,
D columns of a row (m, or m + 1 where a one is appended), k the rank of an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor

from harness.base.errors import UserError

FIRST_CALLS = 10
"""The estimate is updated in each of its first ten calls, then once a period."""


@dataclass(frozen=True)
class Preconditioner:
    """How one side of a layer is preconditioned.

    Args:
        rank: k, the directions whose size is tracked one by one; at most D - 1 are used.
        period: calls from one update of the estimate to the next, after the first ten.
        alpha: α, how far G leans towards a multiple of the identity.
        history: rows over which the estimate forgets; ``η = min(0.9, 1 - exp(-N / history))``.
        epsilon: the least d and ρ, in squared units of the rows.
        delta: the least d and ρ as a share of the largest direction.

    Raises:
        UserError: a value outside its range.
    """

    rank: int = 40
    period: int = 1
    alpha: float = 4.0
    history: float = 2000.0
    epsilon: float = 1e-10
    delta: float = 5e-4

    def __post_init__(self) -> None:
        _require("rank", self.rank, self.rank >= 1, "1 or more")
        _require("period", self.period, self.period >= 1, "1 or more")
        _require("alpha", self.alpha, 0.0 <= self.alpha < float("inf"), "0 or more")
        _require("history", self.history, self.history > 0.0, "above 0")
        _require("epsilon", self.epsilon, 0.0 < self.epsilon < 1.0, "between 0 and 1")
        _require("delta", self.delta, 0.0 < self.delta < 1.0, "between 0 and 1")

    def start(
        self,
        replicas: int,
        width: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Moment:
        """The estimate before any row was seen, for R replicas and D = ``width`` columns.

        Row r of R has entries at columns r, r + k, r + 2k …, the first one a little larger.
        """
        rank = min(self.rank, width - 1)
        column = torch.arange(width)
        rows = (column % max(rank, 1) == torch.arange(rank).unsqueeze(1)).double()
        rows += 0.1 * torch.eye(rank, width, dtype=torch.float64)
        rows /= cast(Tensor, rows.norm(dim=1, keepdim=True))
        energy = torch.full((replicas, rank), self.epsilon, dtype=torch.float64, device=device)
        floor = torch.full((replicas,), self.epsilon, dtype=torch.float64, device=device)
        orthonormal = rows.to(device).expand(replicas, -1, -1)
        return moment_of(orthonormal, energy, floor, self.alpha, 0, dtype)

    def updates_at(self, calls: int) -> bool:
        """Whether the call after ``calls`` earlier ones updates the estimate."""
        return calls < FIRST_CALLS or (calls + 1 - FIRST_CALLS) % self.period == 0


@dataclass(frozen=True)
class Moment:
    """What is known of the rows of R replicas: the second moment F, ready for use.

    All replicas have been called equally often.

    Args:
        basis: W, ``[R, k, D]``, in the rows' precision.
        energy: d, ``[R, k]``, float64.
        floor: ρ, ``[R]``, float64.
        shrink: e, ``[R, k]``, float64; follows from d and ρ, kept because every call needs it.
        calls: t, the minibatches seen.
    """

    basis: Tensor
    energy: Tensor
    floor: Tensor
    shrink: Tensor
    calls: int

    TENSORS: ClassVar = ("basis", "energy", "floor", "shrink")

    @cached_property
    def change(self) -> Tensor:
        """``e - 2``: how much a square along each direction of R counts more, ``[R, k, 1]``."""
        return (self.shrink - 2.0).unsqueeze(2)

    @cached_property
    def least(self) -> Tensor:
        """The least square of an eigenvalue of ``I - WᵀW``, ``[R, 1]``."""
        return (1.0 - self.shrink[:, :1]).square_()  # d descends, and so does e

    def called(self) -> Moment:
        """The same after one more call, with what it has worked out."""
        after = copy(self)
        object.__setattr__(after, "calls", self.calls + 1)
        return after

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name, for a checkpoint."""
        named = {name: getattr(self, name) for name in self.TENSORS}
        return {**named, "calls": torch.tensor(self.calls)}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Moment:
        """The state whose `tensors` these are."""
        return Moment(
            tensors["basis"],
            tensors["energy"],
            tensors["floor"],
            tensors["shrink"],
            int(tensors["calls"]),
        )


@dataclass(frozen=True)
class Rows:
    """N rows of each replica.

    Args:
        x: ``[R, N, m]``.
        appended: whether a column of ones belongs to the rows (D = m + 1); it is never
            stored. It carries the bias of a layer.
    """

    x: Tensor
    appended: bool = False

    @property
    def width(self) -> int:
        """D."""
        return self.x.shape[2] + self.appended

    def along(self, basis: Tensor) -> Tensor:
        """``H = X Wᵀ``, ``[R, N, k]``, for ``basis [R, k, D]``."""
        if not self.appended:
            return torch.bmm(self.x, basis.mT)
        return torch.baddbmm(basis[:, :, -1].unsqueeze(1), self.x, basis[:, :, :-1].mT)

    def gathered(self, h: Tensor) -> Tensor:
        """``HᵀX``, ``[R, k, D]``, for ``h [R, N, k]``."""
        if not self.appended:
            return torch.bmm(h.mT, self.x)
        return torch.cat([torch.bmm(h.mT, self.x), h.sum(1).unsqueeze(2)], 2)

    def squares(self) -> tuple[Tensor, bool]:
        """The rows' squared lengths ``[R, N]``, float64, whether float32 surely holds them."""
        lengths = self._ordinary_lengths()
        ordinary = lengths is not None
        if lengths is None:
            x = self.x
            lengths = cast(Tensor, torch.linalg.vector_norm(x, dim=2, dtype=torch.float64))
        squares = lengths.double().square_()
        return (squares.add_(1.0) if self.appended else squares), ordinary

    def _ordinary_lengths(self) -> Tensor | None:
        """The rows' lengths without the appended one, where their squares fit into float32.

        Squares of float32 leave its range beyond about 1e±19; float64 squares of float32 do
        not, but cost a processor seven times as much.
        """
        if not asking_is_free(self.x):
            return None
        lengths = cast(Tensor, torch.linalg.vector_norm(self.x, dim=2))
        return lengths if lengths.numel() > 0 and 1e-15 < float(lengths.amax()) < 1e18 else None


def asking_is_free(tensor: Tensor) -> bool:
    """Whether the host may look at a value to save work: only where it computes it itself.

    On a device it would wait for all that was launched before, which costs more than the work.
    """
    return tensor.device.type == "cpu"


def moment_of(
    orthonormal: Tensor,
    energy: Tensor,
    floor: Tensor,
    alpha: float,
    calls: int,
    dtype: torch.dtype,
) -> Moment:
    """The estimate with R, d and ρ, and what follows from them: ``e`` and ``W = e^½ R``."""
    width = orthonormal.shape[2]
    beta = floor * (1.0 + alpha) + energy.sum(1) * (alpha / width)
    shrink = 1.0 / (beta.unsqueeze(1) / energy + 1.0)
    basis = orthonormal.to(dtype) * shrink.sqrt().to(dtype).unsqueeze(2)
    return Moment(basis, energy, floor, shrink, calls)


def _require(name: str, value: float, holds: bool, allowed: str) -> None:
    if not holds:
        raise UserError(f"natural gradient: {name} is {value}; allowed: {allowed}")
