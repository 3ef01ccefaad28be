# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportInvalidTypeForm=false
"""Folds, averages and reads as fused operations: by blocks of cache, or on a device.

`step_and_average` executes steps along gradients, their average and the reads between them block by
block. Every parameter sees the same operations in the same order as with `torch`'s ``sub_``,
``lerp_`` and ``copy_``, including fused multiply-adds, so the bits are equal.

`step_and_draw` executes a fold and its average as one device operation, with five passes over the
parameters instead of six: by a Triton kernel on a GPU, by PyTorch's own operations elsewhere and
where Triton is not installed. PyTorch selects the implementation by the model's device.

Shape letters: W contributions of a fold, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from llvmlite import ir  # pyright: ignore[reportMissingTypeStubs]
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from harness.algorithms.contract import Turn, Turns
from harness.base.log import LOG
from harness.kernels.compiling import kernel, part

BLOCK = 256
"""Parameters of a block; blocks of the model and of its average stay in the first-level cache."""

LINE = 64
"""Bytes of a cache line."""

THREADS = 2
"""Largest number of threads for blocks; with more, torch's multi-threaded passes are used."""


def is_fit_for_blocks(model: Tensor) -> bool:
    """Whether ``step_and_average`` is possible and faster: on a CPU with few threads."""
    known = model.dtype in (torch.float32, torch.float64)
    few = model.device.type == "cpu" and torch.get_num_threads() <= THREADS
    return known and few and _rounds_as_torch(model.dtype)


@cache
def _rounds_as_torch(dtype: torch.dtype) -> bool:
    """Whether torch fuses multiply-adds as the kernel does; not so without vector instructions."""
    model = torch.linspace(1.0, 2.0, BLOCK, dtype=dtype)
    contribution = 1.0 / model.unsqueeze(0)
    expected = model.sub(contribution[0], alpha=0.3)
    step_and_average(model, None, Turns(contribution, contribution, [Turn([0], [0], [])]), 0.3, ())
    return torch.equal(model, expected)


def step_and_average(
    model: Tensor, average: Tensor | None, turns: Turns, rate: float, weights: Sequence[float]
) -> None:
    """``theta <- theta - rate g`` for each gradient of a turn, then the average, then the reads.

    Args:
        model: theta ``[P]``, changed in place.
        average: ``[P]``, changed in place: after each turn
            ``average <- average + weight (theta - average)``; None for none.
        turns: the folds.
        rate: learning rate.
        weights: of theta in the average, one for each turn; empty without an average.
    """
    number = model.numpy().dtype.type
    _fold(
        model.numpy(),
        (model[:0] if average is None else average).numpy(),
        turns.contributions.numpy(),
        turns.replicas.numpy(),
        *_flat([turn.entering for turn in turns.order]),
        *_flat([turn.readers for turn in turns.order]),
        number(-rate),
        np.array(weights, number),
        np.array(weights, number) - number(1),
    )


def _flat(lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists, concatenated, and the index at which each begins."""
    edges = np.array([0, *accumulate(map(len, lists))])
    return np.array([slot for each in lists for slot in each], np.int64), edges


def _multiply_add(context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a b + c``, rounded once if the processor can do so, as in torch."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number = values[0].type
        kind = ir.FunctionType(number, [number] * 3)
        function = builder.module.declare_intrinsic("llvm.fmuladd", [number], kind)
        return builder.call(function, values)

    return a(a, a, a), emit


_fused: Any = intrinsic(_multiply_add)  # numba passes the context itself


def _to_prefetch(context: Any, address: Any) -> Any:
    """Prefetch the cache line at an address."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # Flags: for reading (0), into all cache levels (3), data rather than code (1).
        how = [ir.Constant(flag, value) for value in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(values[0], byte), *how])
        return context.get_dummy_value()

    return types.void(types.uintp), emit


_prefetch: Any = intrinsic(_to_prefetch)


@part
def _ask_for(vector: np.ndarray, begin: np.uint64, end: np.uint64) -> None:
    """Prefetch the block of a vector ``[P]`` that starts at ``begin``, if it is complete.

    Blocks are too short for the hardware prefetcher: without this a fold takes a sixth longer.
    """
    if begin + np.uint64(BLOCK) <= end:
        first = vector.ctypes.data + begin * np.uint64(vector.itemsize)
        for ahead in range(np.uint64(0), np.uint64(BLOCK * vector.itemsize), np.uint64(LINE)):
            _prefetch(first + ahead)


