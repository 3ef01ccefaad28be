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

from typing import NamedTuple

import torch
from torch import Tensor

from harness.natural_gradient.estimate import Moment, Preconditioner, Rows
from harness.natural_gradient.update import updated

WARMING_PASSES = 3
"""Updates on the first minibatch, before the first call counts."""


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
        return moment.called(), untouched(rows, squares)
    total = squares.sum(1)
    if not moment.calls:
        for _ in range(WARMING_PASSES):
            along = rows.along(moment.basis)
            moment = updated(moment, rows, along, total, options, scale)
    along = rows.along(moment.basis)
    shrunk = _shrunk(squares, along if ordinary else along.double(), moment)
    factor = Factor(moment.basis, along, shrunk, _gain(total, shrunk))
    if options.updates_at(moment.calls):
        moment = updated(moment, rows, along, total, options, scale)
    return moment.called(), factor


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


def _shrunk(squares: Tensor, along: Tensor, moment: Moment) -> Tensor:
    """Squared lengths of the rows of ``X - HW``: ``|x|² + Σ (e - 2) h²``, as ``WWᵀ = diag(e)``.

    Rounding may not take them beyond ``|x|²`` times a squared eigenvalue of ``I - WᵀW``: so
    γ is at least 1 and never infinite.
    """
    change = torch.bmm(along.square(), moment.change.to(along.dtype)).squeeze(2).double()
    return change.add_(squares).clamp_(squares * moment.least, squares)


def _gain(total: Tensor, shrunk: Tensor) -> Tensor:
    """γ, ``[R]``: 1 for rows that are all zero, or not finite."""
    return total.div(shrunk.sum(1)).sqrt_().nan_to_num_(nan=1.0, posinf=1.0)
