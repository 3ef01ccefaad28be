# torch.linalg says no types:
# pyright: reportUnknownMemberType=false
"""One update of a second moment by the rows of a minibatch.

Povey, Zhang and Khudanpur (arXiv 1410.7455): one step of subspace
iteration on ``T = η XᵀX / N + (1 - η) F``, from products of k by D and k by k only. Rows and
W have the caller's precision, everything k by k is float64. Shape letters as in `estimate`.
"""

from __future__ import annotations

from math import exp
from typing import cast

import torch
from torch import Tensor

from harness.natural_gradient.estimate import (
    Moment,
    Preconditioner,
    Rows,
    asking_is_free,
    moment_of,
)


def updated(
    moment: Moment, rows: Rows, along: Tensor, total: Tensor, options: Preconditioner, scale: float
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
        total: ``tr(X Xᵀ)``, likewise, ``[R]``.
        options: the preconditioner.
        scale: see `precondition`.
    """
    count, width, size = along.shape[1], rows.width, total * scale**2
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
    after = moment_of(
        orthonormal, energy * square[:, None], rho * square, options.alpha, moment.calls, y.dtype
    )
    sound = size.isfinite()
    whole = asking_is_free(sound) and bool(sound.all())
    return after if whole else _where(sound, after, moment)


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
    values, vectors = cast(tuple[Tensor, Tensor], torch.linalg.eigh(z))
    top = values.flip(1).clamp_min(0.0).sqrt()
    return top.maximum(floor[:, None]).maximum(1e-7 * top[:, :1]), vectors.flip(2)


def _orthonormal(rows: Tensor) -> Tensor:
    """Gram-Schmidt on the rows of the replicas where they are not orthonormal to 1e-3.

    A device computes it of all replicas, since the host may not ask which need it.

    They lose it where eigenvalues of Z span many orders or were floored; looking costs little
    beside the products before. A Householder QR with a positive diagonal gives the same rows
    as Gram-Schmidt or a Cholesky factor would, also where they depend on each other or vanish.

    Args:
        rows: ``[R, k, D]``, changed in place.
    """
    unit = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    far = (torch.bmm(rows, rows.mT) - unit).abs().amax((1, 2))
    bad = ~(far <= 1e-3)
    if not asking_is_free(rows):
        return torch.where(bad[:, None, None], _gram_schmidt(rows), rows)
    if bool(bad.any()):
        rows[bad] = _gram_schmidt(rows[bad])
    return rows


def _gram_schmidt(rows: Tensor) -> Tensor:
    """Orthonormal rows that span the same, ``[R, k, D]``."""
    finite = torch.nan_to_num(rows.double(), nan=0.0, posinf=0.0, neginf=0.0)
    q, triangle = cast(tuple[Tensor, Tensor], torch.linalg.qr(finite.mT))
    sign = torch.where(triangle.diagonal(dim1=1, dim2=2) < 0.0, -1.0, 1.0)
    return (q * sign.unsqueeze(1)).mT.to(rows.dtype)


def _where(sound: Tensor, new: Moment, old: Moment) -> Moment:
    """Each replica's new estimate if its rows were finite, else its old one."""
    return Moment(
        torch.where(sound[:, None, None], new.basis, old.basis),
        torch.where(sound[:, None], new.energy, old.energy),
        torch.where(sound, new.floor, old.floor),
        torch.where(sound[:, None], new.shrink, old.shrink),
        old.calls,
    )
