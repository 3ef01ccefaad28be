# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false, reportPrivateUsage=false
"""Compiling kernels, and linking what only compiled code calls.

One way of compiling for the whole package. Whatever kernels call is compiled into them, so a
process that loads a kernel needs nothing else, and what it computes is what the process computed
that compiled it.

Code that is optimised and made machine code only as part of what calls it. numba makes machine
code of every function, with all that the function calls compiled into it once more: what is called
through eight others is optimised nine times. Of a function that only compiled ones call nothing
but the last is ever used.
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

__all__ = ["LinkingCompiler", "callable_part", "kernel", "part"]

_F = TypeVar("_F", bound=Callable[..., Any])

_NOT_FROM_PYTHON = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: _F, **options: Any) -> _F:
    """Compile what Python calls, with options of numba's, and keep it for the next process."""
    dispatcher: Any = numba.njit(**options)(function)
    dispatcher._cache = KernelCache(dispatcher)
    return dispatcher


def part(function: _F, **options: Any) -> _F:
    """Compile what only kernels call; it is kept as part of them."""
    dispatcher: Any = Part(function, {**_NOT_FROM_PYTHON, **options})
    return dispatcher


def callable_part(function: _F, **options: Any) -> _F:
    """Compile what kernels call, and Python may; see `Shared`."""
    dispatcher: Any = CallablePart(function, {**_NOT_FROM_PYTHON, **options})
    return dispatcher


class Part(CPUDispatcher):
    """A compiled function without an entrance for Python, which takes long to compile."""

    def __init__(self, function: Any, options: Any, **settings: Any) -> None:
        super().__init__(function, targetoptions={"nopython": True, **options}, **settings)

    def __call__(self, *arguments: Any) -> Any:
        """Refuse: there is no code for it.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.__qualname__} is called by compiled functions only")


class CallablePart(CPUDispatcher):
    """A compiled function with two entrances.

    From a compiled function it takes named tuples lent, and a constant as any number: there is
    one copy of it for all of them. Python calls it through a kernel made when it is needed.
    """

    def __init__(self, function: Any, options: Any) -> None:
        super().__init__(
            function, targetoptions={"nopython": True, **options}, pipeline_class=LinkingCompiler
        )

    @cached_property
    def _entrance(self) -> Any:
        """The kernel for Python."""
        asked = self.targetoptions.items()
        options = {name: value for name, value in asked if name not in _NOT_FROM_PYTHON}
        entrance: Any = numba.jit(**options)(_build_entrance(self))
        entrance._cache = KernelCache(self)
        return entrance

    def __call__(self, *arguments: Any) -> Any:
        """Call it from Python."""
        return self._entrance(*arguments)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What numba asks for when a compiled function calls this one."""
        return super().get_call_template(
            [argument_type(types.unliteral(kind)) for kind in args], kws
        )


def _build_entrance(inner: Any) -> Any:
    def entrance(*arguments: Any) -> Any:
        return inner(*arguments)

    entrance.__module__, entrance.__qualname__ = inner.__module__, inner.__qualname__
    return entrance


notice.listen()


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
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = llvm.Linkage.linkonce_odr
        return module


class LinkingCompiler(Compiler):
    """numba's compiler, into such a library."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        library = _Library(targetctx.codegen(), "linked")
        super().__init__(typingctx, targetctx, library, *rest)
