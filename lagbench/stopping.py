"""Ctrl-C in a user's script: a short traceback, and the folder of the finished runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from harness.modules.experiment import USUAL

Given = ParamSpec("Given")
Found = TypeVar("Found")


def resumable(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorate a function: its KeyboardInterrupt has a traceback that ends at the user's call.

    The hundred lines inside lagbench are dropped; the user's code can still catch the error.
    """

    @wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Found:
        try:
            return function(*given, **named)
        except KeyboardInterrupt:
            settings: dict[str, Any] = {**USUAL, **named}
            told = f"stopped; runs are in {str(settings['store'])!r}, the same call resumes"
            raise KeyboardInterrupt(told) from None

    return call
