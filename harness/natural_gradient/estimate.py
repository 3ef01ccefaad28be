# torch.linalg says no types:
# pyright: reportUnknownMemberType=false
"""Online natural gradient: estimates of second moments, preconditioning, and limits of a change.

Povey, Zhang and Khudanpur (arXiv 1410.7455) model the second moment of the rows ``x`` on one side
of an affine layer (its inputs, or the derivatives at its outputs) as ``F = Rᵀ diag(d) R + ρ I``,
with k orthonormal rows in R. They multiply every row by the inverse of ``G = F + (α/D) tr(F) I``,
scaled so that the minibatch keeps its norm: rows shrink along directions of large earlier rows.
With ``β = ρ (1 + α) + α Σd / D``, ``e = 1 / (β / d + 1)`` and ``W = diag(e)^½ R`` the product needs
no inverse: ``β G⁻¹ = I - WᵀW``.

The estimate is updated by one step of subspace iteration on ``T = η XᵀX / N + (1 - η) F``, from
products of k by D and k by k only. Functions take an estimate (`Moment`) and return the next; they
keep no other state. Rows and W have the caller's precision, everything k by k is float64.

`PerSample` and `PerComponent` limit the change by one minibatch: the max-change of two generations
of Kaldi.

Shape letters: R replicas, N rows of a minibatch, D columns of a row (m, or m + 1 where a one is
appended), k the rank of an estimate, m inputs, n outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from harness.base.settings import Spec, setting

FIRST_CALLS = 10
"""The estimate is updated in each of its first ten calls, then once a period."""


@dataclass(frozen=True)
class Preconditioner(Spec):
    """Settings of the preconditioner of one side of a layer.

    Args:
        rank: k, the number of directions with a variance of their own; at most D - 1 are used.
        period: calls from one update of the estimate to the next, after the first ten.
        alpha: α, the weight of the multiple of the identity in G.
        history: rows over which the estimate forgets; ``η = min(0.9, 1 - exp(-N / history))``.
        epsilon: the least d and ρ, in squared units of the rows.
        delta: the least d and ρ as a share of the largest direction.

    Raises:
        UserError: a value outside its range.
    """

    rank: int = setting(40, at_least=1)
    period: int = setting(1, at_least=1)
    alpha: float = setting(4.0, at_least=0.0)
    history: float = setting(2000.0, above=0.0)
    epsilon: float = setting(1e-10, above=0.0, at_most=1.0)
    delta: float = setting(5e-4, above=0.0, at_most=1.0)

    def start(
        self,
        replicas: int,
        width: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Moment:
        """The initial estimate, for R replicas and D = ``width`` columns.

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
    """Estimate of the second moment F of the rows of R replicas.

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

    def count_call(self) -> Moment:
        """The same estimate after one more call."""
        return replace(self, calls=self.calls + 1)

    def tensors(self) -> dict[str, Tensor]:
        """The whole state by name, for a checkpoint."""
        tensors = {name: getattr(self, name) for name in self.TENSORS}
        return {**tensors, "calls": torch.tensor(self.calls)}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Moment:
        """Rebuild the state from its `tensors`."""
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

    def project(self, basis: Tensor) -> Tensor:
        """``H = X Wᵀ``, ``[R, N, k]``, for ``basis [R, k, D]``."""
        if not self.appended:
            return torch.bmm(self.x, basis.mT)
        return torch.baddbmm(basis[:, :, -1].unsqueeze(1), self.x, basis[:, :, :-1].mT)

    def combine(self, h: Tensor) -> Tensor:
        """``HᵀX``, ``[R, k, D]``, for ``h [R, N, k]``."""
        if not self.appended:
            return torch.bmm(h.mT, self.x)
        return torch.cat([torch.bmm(h.mT, self.x), h.sum(1).unsqueeze(2)], 2)

    def squares(self) -> tuple[Tensor, bool]:
        """The rows' squared lengths ``[R, N]``, float64, and whether they surely fit float32."""
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
    """Whether the host may read a value to save work: only if the tensor is on the CPU.

    For a tensor on a GPU the host would wait for all earlier launches, which costs more.
    """
    return tensor.device.type == "cpu"


def moment_of(
    orthonormal: Tensor, energy: Tensor, floor: Tensor, alpha: float, calls: int, dtype: torch.dtype
) -> Moment:
    """The estimate of R, d and ρ, with the derived ``e`` and ``W = e^½ R``."""
    width = orthonormal.shape[2]
    beta = floor * (1.0 + alpha) + energy.sum(1) * (alpha / width)
    shrink = 1.0 / (beta.unsqueeze(1) / energy + 1.0)
    basis = orthonormal.to(dtype) * shrink.sqrt().to(dtype).unsqueeze(2)
    return Moment(basis, energy, floor, shrink, calls)


