# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportPrivateUsage=false
"""Code that is optimised and made machine code only as part of what calls it.

numba makes machine code of every function, with all that the function calls compiled into it
once more: what is called through eight others is optimised nine times. Of a function that only
compiled ones call nothing but the last is ever used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

__all__ = ["Linked"]


class _Library(JITCodeLibrary):
    """The code of one function, to be linked into that of a kernel."""

    def finalize(self) -> None:
        """Nothing is added any more."""
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """There is no machine code."""
        return 0

    @property
    def codegen(self) -> Any:
        """What numba tells where the function's Python objects are: not needed without code."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """See `codegen`."""

    def _get_module_for_linking(self) -> Any:
        """The function's code and all that it calls, each once."""
        if self._shared_module is None:
            self._shared_module = self._own()
            for library in dict.fromkeys(self._called()):
                inner = isinstance(library, _Library)
                module = library._own() if inner else library._get_module_for_linking()
                self._shared_module.link_in(module, preserve=not inner)
        return self._shared_module

    def _called(self) -> Iterator[Any]:
        for library in self._linking_libraries:
            yield library
            if isinstance(library, _Library):
                yield from library._called()

    def _own(self) -> Any:
        """A copy of the function's code that may be linked into several kernels, and inlined."""
        module = self._final_module.clone()
        for function in module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = llvm.Linkage.linkonce_odr
        return module


class Linked(Compiler):
    """numba's compiler, into such a library."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        library = _Library(targetctx.codegen(), "linked")
        super().__init__(typingctx, targetctx, library, *rest)
