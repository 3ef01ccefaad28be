"""Ctrl-C in a script: its own traceback, and where the work that was done is kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from harness.modules.experiment import USUAL

Given = ParamSpec("Given")
Found = TypeVar("Found")


def resumable(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The function, whose KeyboardInterrupt has a traceback that ends where it was called.

    What lay between is ours, and a hundred lines; the error stays the caller's to catch.
    """

    @wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Found:
        try:
            return function(*given, **named)
        except KeyboardInterrupt:
            settings: dict[str, Any] = {**USUAL, **named}
            told = f"stopped; what is done is in {str(settings['store'])!r}, the same call goes on"
            raise KeyboardInterrupt(told) from None

    return call
