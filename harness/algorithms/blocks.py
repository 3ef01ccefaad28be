"""Steps along gradients, their average and the reads between them, block by block.

The same operations in the same order for every parameter as `torch` has for ``sub_``,
``lerp_`` and ``copy_``, fused multiplications and additions included: equal bits.
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

from harness.algorithms.turns import Turn, Turns
from harness.kernels.compiling import kernel, part

BLOCK = 256
"""Parameters at once: a block of the model and of its average stay in the first-level cache."""
LINE = 64
"""Bytes that come from memory at once."""
THREADS = 2
"""With more than these, torch's own passes, spread over all threads, should be as fast."""


def fit_for_blocks(model: Tensor) -> bool:
    """Whether ``step_and_average`` is the faster way, and open: on a processor, few threads."""
    known = model.dtype in (torch.float32, torch.float64)
    few = model.device.type == "cpu" and torch.get_num_threads() <= THREADS
    return known and few and _rounds_as_torch(model.dtype)


@cache
def _rounds_as_torch(dtype: torch.dtype) -> bool:
    """Whether torch fuses as the kernel does: not where it goes without vector instructions."""
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
        rate: the step.
        weights: of theta in the average, one for each turn; none without an average.
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
    """Lists end to end, and where each begins."""
    edges = np.array([0, *accumulate(map(len, lists))])
    return np.array([slot for each in lists for slot in each], np.int64), edges


def _multiply_add(context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a b + c``, rounded once where the processor can, as torch has it."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number = values[0].type
        kind = ir.FunctionType(number, [number] * 3)
        function = builder.module.declare_intrinsic("llvm.fmuladd", [number], kind)
        return builder.call(function, values)

    return a(a, a, a), emit


_fused: Any = intrinsic(_multiply_add)  # numba hands the context over itself


def _to_prefetch(context: Any, address: Any) -> Any:
    """Ask for the line of memory at an address before it is needed; changes nothing."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # To read, into all caches, data.
        how = [ir.Constant(flag, value) for value in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(values[0], byte), *how])
        return context.get_dummy_value()

    return types.void(types.uintp), emit


_prefetch: Any = intrinsic(_to_prefetch)


@part
def _ask_for(vector: np.ndarray, begin: np.uint64, end: np.uint64) -> None:
    """Prefetch the block of a vector ``[P]`` that begins there, if it is whole.

    Blocks are too short for the processor to notice that they follow one another: without
    this a fold takes a sixth longer.
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
    # Unsigned, because numba counts a negative index from the end and asks every time.
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
    """Torch's ``lerp_``, which begins at the nearer end; ``rest`` is the weight less 1."""
    if weight < 0.5:
        for i in range(begin, until):
            average[i] = _fused(weight, model[i] - average[i], average[i])
    else:
        for i in range(begin, until):
            average[i] = _fused(rest, model[i] - average[i], model[i])
