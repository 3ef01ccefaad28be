"""Online natural gradient: rows of a minibatch, shrunk where rows have been large before.

Povey, Zhang and Khudanpur (arXiv 1410.7455) model the second moment of the rows ``x`` that
one side of an affine layer sees as ``F = Rᵀ diag(d) R + ρ I``, with k orthonormal rows in
R, and multiply every row by the inverse of ``G = F + (α/D) tr(F) I``, scaled so that the
minibatch keeps its norm. With ``β = ρ (1 + α) + α Σd / D``, ``e = 1 / (β / d + 1)`` and
``W = diag(e)^½ R`` the product needs no inverse: ``β G⁻¹ = I - WᵀW``.

An estimate (`Moment`) goes in and comes out; nothing is kept elsewhere. Rows and W have the
caller's precision, everything k by k is float64. Shape letters: R replicas, N rows, D
columns of a row (m, or m + 1 where a one is appended), k the rank of an estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp
from typing import NamedTuple

import torch
from torch import Tensor

from harness.errors import UserError

FIRST_CALLS = 10
"""The estimate is updated in each of its first ten calls, then once a period."""

WARMING_PASSES = 3
"""Updates on the first minibatch, before the first call counts."""


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
        rows /= rows.norm(dim=1, keepdim=True)
        energy = torch.full((replicas, rank), self.epsilon, dtype=torch.float64, device=device)
        floor = torch.full((replicas,), self.epsilon, dtype=torch.float64, device=device)
        orthonormal = rows.to(device).expand(replicas, -1, -1)
        return _moment(orthonormal, energy, floor, self.alpha, 0, dtype)

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

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name, for a checkpoint."""
        named = {name: getattr(self, name) for name in ("basis", "energy", "floor", "shrink")}
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
        """The rows' squared lengths ``[R, N]``, float64, and whether float32 can hold them."""
        lengths = torch.linalg.vector_norm(self.x, dim=2)
        # Squares of float32 leave its range beyond about 1e±19; float64 squares of float32
        # do not, but cost seven times as much.
        ordinary = lengths.numel() > 0 and 1e-15 < float(lengths.amax()) < 1e18
        if not ordinary:
            lengths = torch.linalg.vector_norm(self.x, dim=2, dtype=torch.float64)
        squares = lengths.double().square_()
        return (squares.add_(1.0) if self.appended else squares), ordinary


class Factor(NamedTuple):
    """What one call makes of its rows: ``γ (X - H W)``, without forming it.

    Args:
        basis: the W that was used, ``[R, k, D]``.
        along: ``H = X Wᵀ``, ``[R, N, k]``.
        squares: squared lengths of the rows of ``X - H W``, ``[R, N]``, float64.
        gain: γ, ``[R]``, float64: the norm of X over that of ``X - H W``.
    """

    basis: Tensor
    along: Tensor
    squares: Tensor
    gain: Tensor

    @property
    def rank(self) -> int:
        """k; 0 if the rows are left as they are."""
        return self.basis.shape[1]


def precondition(
    moment: Moment, rows: Rows, options: Preconditioner, scale: float = 1.0
) -> tuple[Moment, Factor]:
    """One call of the online preconditioner: the next estimate, and this call's factor.

    The factor comes from the estimate as it was **before** these rows.

    Args:
        moment: the estimate so far.
        rows: this minibatch.
        options: as at every call for this estimate.
        scale: the estimate is of ``scale`` times the rows. A derivative of a mean over N
            frames is thus compared with that of a sum if N is given.

    Returns:
        ``(moment, factor)``. A minibatch that is not finite leaves the estimate as it was.
    """
    squares, ordinary = rows.squares()
    if not moment.basis.shape[1]:
        return replace(moment, calls=moment.calls + 1), untouched(rows, squares)
    total = squares.sum(1)
    size = total * scale**2
    if not moment.calls:
        for _ in range(WARMING_PASSES):
            along = rows.along(moment.basis)
            moment = _updated(moment, rows, along, size, options, scale)
    along = rows.along(moment.basis)
    shrunk = _shrunk(squares, along if ordinary else along.double(), moment.shrink)
    factor = Factor(moment.basis, along, shrunk, _gain(total, shrunk))
    if options.updates_at(moment.calls):
        moment = _updated(moment, rows, along, size, options, scale)
    return replace(moment, calls=moment.calls + 1), factor


