# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportInvalidTypeForm=false
"""A fold and its average as one operation of a device: five passes over the parameters, not six.

On a GPU a kernel in Triton, which comes with PyTorch there; elsewhere, and where it is not
installed, PyTorch's own operations. Which it is, PyTorch decides by where the model lies.

Shape letters: W contributions of a fold, P parameters.
"""

from __future__ import annotations

import sys
from functools import cache

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a PyTorch for processors alone comes without
    triton = tl = None

TILE = 1024
"""Parameters of one program of the kernel."""


_LIBRARY = torch.library.Library("lagbench", "DEF")
_LIBRARY.define(
    "step_and_draw(Tensor before, Tensor contributions, Tensor numbers, Tensor(a!) model,"
    " Tensor(b!) average) -> ()"
)


def step_and_draw(
    before: Tensor, contributions: Tensor, numbers: Tensor, model: Tensor, average: Tensor
) -> None:
    """``model <- before - rate g`` for each g, then the average is drawn to it by the weight.

    Args:
        before: ``[P]``; may be the model itself.
        contributions: gradients ``[W, P]``.
        numbers: rate and weight, ``[2]``.
        model: ``[P]``, written.
        average: ``[P]``, changed in place: ``average <- average + weight (model - average)``.
    """
    torch.ops.lagbench.step_and_draw(before, contributions, numbers, model, average)


@torch.library.impl(_LIBRARY, "step_and_draw", "CompositeExplicitAutograd")
def by_torch(
    before: Tensor, contributions: Tensor, numbers: Tensor, model: Tensor, average: Tensor
) -> None:
    """In PyTorch's own operations, wherever there is no kernel."""
    for contribution in contributions:
        torch.addcmul(before, contribution, numbers[0], value=-1.0, out=model)
        before = model
    average.lerp_(model, numbers[1])


if triton is not None:

    @triton.jit
    def sweep(  # noqa: D103
        before, contributions, numbers, model, average, P, W: tl.constexpr, TILE: tl.constexpr
    ):
        at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
        inside = at < P
        rate, weight = tl.load(numbers), tl.load(numbers + 1)
        theta = tl.load(before + at, inside)
        for _ in tl.static_range(W):
            theta = tl.fma(-rate, tl.load(contributions + at, inside), theta)
            contributions += P
        mean = tl.load(average + at, inside)
        # As ``lerp`` has it, which begins at the nearer end.
        way = theta - mean
        near, far = tl.fma(weight, way, mean), tl.fma(weight - 1.0, way, theta)
        tl.store(model + at, theta, inside)
        tl.store(average + at, tl.where(tl.abs(weight) < 0.5, near, far), inside)

    @torch.library.impl(_LIBRARY, "step_and_draw", "CUDA")
    def by_triton(
        before: Tensor, contributions: Tensor, numbers: Tensor, model: Tensor, average: Tensor
    ) -> None:
        """In one kernel, where Triton can start any."""
        execute = _in_one_kernel if can_start(model.device) else by_torch
        execute(before, contributions, numbers, model, average)

    @cache
    def can_start(device: torch.device) -> bool:
        """Whether a kernel runs there: Triton needs a C compiler and Python's headers for it.

        It is found out in a block that is executed, before any is recorded.
        """
        some = [torch.zeros(shape, device=device) for shape in (1, (1, 1), 2, 1, 1)]
        try:
            _in_one_kernel(*some)
        except Exception as error:  # whatever it is, folds can do without
            why = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"no kernel of Triton's, but two operations a fold: {why}", file=sys.stderr)
            return False
        return True

    def _in_one_kernel(
        before: Tensor, contributions: Tensor, numbers: Tensor, model: Tensor, average: Tensor
    ) -> None:
        contributions = contributions.contiguous()
        programs = (triton.cdiv(len(model), TILE),)
        sweep[programs](
            before, contributions, numbers, model, average, len(model), len(contributions), TILE
        )
