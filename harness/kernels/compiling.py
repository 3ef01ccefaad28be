# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false
"""One way of compiling for the whole package.

Whatever kernels call is compiled into them, so a process that loads a kernel needs nothing else,
and what it computes is what the process computed that compiled it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numba
from numba.core import types
from numba.core.registry import CPUDispatcher

from harness.kernels import notice
from harness.kernels.cache import KernelCache
from harness.kernels.lending import lent
from harness.kernels.linking import Linked

__all__ = ["kernel", "part", "shared"]

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


def shared(function: _F, **options: Any) -> _F:
    """Compile what kernels call, and Python may; see `Shared`."""
    dispatcher: Any = Shared(function, {**_NOT_FROM_PYTHON, **options})
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


class Shared(CPUDispatcher):
    """A compiled function with two entrances.

    From a compiled function it takes named tuples lent, and a constant as any number: there is
    one copy of it for all of them. Python calls it through a kernel made when it is needed.
    """

    def __init__(self, function: Any, options: Any) -> None:
        super().__init__(
            function, targetoptions={"nopython": True, **options}, pipeline_class=Linked
        )

    @cached_property
    def _entrance(self) -> Any:
        """The kernel for Python."""
        asked = self.targetoptions.items()
        options = {name: value for name, value in asked if name not in _NOT_FROM_PYTHON}
        entrance: Any = numba.jit(**options)(_through(self))
        entrance._cache = KernelCache(self)
        return entrance

    def __call__(self, *arguments: Any) -> Any:
        """Call it from Python."""
        return self._entrance(*arguments)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What numba asks for when a compiled function calls this one."""
        return super().get_call_template([lent(types.unliteral(kind)) for kind in args], kws)


def _through(inner: Any) -> Any:
    def entrance(*arguments: Any) -> Any:
        return inner(*arguments)

    entrance.__module__, entrance.__qualname__ = inner.__module__, inner.__qualname__
    return entrance


notice.listen()
