"""The product of both preconditioned sides of a layer, ``D̂ᵀ X̂``, the cheaper way.

``X̂ = X - H W`` is linear in X, so ``D̂ᵀ X̂ = (I - WₒᵀWₒ) DᵀX (I - WᵢᵀWᵢ)``: either side of the
equation may be computed. Shape letters: R replicas, N rows, m inputs, n outputs, k ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.natural_gradient.change import scale_
from harness.natural_gradient.estimate import Rows
from harness.natural_gradient.precondition import Factor, formed


def product_(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``[weight, bias] ← scale D̂ᵀ X̂``, without γ.

    Args:
        rows: inputs ``[R, N, m]``, a one appended.
        ends: derivatives at the outputs, ``[R, N, n]``.
        fi: the factor of the inputs.
        fo: that of the output derivatives.
        scale: ``[R]``.
        weight: ``[R, n, m]``, overwritten.
        bias: ``[R, n]``, overwritten.
    """
    cheap = _forms(rows.x, ends.x, fi, fo)
    multiply = _multiply_formed if cheap else _project_product
    multiply(rows, ends, fi, fo, scale, weight, bias)


def add_product_(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``[weight, bias] ← [weight, bias] + scale D̂ᵀ X̂``, without γ; arguments as `product_`'s.

    A step that is added as it is multiplied saves three passes over the weights, which is
    much where rows are few.
    """
    x, delta = rows.x, ends.x
    if fi.rank + fo.rank and not _forms(x, delta, fi, fo):
        whole = torch.empty_like(weight), torch.empty_like(bias)
        _project_product(rows, ends, fi, fo, scale, *whole)
        weight.add_(whole[0])
        bias.add_(whole[1])
        return
    back = (formed(ends, fo) if fo.rank else delta) * scale.to(delta.dtype)[:, None, None]
    weight.baddbmm_(back.mT, formed(rows, fi) if fi.rank else x)
    if not fi.rank:
        bias.add_(back.sum(1))
    else:
        ones = 1.0 - torch.bmm(fi.along, fi.basis[:, :, -1:])
        bias.unsqueeze(2).baddbmm_(back.mT, ones)


def project_(gradient: Tensor, inputs: Factor, outputs: Factor) -> None:
    """``G ← (I - WₒᵀWₒ) G (I - WᵢᵀWᵢ)``, in place, without γ.

    Args:
        gradient: G, ``[R, n, D]``; of a layer with a bias, which is its last column, D = m + 1.
        inputs: the factor of the layer's inputs.
        outputs: that of its output derivatives.
    """
    gradient.baddbmm_(torch.bmm(gradient, inputs.basis.mT), inputs.basis, alpha=-1)
    gradient.baddbmm_(outputs.basis.mT, torch.bmm(outputs.basis, gradient), alpha=-1)


def _forms(x: Tensor, delta: Tensor, fi: Factor, fo: Factor) -> bool:
    return forming_is_cheaper(x.shape[1], x.shape[2], delta.shape[2], fi.rank, fo.rank)


def forming_is_cheaper(count: int, m: int, n: int, ki: int, ko: int) -> bool:
    """Compare multiply-adds beyond H and one N by m by n product, which both ways need.

    Forming also writes X̂ and D̂ to memory, which costs about as much as its arithmetic.

    Args:
        count: N.
        m: inputs.
        n: outputs.
        ki: rank of the inputs' factor.
        ko: rank of the output derivatives' factor.
    """
    forming = 2 * count * (m * ki + n * ko)
    projecting = min(count, m) * n * ki + min(count, n) * m * ko + m * n * (ki + ko)
    return 0 < forming < projecting


def _multiply_formed(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``scale D̂ᵀ X̂`` from X̂ and D̂ themselves: cheap where rows are few."""
    ones = 1.0 - torch.bmm(fi.along, fi.basis[:, :, -1:])
    back = formed(ends, fo).mul_(scale.to(weight.dtype)[:, None, None]).mT
    torch.bmm(back, formed(rows, fi), out=weight)
    torch.bmm(back, ones, out=bias.unsqueeze(2))


def _project_product(
    rows: Rows, ends: Rows, fi: Factor, fo: Factor, scale: Tensor, weight: Tensor, bias: Tensor
) -> None:
    """``scale D̂ᵀ X̂`` from ``G = DᵀX``: cheap where rows are many.

    ``G Wᵢᵀ = Dᵀ Hᵢ`` and ``Wₒ G = Hₒᵀ X``, so these two come from the smaller of G and rows.
    """
    x, delta = rows.x, ends.x
    torch.bmm(delta.mT, x, out=weight)
    torch.sum(delta, 1, out=bias)
    if fi.rank + fo.rank:
        count, m, n = x.shape[1], x.shape[2], delta.shape[2]
        right = torch.bmm(delta.mT, fi.along) if count < m else _right(weight, bias, fi)
        left = torch.bmm(fo.along.mT, x) if count < n else torch.bmm(fo.basis, weight)
        _subtract(weight, bias, fi, fo, right, left)
    scale_(weight, bias, scale)


def _right(weight: Tensor, bias: Tensor, inputs: Factor) -> Tensor:
    """``G Wᵢᵀ``, ``[R, n, kᵢ]``, for ``G = [weight, bias]``."""
    m = weight.shape[2]
    right = torch.bmm(weight, inputs.basis[:, :, :m].mT)
    return right.addcmul_(bias.unsqueeze(2), inputs.basis[:, :, m:].mT)


def _subtract(
    weight: Tensor, bias: Tensor, fi: Factor, fo: Factor, right: Tensor, left: Tensor
) -> None:
    """G less what both sides shrink, as one product.

    ``G - (P - Wₒᵀ Wₒ P) Wᵢ - Wₒᵀ Q`` with ``P = G Wᵢᵀ`` (``right``) and ``Q = Wₒ G`` (``left``).
    """
    back = fo.basis.mT
    columns = torch.cat([torch.baddbmm(right, back, torch.bmm(fo.basis, right), alpha=-1), back], 2)
    m = weight.shape[2]
    weight.baddbmm_(columns, torch.cat([fi.basis[:, :, :m], left], 1), alpha=-1)
    end = torch.bmm(fo.basis, bias.unsqueeze(2))
    last = torch.cat([fi.basis[:, :, m:], end], 1)
    bias.unsqueeze(2).baddbmm_(columns, last, alpha=-1)