def update_moment(
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
    j = rows.combine(h).mul_(inverse)

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
    are_sound = asking_is_free(sound) and bool(sound.all())
    return after if are_sound else _where(sound, after, moment)


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

    Rows lose orthonormality where eigenvalues of Z span many orders or were floored; the check
    costs little beside the products before. A GPU orthonormalises all replicas, since the host
    would have to wait to learn which need it. A Householder QR with a positive diagonal gives the
    rows of Gram-Schmidt or a Cholesky factor, also where rows are dependent or zero.

    Args:
        rows: ``[R, k, D]``, changed in place.
    """
    unit = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    deviation = (torch.bmm(rows, rows.mT) - unit).abs().amax((1, 2))
    bad = ~(deviation <= 1e-3)
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


WARMING_PASSES = 3
"""Additional updates on the first minibatch, before its rows are preconditioned."""


class Factor(NamedTuple):
    """The preconditioned rows ``γ (X - H W)`` of one call, as factors.

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


def precondition(
    moment: Moment, rows: Rows, options: Preconditioner, scale: float = 1.0
) -> tuple[Moment, Factor]:
    """One call of the online preconditioner: the next estimate, and this call's factor.

    The factor comes from the estimate as it was **before** these rows.

    Args:
        moment: the estimate so far.
        rows: this minibatch.
        options: the preconditioner, the same at every call for this estimate.
        scale: factor on the rows in the estimate. N makes derivatives of a mean over N frames
            comparable with those of a sum.

    Returns:
        ``(moment, factor)``. A minibatch that is not finite leaves the estimate as it was.
    """
    squares, ordinary = rows.squares()
    if not moment.basis.shape[1]:
        return moment.count_call(), identity_factor(rows, squares)
    total = squares.sum(1)
    if not moment.calls:
        for _ in range(WARMING_PASSES):
            along = rows.project(moment.basis)
            moment = update_moment(moment, rows, along, total, options, scale)
    along = rows.project(moment.basis)
    shrunk = _residual_squares(squares, along if ordinary else along.double(), moment)
    factor = Factor(moment.basis, along, shrunk, _gain(total, shrunk))
    if options.updates_at(moment.calls):
        moment = update_moment(moment, rows, along, total, options, scale)
    return moment.count_call(), factor


def identity_factor(rows: Rows, squares: Tensor | None = None) -> Factor:
    """The factor of rows that are not preconditioned: rank 0, γ = 1."""
    replicas, count, _ = rows.x.shape
    return Factor(
        rows.x.new_zeros(replicas, 0, rows.width),
        rows.x.new_zeros(replicas, count, 0),
        rows.squares()[0] if squares is None else squares,
        torch.ones(replicas, dtype=torch.float64, device=rows.x.device),
    )


def materialise(rows: Rows, factor: Factor) -> Tensor:
    """``X - H W``, ``[R, N, m]``, without γ and without an appended column."""
    return torch.baddbmm(rows.x, factor.along, factor.basis[:, :, : rows.x.shape[2]], alpha=-1)


def _residual_squares(squares: Tensor, along: Tensor, moment: Moment) -> Tensor:
    """Squared lengths of the rows of ``X - HW``: ``|x|² + Σ (e - 2) h²``, as ``WWᵀ = diag(e)``.

    Rounding may not take them beyond ``|x|²`` times a squared eigenvalue of ``I - WᵀW``: so
    γ is at least 1 and never infinite.
    """
    weights = (moment.shrink - 2.0).unsqueeze(2).to(along.dtype)
    change = torch.bmm(along.square(), weights).squeeze(2).double()
    least = (1.0 - moment.shrink[:, :1]).square_()  # d descends, and so does e
    return change.add_(squares).clamp_(squares * least, squares)


def _gain(total: Tensor, shrunk: Tensor) -> Tensor:
    """γ, ``[R]``: 1 for rows that are all zero, or not finite."""
    return total.div(shrunk.sum(1)).sqrt_().nan_to_num_(nan=1.0, posinf=1.0)


@dataclass(frozen=True)
class PerSample(Spec):
    """Limit of the mean change per sample in a layer, as in Kaldi's nnet2.

    ``s = min(1, limit N / (rate γᵢ γₒ Σ |x̂| |d̂|))``.

    Args:
        limit: largest mean change per sample; 0.075 to 0.1 in Kaldi's recipes for minibatches of
            512.
        counts_rate: whether the learning rate is part of the change. Without it a minibatch moves
            each layer by ``rate limit N`` at most, whatever its gradient.
    """

    limit: float = setting(0.075, above=0.0)
    counts_rate: bool = True


@dataclass(frozen=True)
class PerComponent(Spec):
    """Limits of the norm of each layer's change, then of the whole network's, as in Kaldi's nnet3.

    Args:
        each: the largest Euclidean norm of one layer's change of weights and biases.
        together: the largest norm of the network's change, after each layer was limited.
    """

    each: float = setting(0.75, above=0.0)
    together: float = setting(2.0, above=0.0)


def per_sample_share(change: PerSample, inputs: Factor, outputs: Factor, rate: float) -> Tensor:
    """The scale s of `PerSample` for one layer, ``[R]``.

    Args:
        change: the limit.
        inputs: factor of the layer's inputs.
        outputs: factor of its output derivatives.
        rate: learning rate for the summed loss.
    """
    total = (inputs.squares.sqrt() * outputs.squares.sqrt()).sum(-1)
    total *= inputs.gain * outputs.gain * (rate if change.counts_rate else 1.0)
    return torch.clamp(change.limit * inputs.squares.shape[-1] / total, max=1.0)


def limit_change_(parts: Sequence[Tensor], rate: float, most: float) -> Tensor:
    """Shrink a layer's direction where ``rate`` times its norm exceeds ``most``.

    Args:
        parts: the direction in one or several tensors ``[R, ...]``, such as weights and biases.
        rate: learning rate of the step.
        most: largest norm of the change.

    Returns:
        The norm of the limited change, ``[R]``.
    """
    squares = (cast(Tensor, torch.linalg.vector_norm(p.flatten(1), dim=1)) for p in parts)
    norm = sum((s.double().square_() for s in squares), torch.zeros(())).sqrt() * rate
    share = torch.clamp(most / norm, max=1.0)
    if not asking_is_free(share) or bool((share < 1.0).any()):
        scale_(parts, share)
    return norm * share


def scale_(parts: Sequence[Tensor], scale: Tensor) -> None:
    """Multiply each replica's row of several tensors ``[R, ...]`` by ``scale [R]``."""
    for part in parts:
        part.mul_(scale.to(part.dtype).view(-1, *(1 for _ in part.shape[1:])))
