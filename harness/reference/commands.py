"""Reference of every command's arguments and options, from their parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

from harness import train
from harness.cli import COMMANDS, Parser, format_examples

__all__ = ["commands"]


def commands() -> str:
    """A section for each command of `lagbench`, and one for `harness.train`."""
    sections: list[str] = []
    for name, (module, purpose) in COMMANDS.items():
        parser = Parser(prog=f"lagbench {name}", description=purpose)
        import_module(module).configure(parser)
        sections += _sections(parser)
    real = train.parser()
    real.prog = "python -m harness.train"
    return "\n".join([*sections, *_sections(real)])


def _sections(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A parser's own section, then those of its subcommands."""
    actions: list[Any] = vars(parser)["_actions"]  # argparse has no other way to ask
    inner = [a for a in actions if isinstance(a.choices, dict)]
    rows = [_row(a) for a in actions if a not in inner and a.dest != "help"]
    yield f"## `{parser.prog}`\n\n{_sentence(parser.description)}\n"
    examples = (
        format_examples(parser.prog).removeprefix("\nexamples:\n").replace("\n  ", "\n").strip()
    )
    if examples:
        yield f"```sh\n{examples}\n```\n"
    if rows:
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows, ""])
    for action in inner:
        for each in action.choices.values():
            yield from _sections(each)


def _sentence(text: str | None) -> str:
    told = " ".join((text or "").split())
    return told[:1].upper() + told[1:] + ("" if told.endswith((".", "?")) else ".")


def _row(action: Any) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{_value(action)}`"
    takes = f" `{_value(action)}`" if action.option_strings and action.nargs != 0 else ""
    return f"| {names}{takes} | {_meaning(action)} |"


def _value(action: Any) -> str:
    """Placeholder of an argument's value."""
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    default = action.dest.upper() if action.option_strings else action.dest
    return str(action.metavar or default)


def _meaning(action: Any) -> str:
    """The help text with its placeholders filled in, as one table cell."""
    values = cast(dict[str, object], vars(action))
    told: str = str(action.help or "") % values
    return " ".join(told.split()).replace("|", "\\|")