def untouched(rows: Rows, squares: Tensor | None = None) -> Factor:
    """The factor that leaves rows as they are: no direction is shrunk."""
    replicas, count, _ = rows.x.shape
    return Factor(
        rows.x.new_zeros(replicas, 0, rows.width),
        rows.x.new_zeros(replicas, count, 0),
        rows.squares()[0] if squares is None else squares,
        torch.ones(replicas, dtype=torch.float64, device=rows.x.device),
    )


def formed(rows: Rows, factor: Factor) -> Tensor:
    """``X - H W`` itself, ``[R, N, D]`` and without γ; only its columns of x if one is appended.

    The appended column is ``1 - H w`` with w the last column of W.
    """
    return torch.baddbmm(rows.x, factor.along, factor.basis[:, :, : rows.x.shape[2]], alpha=-1)


def _shrunk(squares: Tensor, along: Tensor, shrink: Tensor) -> Tensor:
    """Squared lengths of the rows of ``X - HW``: ``|x|² + Σ (e - 2) h²``, as ``WWᵀ = diag(e)``.

    Rounding may not take them beyond ``|x|²`` times a squared eigenvalue of ``I - WᵀW``: so
    γ is at least 1 and never infinite.
    """
    weights = (shrink - 2.0).to(along.dtype).unsqueeze(2)
    change = torch.bmm(along.square(), weights).squeeze(2).double()
    least = (1.0 - shrink.amax(1, keepdim=True)).square_()
    return change.add_(squares).clamp_(squares * least, squares)


def _gain(total: Tensor, shrunk: Tensor) -> Tensor:
    """γ, ``[R]``: 1 for rows that are all zero, or not finite."""
    return total.div(shrunk.sum(1)).sqrt_().nan_to_num_(nan=1.0, posinf=1.0)


def _updated(
    moment: Moment, rows: Rows, along: Tensor, size: Tensor, options: Preconditioner, scale: float
) -> Moment:
    """The estimate after ``T = η XᵀX / N + (1 - η) F``, by one step of subspace iteration.

    ``Y = R T`` spans the next subspace; with the eigenvectors U and eigenvalues C of
    ``Z = Y Yᵀ``, ``R' = C^-½ Uᵀ Y`` is orthonormal. Here Z comes from products of k by D and
    k by k only, and everything is in units of the larger of rows and estimate, so that no
    scale of the rows leaves float32's range.

    Args:
        moment: F.
        rows: X before ``scale``.
        along: ``H = X Wᵀ``, likewise.
        size: ``tr(X Xᵀ)`` after ``scale``, ``[R]``.
        options: the preconditioner.
        scale: see `precondition`.
    """
    count, width = along.shape[1], rows.width
    eta = min(0.9, 1.0 - exp(-count / options.history))
    keep, c = 1.0 - eta, eta / count
    square = torch.maximum(size / count, moment.energy.amax(1) + moment.floor)
    energy, floor = moment.energy / square[:, None], moment.floor / square
    inverse = (scale / square.sqrt()).to(along.dtype)[:, None, None]
    h = along * inverse
    j = rows.gathered(h).mul_(inverse)

    root = moment.shrink.sqrt()
    old = keep * (energy + floor[:, None])
    z = _gram(j, h, root, old, c)
    top, vectors = _eigen(z, keep * floor)
    size_left = c * size / square + keep * (width * floor + energy.sum(1)) - top.sum(1)
    rho = size_left / (width - energy.shape[1])
    least = torch.maximum(options.epsilon / square, options.delta * top.amax(1))
    energy = (top - rho[:, None]).maximum(least[:, None])
    rho = rho.maximum(least)

    mixture = (c / top).unsqueeze(2) * vectors.mT / root.unsqueeze(1)
    y = j.add_((old / c).to(j.dtype).unsqueeze(2) * moment.basis)
    orthonormal = _orthonormal(torch.bmm(mixture.to(y.dtype), y))
    after = _moment(
        orthonormal, energy * square[:, None], rho * square, options.alpha, moment.calls, y.dtype
    )
    sound = size.isfinite()
    return after if bool(sound.all()) else _where(sound, after, moment)


