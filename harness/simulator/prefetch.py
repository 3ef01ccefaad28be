# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Asking the processor for memory before it is needed."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["prefetch"]

_TO_BE_WRITTEN, _STAYS_NEAR, _DATA = 1, 3, 1


def _prefetch(typing: Any, rows: Any, row: Any) -> Any:
    """Begin to fetch the cache line where ``rows[row]`` starts; changes no value.

    Only inside a kernel; ``rows`` is a contiguous array of one axis. A row outside it is
    allowed: the processor ignores an address where there is no memory.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = context.cast(builder, arguments[1], signature.args[1], types.intp)
        word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        address = builder.bitcast(cgutils.gep_inbounds(builder, array.data, place), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        constants = [ir.Constant(word, n) for n in (_TO_BE_WRITTEN, _STAYS_NEAR, _DATA)]
        builder.call(ask, [address, *constants])
        return context.get_dummy_value()

    return types.void(rows, row), generate


prefetch: Any = intrinsic(_prefetch)  # called without the first argument
