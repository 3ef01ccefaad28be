# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Asking the processor for memory before it is needed."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from harness.simulator.jit import kernel

__all__ = ["FAR_LEVELS", "levels_below_horizon", "prefetch"]

CACHED, HORIZON, FAR_LEVELS = 4096, 64, 6
"""With more leaves than the first, an event's memory is fetched ahead: when it is among so many
that are next, with so many levels of its tournament."""

LINE_BYTES = 64
_TO_BE_WRITTEN, _STAYS_NEAR, _DATA = 1, 3, 1


def _prefetch(typing: Any, rows: Any, row: Any) -> Any:
    """Begin to fetch ``rows[row]``, from where it starts a cache line each; changes no value.

    Only inside a kernel; ``rows`` is a contiguous array of one axis. A row outside it is
    allowed: the processor ignores an address where there is no memory.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = context.cast(builder, arguments[1], signature.args[1], types.intp)
        word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        address = builder.bitcast(cgutils.gep_inbounds(builder, array.data, place), byte)
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        constants = [ir.Constant(word, n) for n in (_TO_BE_WRITTEN, _STAYS_NEAR, _DATA)]
        for start in range(0, size, LINE_BYTES):
            builder.call(ask, [builder.gep(address, [ir.Constant(word, start)]), *constants])
        return context.get_dummy_value()

    return types.void(rows, row), generate


prefetch: Any = intrinsic(_prefetch)  # called without the first argument


@kernel
def levels_below_horizon(leaves: int) -> int:
    """Levels of a tournament below the `HORIZON`; 0 where a cache holds everything anyhow."""
    levels = 0
    while leaves > CACHED and (leaves >> levels) > HORIZON:
        levels += 1
    return levels