def _gram(j: Tensor, h: Tensor, root: Tensor, old: Tensor, c: float) -> Tensor:
    """``Z = Y Yᵀ`` of ``Y = diag(e)^-½ (c J + diag(old) W)``, ``[R, k, k]``, float64.

    ``J Wᵀ = HᵀH`` and ``W Wᵀ = diag(e)`` leave only ``J Jᵀ`` and ``HᵀH`` to compute.

    Args:
        j: ``J = HᵀX``, ``[R, k, D]``.
        h: H, ``[R, N, k]``.
        root: ``e^½``, ``[R, k]``.
        old: ``(1 - η) (d + ρ)``, ``[R, k]``.
        c: ``η / N``.
    """
    outer = root.unsqueeze(2) * root.unsqueeze(1)
    z = torch.bmm(j, j.mT).double().mul_(c * c)
    z += torch.bmm(h.mT, h).double().mul_(c) * (old.unsqueeze(2) + old.unsqueeze(1))
    z = z.div_(outer) + torch.diag_embed(old.square())
    return torch.nan_to_num(0.5 * (z + z.mT), nan=0.0, posinf=0.0, neginf=0.0)


def _eigen(z: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Square roots of Z's eigenvalues, descending, and the eigenvectors.

    T's eigenvalues are at least ``floor``; what lies below is rounding. So is what lies seven
    orders below the largest root, where float64 can tell nothing of Z.

    Args:
        z: ``[R, k, k]``.
        floor: ``(1 - η) ρ``, ``[R]``.

    Returns:
        ``C^½ [R, k]`` and ``U [R, k, k]``.
    """
    values, vectors = torch.linalg.eigh(z)
    top = values.flip(1).clamp_min(0.0).sqrt()
    return top.maximum(floor[:, None]).maximum(1e-7 * top[:, :1]), vectors.flip(2)


def _orthonormal(rows: Tensor) -> Tensor:
    """Gram-Schmidt on the rows of the replicas where they are not orthonormal to 1e-3.

    They lose it where eigenvalues of Z span many orders or were floored; looking costs little
    beside the products before. A Householder QR with a positive diagonal gives the same rows
    as Gram-Schmidt or a Cholesky factor would, also where they depend on each other or vanish.

    Args:
        rows: ``[R, k, D]``, changed in place.
    """
    unit = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    far = (torch.bmm(rows, rows.mT) - unit).abs().amax((1, 2))
    bad = ~(far <= 1e-3)
    if bool(bad.any()):
        finite = torch.nan_to_num(rows[bad].double(), nan=0.0, posinf=0.0, neginf=0.0)
        q, triangle = torch.linalg.qr(finite.mT)
        sign = torch.where(triangle.diagonal(dim1=1, dim2=2) < 0.0, -1.0, 1.0)
        rows[bad] = (q * sign.unsqueeze(1)).mT.to(rows.dtype)
    return rows


def _moment(
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


def _where(sound: Tensor, new: Moment, old: Moment) -> Moment:
    """Each replica's new estimate if its rows were finite, else its old one."""
    return Moment(
        torch.where(sound[:, None, None], new.basis, old.basis),
        torch.where(sound[:, None], new.energy, old.energy),
        torch.where(sound, new.floor, old.floor),
        torch.where(sound[:, None], new.shrink, old.shrink),
        old.calls,
    )


def _require(name: str, value: float, holds: bool, allowed: str) -> None:
    if not holds:
        raise UserError(f"natural gradient: {name} is {value}; allowed: {allowed}")
