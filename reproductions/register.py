"""Write registrations from the code, or compare them with it.

    python -m reproductions.register paper1 --scale overnight
    python -m reproductions.register --check     # every paper, every scale with a file

A registration is committed before the first run of a verdict. That of curves over scale,
``registered/scaling.toml``, is written by hand, since the code reads it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError, name_error
from harness.cli import Parser, exit_code
from harness.store.files import writable_folder, write_bytes
from reproductions.command import PAPERS
from reproductions.declared import declare
from reproductions.paper import Paper

__all__ = ["SCALES", "compose", "main", "paper_of"]

SCALES = ("smoke", "laptop", "overnight")
"""Scales that are registered unless others are asked for."""

WIDTH = 118
"""Columns of a line, but where one entry is longer."""

INDENT = 20
"""Columns that the longest key of a list takes."""

HEAD = """\
# Fixed before the first run; python -m reproductions.register {paper} --scale {scale} writes it.
# A claim holds if each quantity lies in its band, [lowest, highest]; conditions have such limits.
# A setting has the digest of its configuration without seeds, and the short entries that most
# others do not have. It concerns the default corpus.
"""


def compose(paper: Paper, scale: str) -> str:
    """The text of a registration.

    Args:
        paper: the reproduction.
        scale: one of its scales.
    """
    content = declare(paper, scale)
    lines = [HEAD.format(paper=paper.id, scale=scale)]
    lines += [f"{key} = {_value(v)}\n" for key, v in content.items() if not isinstance(v, dict)]
    lines += ["\n[settings]\n", *_entries(content["settings"])]
    for kind in ("conditions", "claims"):
        for name, entry in content[kind].items():
            lines += [f"\n[{kind}.{_key(name)}]\n", *_entries(entry)]
    return "".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code, 3 if a compared file differs."""
    return exit_code(lambda: run(_parser().parse_args(arguments)), "")


def run(asked: argparse.Namespace) -> int:
    """Write or compare what was asked for; returns the exit code.

    Raises:
        UserError: an unknown paper or scale.
    """
    names = [asked.paper] if asked.paper else [n for n in PAPERS if paper_of(n).folder is not None]
    if asked.paper and asked.paper not in PAPERS:
        raise name_error("paper", asked.paper, PAPERS)
    differs = False
    for paper in map(paper_of, names):
        if asked.scale and asked.scale not in paper.seeds:
            raise name_error("--scale", asked.scale, paper.seeds)
        for scale in [asked.scale] if asked.scale else SCALES:
            path = paper.path_of_registration(scale)
            if path is None:
                raise UserError(f"paper: {paper.id} has no folder; allowed: one with a folder")
            there = path.read_text(encoding="utf-8") if path.exists() else ""
            text = compose(paper, scale)
            told = "as the code has it" if there == text else "differs from the code"
            if there != text and not asked.check:
                writable_folder(path.parent, "registered")
                write_bytes(path, text.encode())
                told = "written"
            differs = differs or (there != text and asked.check)
            print(f"{path}: {told}")
    return EXIT_RUN_FAILED if differs else EXIT_DONE


def paper_of(name: str) -> Paper:
    """The declaration of a paper of ours."""
    return import_module(PAPERS[name]).PAPER


def _entries(table: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a table; one in it has a line for each entry, but a setting has one for all."""
    for key, value in table.items():
        if isinstance(value, Mapping) and "digest" not in value:
            inner = cast(Mapping[str, Any], value)
            yield from (f"{_key(key)}.{line}" for line in _entries(inner))
        else:
            yield f"{_key(key)} = {_value(cast(object, value))}\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    """A value as TOML; a list that is longer than a line has a line for several of its items."""
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        return f"{{ {', '.join(f'{_key(k)} = {_value(v)}' for k, v in table.items())} }}"
    if isinstance(value, list):
        items = [_value(each) for each in cast(list[object], value)]
        line = f"[{', '.join(items)}]"
        return line if len(line) <= WIDTH - INDENT else _wrap(items)
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def _wrap(items: Sequence[str]) -> str:
    lines = textwrap.wrap(
        ", ".join(item.replace(" ", "\0") for item in items) + ",",
        WIDTH,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(["[", *(line.replace("\0", " ") for line in lines), "]"])


def _parser() -> Parser:
    p = Parser(prog="reproductions.register", description="Write registrations from the code.")
    p.add_argument("paper", nargs="?", help=f"one of {', '.join(PAPERS)} (default: all)")
    p.add_argument("--scale", help=f"default: {', '.join(SCALES)}")
    p.add_argument(
        "--check", action="store_true", help="write nothing; exit code 3 if a file differs"
    )
    return p


if __name__ == "__main__":
    sys.exit(main())
