# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false, reportPrivateUsage=false
"""Compiling kernels, and linking functions that only compiled code calls.

The whole package compiles this way. All functions that a kernel calls are compiled into it, so a
process that loads a kernel needs nothing else and computes the same bits as the process that
compiled it.

numba by itself generates machine code for every function, with its callees compiled into it once
more: a function called through eight others is optimised nine times, and only the last copy is
ever used. Here, functions that only compiled code calls stay LLVM modules until a kernel links
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import llvmlite.binding as llvm
import numba
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import CPUDispatcher

from harness.kernels import notice
from harness.kernels.cache import KernelCache, argument_type

_F = TypeVar("_F", bound=Callable[..., Any])

_NOT_FROM_PYTHON = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: _F, **options: Any) -> _F:
    """Compile a function that Python calls, with numba's options, and cache its machine code."""
    dispatcher: Any = numba.njit(**options)(function)
    dispatcher._cache = KernelCache(dispatcher)
    return dispatcher


def part(function: _F, **options: Any) -> _F:
    """Compile a function that only kernels call; its code is cached as part of theirs."""
    # Without a wrapper for Python, which would take long to compile.
    dispatcher: Any = numba.njit(**_NOT_FROM_PYTHON, **options)(function)
    return dispatcher


def callable_part(function: _F, **options: Any) -> _F:
    """Compile a function that kernels call and Python may call; see `CallablePart`."""
    dispatcher: Any = CallablePart(function, {**_NOT_FROM_PYTHON, **options})
    return dispatcher


class CallablePart(CPUDispatcher):
    """A compiled function that compiled code and Python can call.

    Compiled callers pass named tuples by address and constants as ordinary numbers, so one copy
    serves all of them. Python calls it through a kernel that is compiled on first use.
    """

    def __init__(self, function: Any, options: Any) -> None:
        super().__init__(
            function, targetoptions={"nopython": True, **options}, pipeline_class=LinkingCompiler
        )
        self._entrance_cache = KernelCache(self)

    @cached_property
    def _entrance(self) -> Any:
        """Kernel through which Python calls the function."""
        settings = self.targetoptions.items()
        options = {name: value for name, value in settings if name not in _NOT_FROM_PYTHON}
        entrance: Any = numba.jit(**options)(_build_entrance(self))
        entrance._cache = self._entrance_cache
        return entrance

    def __call__(self, *arguments: Any) -> Any:
        """Call the function from Python."""
        return self._entrance(*arguments)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The call's signature, for numba: tuples by address, literals as plain types."""
        # A literal type would compile one more copy of the function for each constant.
        return super().get_call_template(
            [argument_type(types.unliteral(kind)) for kind in args], kws
        )


def _build_entrance(inner: Any) -> Any:
    def entrance(*arguments: Any) -> Any:
        return inner(*arguments)

    entrance.__module__, entrance.__qualname__ = inner.__module__, inner.__qualname__
    return entrance


notice.check_environment()
notice.listen()


class _Library(JITCodeLibrary):
    """The code of one function, to be linked into that of a kernel."""

    def finalize(self) -> None:
        """Close the library, without generating machine code."""
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """0: there is no machine code."""
        return 0

    @property
    def codegen(self) -> Any:
        """The object to which numba reports addresses of Python objects: unused without code."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Ignore the report; see `codegen`."""

    def _get_module_for_linking(self) -> Any:
        """The code of the function and of everything it calls, each once."""
        if self._shared_module is None:
            self._shared_module = self._own()
            for library in dict.fromkeys(self._walk_libraries()):
                inner = isinstance(library, _Library)
                module = library._own() if inner else library._get_module_for_linking()
                self._shared_module.link_in(module, preserve=not inner)
        return self._shared_module

    def _walk_libraries(self) -> Iterator[Any]:
        for library in self._linking_libraries:
            yield library
            if isinstance(library, _Library):
                yield from library._walk_libraries()

    def _own(self) -> Any:
        """A copy of the function's code that may be linked into several kernels, and inlined."""
        module = self._final_module.clone()
        for function in module.functions:
            # Several kernels in one process may define the same function: the linker may keep
            # either copy, and drop one that was inlined everywhere.
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = llvm.Linkage.linkonce_odr
        return module


class LinkingCompiler(Compiler):
    """numba's compiler, with its output in a `_Library`."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *arguments: Any) -> None:
        library = _Library(targetctx.codegen(), "linked")
        super().__init__(typingctx, targetctx, library, *arguments)