@kernel
def _fold(
    model: np.ndarray,
    average: np.ndarray,
    contributions: np.ndarray,
    replicas: np.ndarray,
    entering: np.ndarray,
    entering_from: np.ndarray,
    readers: np.ndarray,
    readers_from: np.ndarray,
    step: float,
    weights: np.ndarray,
    rests: np.ndarray,
) -> None:
    # Unsigned, because numba tests signed indices at every access for negative ones.
    begin, end = np.uint64(0), np.uint64(len(model))
    while begin < end:
        until = min(begin + np.uint64(BLOCK), end)
        _ask_for(model, until, end)
        if len(weights):
            _ask_for(average, until, end)
        for k in range(len(entering_from) - 1):
            for slot in entering[entering_from[k] : entering_from[k + 1]]:
                _ask_for(contributions[slot], until, end)
                for i in range(begin, until):
                    model[i] = _fused(contributions[slot, i], step, model[i])
            if len(weights):
                _draw(average, model, begin, until, weights[k], rests[k])
            for slot in readers[readers_from[k] : readers_from[k + 1]]:
                for i in range(begin, until):
                    replicas[slot, i] = model[i]
        begin = until


@part
def _draw(
    average: np.ndarray,
    model: np.ndarray,
    begin: np.uint64,
    until: np.uint64,
    weight: float,
    rest: float,
) -> None:
    """Torch's ``lerp_``, which starts at the nearer end; ``rest`` is the weight less 1."""
    if weight < 0.5:
        for i in range(begin, until):
            average[i] = _fused(weight, model[i] - average[i], average[i])
    else:
        for i in range(begin, until):
            average[i] = _fused(rest, model[i] - average[i], model[i])


try:
    import triton
    import triton.language as tl
except ImportError:  # CPU-only builds of PyTorch do not include it
    triton = tl = None

TILE = 1024
"""Parameters per program of the Triton kernel."""

_LIBRARY = torch.library.Library("lagbench", "DEF")

_LIBRARY.define(
    "step_and_draw(Tensor before, Tensor contributions, Tensor numbers, Tensor(a!) model,"
    " Tensor(b!) average) -> ()"
)


def step_and_draw(
    before: Tensor, contributions: Tensor, numbers: Tensor, model: Tensor, average: Tensor
) -> None:
    """``model <- before - rate g`` for each g, then one update of the average.

    Args:
        before: ``[P]``; may be the model itself.
        contributions: gradients ``[W, P]``.
        numbers: rate and weight, ``[2]``.
        model: ``[P]``, written.
        average: ``[P]``, changed in place: ``average <- average + weight (model - average)``.
    """
    torch.ops.lagbench.step_and_draw(before, contributions, numbers, model, average)


@torch.library.impl(_LIBRARY, "step_and_draw", "CompositeExplicitAutograd")
def step_and_draw_torch(
    before: Tensor, contributions: Tensor, numbers: Tensor, model: Tensor, average: Tensor
) -> None:
    """`step_and_draw` by PyTorch's own operations, for devices without a kernel."""
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
        # As in ``lerp``, which starts at the nearer end.
        way = theta - mean
        near, far = tl.fma(weight, way, mean), tl.fma(weight - 1.0, way, theta)
        tl.store(model + at, theta, inside)
        tl.store(average + at, tl.where(tl.abs(weight) < 0.5, near, far), inside)

    @torch.library.impl(_LIBRARY, "step_and_draw", "CUDA")
    def step_and_draw_triton(
        before: Tensor, contributions: Tensor, numbers: Tensor, model: Tensor, average: Tensor
    ) -> None:
        """`step_and_draw` as one kernel, if Triton can start kernels on the device."""
        execute = _launch_kernel if can_start(model.device) else step_and_draw_torch
        execute(before, contributions, numbers, model, average)

    @cache
    def can_start(device: torch.device) -> bool:
        """Whether a kernel runs there: Triton needs a C compiler and Python's headers.

        The first call comes from a block that is executed, before any is captured.
        """
        some = [torch.zeros(shape, device=device) for shape in (1, (1, 1), 2, 1, 1)]
        try:
            _launch_kernel(*some)
        except Exception as error:  # any: folds work without the kernel
            why = (str(error).splitlines() or [type(error).__name__])[0]
            LOG.warning(f"no kernel of Triton's, but two operations a fold: {why}")
            return False
        return True

    def _launch_kernel(
        before: Tensor, contributions: Tensor, numbers: Tensor, model: Tensor, average: Tensor
    ) -> None:
        contributions = contributions.contiguous()
        programs = (triton.cdiv(len(model), TILE),)
        sweep[programs](
            before, contributions, numbers, model, average, len(model), len(contributions), TILE
        )
