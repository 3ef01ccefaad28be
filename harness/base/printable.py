"""Text that every page, table and terminal can show."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")

UNSEEN = "\ufffe\uffff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Noncharacters, and marks that show the letters after them in another order."""


def printable(value: T) -> T:
    r"""Text, or data with texts in it, in which control characters are written as escapes.

    XML has no way to write them, and a terminal obeys them; a line's end and a tab stay.

    Args:
        value: text, or a mapping, list, tuple or dataclass of such and of anything else.

    Example:
        >>> print(printable("one\a two"), printable({"labels": ["\x1b[31m"]}))
        one\x07 two {'labels': ['\\x1b[31m']}
    """
    return cast(T, _printable(value))


def one_line(text: str) -> str:
    """Text in one line, printable."""
    return " ".join(printable(text).splitlines())


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else "".join(map(_escape, value))
    if isinstance(value, Mapping):
        table = cast(Mapping[Any, Any], value)
        return {_printable(key): _printable(content) for key, content in table.items()}
    if isinstance(value, list | tuple):
        items = map(_printable, cast(list[Any], value))
        return list(items) if isinstance(value, list) else tuple(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = (entry.name for entry in dataclasses.fields(value) if entry.init)
        return dataclasses.replace(value, **{n: _printable(getattr(value, n)) for n in given})
    return value


def _escape(character: str) -> str:
    """A character; its escape if it is a control, a lone surrogate or a noncharacter."""
    is_none = unicodedata.category(character) in ("Cc", "Cs") or character in UNSEEN
    if not is_none or character in "\n\t":
        return character
    return character.encode("unicode_escape").decode()
