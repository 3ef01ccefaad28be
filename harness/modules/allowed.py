"""Arguments of users that are refused in one line, and functions of theirs that are called."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from harness.base.errors import RAISED, UserError, describe_raised


def name_function(function: object) -> str:
    """The name of a user's function; of another object, of its class."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def call_function(
    key: str, function: Callable[..., Any], *arguments: object, name: str = "", end: str = ""
) -> Any:
    """The result of a user's function.

    Args:
        key: the setting that it is.
        function: the function.
        arguments: what it is called with.
        name: its name in messages; empty for its own.
        end: end of the message.

    Raises:
        UserError: it raises an error.
    """
    try:
        return function(*arguments)
    except UserError:
        raise
    except RAISED as error:
        reason = f"{name or name_function(function)} raised {describe_raised(error)}"
        raise UserError(f"{key}: {reason}{end}") from error


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number, and not a bool."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


LONGEST, ADDRESS = 80, " at 0x"
"""Longest text of a value that is shown in full, and the mark of a default `repr`."""


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Reject a value of the wrong type.

    Raises:
        UserError: it is of none of ``kinds``; ``allowed`` describes them in words.
    """
    if not isinstance(value, kinds):
        raise UserError(f"{name}: {show_value(value)}; allowed: {allowed}")


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Reject a value that is no whole number, or is too small.

    Raises:
        UserError: no int, a bool, or a number below ``least``.
    """
    if not _whole(value) or value < least:
        raise UserError(f"{name}: {show_value(value)}; allowed: a whole number from {least}")


def check_number(name: str, value: Any, least: float | None = None) -> None:
    """Reject a value that is no finite number, or is too small.

    Raises:
        UserError: it is not, or below ``least``.
    """
    if not is_finite(value) or (least is not None and value < least):
        bound = "" if least is None else f" from {least:g}"
        raise UserError(f"{name}: {show_value(value)}; allowed: a number{bound}")


def pair_of(name: str, value: Any) -> tuple[float, float]:
    """A value as a pair of numbers.

    Raises:
        UserError: it is no sequence of two numbers.
    """
    match _as_list(value):
        case [int() | float() as low, int() | float() as high]:
            return low, high
        case _:
            raise UserError(f"{name}: {show_value(value)}; allowed: two numbers")


def show_value(value: object) -> str:
    """A value for messages: its `repr` if short, else its type."""
    text = repr(value)
    if isinstance(value, type) or len(text) > LONGEST or "\n" in text or ADDRESS in text:
        kind = value if isinstance(value, type) else type(value)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        return f"{'' if isinstance(value, type) else 'a '}{name}"
    return text


def counts_of(workers: Any) -> list[int]:
    """Numbers of workers, of which one may come without a list.

    Raises:
        UserError: it is no list of whole numbers.
    """
    counts = [workers] if _whole(workers) else _as_list(workers)
    if not all(_whole(count) and count >= 1 for count in counts):
        raise UserError(f"workers: {workers!r}; allowed: whole numbers from 1")
    return counts


def rates_of(rates: Any, methods: Sequence[str]) -> dict[str, Any] | None:
    """The learning rates of each method, one or a list; None to search them.

    Args:
        rates: a number or a list for all methods, a mapping with one for each, or None. A mapping
            may have the name of a method without what follows a colon or a space in its label.
        methods: labels of the methods.

    Raises:
        UserError: a rate is missing or not positive.
    """
    if rates is None or rates == "sweep":
        return None
    rate_of: dict[str, Any] = dict.fromkeys(methods, rates)
    if isinstance(rates, Mapping):
        table = cast("Mapping[str, Any]", rates)
        rate_of = {m: table.get(m, table.get(re.split("[: ]", m)[0])) for m in methods}
    for method, rate in rate_of.items():
        if rate is None:
            allowed = ", ".join(methods)
            raise UserError(f"rates: none for {method!r}; allowed: one for each of {allowed}")
        several = [rate] if isinstance(rate, int | float) else _as_list(rate)
        if not (several and all(is_finite(value) and value > 0.0 for value in several)):
            allowed = "a number above 0, several to choose among, or None to search one"
            raise UserError(f"rate: {show_value(rate)}; allowed: {allowed}")
    return rate_of


def seeds_of(choice: Any) -> list[int]:
    """The seeds that ``seeds=`` asks for, by their number or one by one.

    Raises:
        UserError: none, one that is negative or not whole, or one that is there twice.
    """
    seeds = list(range(choice)) if _whole(choice) else _as_list(choice)
    are_whole = seeds and all(_whole(seed) and seed >= 0 for seed in seeds)
    if not are_whole or len(set(seeds)) < len(seeds):
        raise UserError(
            f"seeds: {choice!r}; allowed: how many, from 1; or which, from 0, each once"
        )
    return seeds


def _as_list(value: Any) -> list[Any]:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return [*cast("Sequence[Any]", value)] if listed else [None]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
