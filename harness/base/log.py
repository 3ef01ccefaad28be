"""Lines for the user: text that every terminal can show, and the logger that writes it to stderr.

The logger is named ``lagbench`` and writes messages as they are.

A program that imports us silences or redirects them as any logger's:
``logging.getLogger("lagbench").setLevel(logging.ERROR)``, or handlers of its own in place of ours.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar, cast

LOG = logging.getLogger("lagbench")


class _Bare(logging.Handler):
    """Writes a record's message alone; its attribute ``end``, if set, replaces the newline."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record to the present ``sys.stderr``, which a caller may have replaced."""
        print(record.getMessage(), end=getattr(record, "end", "\n"), file=sys.stderr, flush=True)


if not LOG.handlers:  # else a program has said already where they go
    LOG.addHandler(_Bare())
    LOG.propagate = False  # or a program that logs would have each line twice
if LOG.level == logging.NOTSET:
    LOG.setLevel(logging.INFO)


def say(line: str) -> None:
    """Print a line on standard error; standard output carries the results."""
    LOG.info("%s", line)


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
