"""Ctrl-C, killed processes and misspelt arguments in a user's script: one line each."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from harness.base.errors import (
    RAISED,
    ProcessDied,
    UserError,
    describe_failure,
    is_interrupt,
    rename,
)
from harness.modules.settings import USUAL

Given = ParamSpec("Given")
Found = TypeVar("Found")


def resumable(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorate a function: an end from outside has a traceback that ends at the user's call.

    The hundred lines inside lagbench are dropped; the user's code can still catch the error.

    Raises:
        UserError: in place of `ProcessDied` and of errors that the user's code raises, with the
            function and its line; or a name that no argument has.
    """
    signed = signature(function)
    if "settings" in signed.parameters:  # which help and completion name one by one
        parts = [part for part in signed.parameters.values() if part.name != "settings"]
        parts += [Parameter(k, Parameter.KEYWORD_ONLY, default=v) for k, v in USUAL.items()]
        signed = signed.replace(parameters=parts)
    is_closed = "further" not in signed.parameters

    @wraps(function)
    def call(*positional: Given.args, **keywords: Given.kwargs) -> Found:
        given: dict[str, Any] = dict(keywords)
        if is_closed and not given.keys() <= signed.parameters.keys():
            given = rename(function.__name__, keywords, signed.parameters)
        if "seed" in keywords.keys() - given.keys():  # that one, where seeds=3 are three
            given["seeds"] = [keywords["seed"]]
        if "algorithms" in keywords.keys() - given.keys() and isinstance(given["algorithm"], list):
            (given["algorithm"],) = given["algorithm"]
        plain: dict[str, Any] = {name: _plain(name, value) for name, value in given.items()}
        settings: dict[str, Any] = {**USUAL, **given}
        hint = f"runs are in {str(settings['store'])!r}, the same call resumes"
        try:
            return function(*positional, **plain)
        except ProcessDied as died:
            raise UserError(f"{died}; {hint}") from None
        except UserError:
            raise
        except (KeyboardInterrupt, *RAISED) as error:
            if is_interrupt(error):
                raise KeyboardInterrupt(f"stopped; {hint}") from None
            if (text := describe_failure(error)) is None:
                raise
            raise UserError(text) from error

    vars(call)["__signature__"] = signed
    return call


def _plain(name: str, value: Any) -> Any:
    """A setting with Python's numbers in place of NumPy's, alone or in a list."""
    if name in OBJECTS:
        return value
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 2) < 2:
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(_plain("", entry) for entry in value)
    return value


OBJECTS = frozenset(("model", "loss", "data", "dev", "test", "metric"))
"""Arguments that are objects of the user's."""
