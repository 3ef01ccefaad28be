"""Ctrl-C, killed processes and misspelt arguments in a user's script: one line each."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from harness.base.errors import ProcessDied, UserError
from harness.modules.allowed import check_names
from harness.modules.experiment import USUAL

Given = ParamSpec("Given")
Found = TypeVar("Found")


def resumable(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorate a function: an end from outside has a traceback that ends at the user's call.

    The hundred lines inside lagbench are dropped; the user's code can still catch the error.

    Raises:
        UserError: in place of `ProcessDied`; or a name that no argument has.
    """
    allowed = {*signature(function).parameters, *USUAL} - {"settings"}

    @wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Found:
        check_names(function.__name__, named, allowed)
        settings: dict[str, Any] = {**USUAL, **named}
        kept = f"runs are in {str(settings['store'])!r}, the same call resumes"
        try:
            return function(*given, **named)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {kept}") from None
        except ProcessDied as died:
            raise UserError(f"{died}; {kept}") from None

    return call
