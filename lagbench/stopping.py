"""Ctrl-C and killed processes in a script: a short traceback that says where the work is kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from harness.base.errors import ProcessDied, UserError
from harness.modules.experiment import USUAL

Given = ParamSpec("Given")
Found = TypeVar("Found")


def resumable(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The function, whose end from outside has a traceback that ends where it was called.

    What lay between is ours, and a hundred lines; the error stays the caller's to catch.

    Raises:
        UserError: in place of `ProcessDied`.
    """

    @wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Found:
        settings: dict[str, Any] = {**USUAL, **named}
        kept = f"what is done is in {str(settings['store'])!r}, the same call goes on"
        try:
            return function(*given, **named)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {kept}") from None
        except ProcessDied as died:
            raise UserError(f"{died}; {kept}") from None

    return call
