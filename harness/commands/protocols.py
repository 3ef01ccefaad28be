"""The protocol of `lagbench simulate`, with its settings as options of the command line.

An option is declared for each setting of a protocol. Settings of our own protocols are read from
their sources, because importing them takes half a second, and ``--help`` has to be fast. Settings
of another protocol are declared when ``--protocol`` names it.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args, get_type_hints

from harness.base.errors import UserError
from harness.base.registry import Entry, entries, find_own, import_modules
from harness.base.settings import meanings, meanings_in
from harness.cli import Parser

if TYPE_CHECKING:
    from harness.simulator import Cluster
    from harness.simulator.protocols.contract import TimingProtocol

__all__ = ["MOST_FOLDS", "configure", "folds", "own_settings", "protocol", "read_value"]

MOST_FOLDS = 10_000_000

PACKAGES = Path(__file__).parents[2]


class Setting(NamedTuple):
    """A setting of a protocol.

    Attributes:
        owner: name of the protocol.
        name: name of the field.
        kind: its annotated type, as source text.
        meaning: its description in the class's docstring.
    """

    owner: str
    name: str
    kind: str
    meaning: str


@cache
def own_settings(entry: Entry) -> tuple[Setting, ...]:
    """Read the settings of one of our protocols from its source, which takes milliseconds."""
    return tuple(_settings_in(entry))


def _settings_in(entry: Entry) -> Iterator[Setting]:
    module, _, name = entry.value.partition(":")
    source = PACKAGES.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    for found in ast.parse(source).body:
        if isinstance(found, ast.ClassDef) and found.name == name:
            told = meanings_in(ast.get_docstring(found) or "")
            for line in found.body:
                kind = ast.unparse(line.annotation) if isinstance(line, ast.AnnAssign) else "Class"
                if isinstance(line, ast.AnnAssign) and not kind.startswith("ClassVar"):
                    field = ast.unparse(line.target)
                    yield Setting(entry.name, field, kind, told.get(field, ""))


def settings_of(kind: type[TimingProtocol]) -> Iterator[Setting]:
    """The settings of a protocol, from its class."""
    hints, told = get_type_hints(kind), meanings(kind)
    for entry in fields(cast(Any, kind)):
        hint = hints[entry.name]
        plain = isinstance(hint, type) and not get_args(hint)
        text = hint.__name__ if plain else str(hint)
        yield Setting(kind.name, entry.name, text, told.get(entry.name, ""))


def numbers(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    return tuple(float(part) for part in text.split(","))


def read_value(text: str) -> object:
    """Parse a value in TOML; a word without quotes is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError):
        return text


TAKES: dict[str, tuple[Callable[[str], object], str]] = {
    "int": (int, "N"),
    "float": (float, "X"),
    "str": (str, "NAME"),
    "tuple[float, ...]": (numbers, "A,B"),
}
"""Parser and placeholder of an option, by the type of its setting. Other types take any value in
TOML, which is checked with the rest of the settings."""


def configure(parser: Parser) -> None:
    """Declare ``--protocol`` and an option for each setting."""
    _add_names(parser)
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="number of whole epochs of averaging, instead of --folds",
    )
    group = parser.add_argument_group("settings of a protocol")
    own = [entry for entry in entries("protocols").values() if entry.ours]
    names = _add_settings(group, [each for entry in own for each in own_settings(entry)])
    parser.set_defaults(settings=names)

    def prepare(words: Sequence[str]) -> None:
        first = Parser(prog=parser.prog, add_help=False)
        _add_names(first)
        asked, _ = first.parse_known_args(words)
        import_modules(asked.modules, "--import", Path.cwd())
        if find_own("protocols", asked.protocol) is None:
            from harness.simulator import load_protocol

            kind = load_protocol(asked.protocol)
            title = f"settings of {kind.name}, except those named like another option"
            # An option of our protocols is replaced by theirs of the same name, which may have
            # another type.
            theirs = parser.add_argument_group(title, conflict_handler="resolve")
            known: dict[str, object] = vars(parser)["_option_string_actions"]
            others = known.keys() - {_option(name) for name in names}
            new = [each for each in settings_of(kind) if _option(each.name) not in others]
            parser.set_defaults(settings=[*names, *_add_settings(theirs, new)])

    parser.prepare = prepare


def _add_names(parser: Parser) -> None:
    parser.add_argument(
        "--protocol",
        default="parameter_server",
        metavar="NAME",
        help="name of the protocol, or its class; default: %(default)s",
    )
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that defines a protocol, e.g. of a file in this folder; may be repeated",
    )


def _add_settings(group: Any, settings: Iterable[Setting]) -> list[str]:
    """Declare an option for each name, which several protocols may share; returns the names."""
    owned: dict[str, dict[str, list[Setting]]] = {}
    for each in settings:
        # help shows the first clause of the description
        short = re.split(r"[.:;](?:\s|$)", each.meaning, maxsplit=1)[0].replace("%", "%%")
        owned.setdefault(each.name, {}).setdefault(short, []).append(each)
    for name, said in owned.items():
        told = (f"{', '.join(it.owner for it in alike)}: {short}" for short, alike in said.items())
        kind, meaning = next(iter(said.values()))[0].kind, "; ".join(told)
        if kind == "bool":
            action = argparse.BooleanOptionalAction
            group.add_argument(_option(name), action=action, dest=name, help=meaning)
        else:
            takes, shown = TAKES.get(kind.removesuffix(" | None"), (read_value, "VALUE"))
            group.add_argument(_option(name), type=takes, metavar=shown, dest=name, help=meaning)
    return list(owned)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def protocol(arguments: argparse.Namespace) -> TimingProtocol:
    """The protocol that the options describe.

    Raises:
        UserError: an unknown protocol, or a setting that it does not have.
    """
    from harness.base.settings import build
    from harness.simulator import load_protocol, load_protocols

    kind = load_protocol(arguments.protocol)
    given = {name: getattr(arguments, name) for name in arguments.settings}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in settings:
        if name not in _names(kind):
            owners = [owner for owner, it in load_protocols().items() if name in _names(it)]
            raise UserError(
                f"{_option(name)}: not allowed with --protocol {arguments.protocol};"
                f" allowed: with --protocol {' or '.join(owners)}"
            )
    return build(kind, settings, f"--protocol {arguments.protocol}")


def folds(arguments: argparse.Namespace, cluster: Cluster, workers: int) -> int | None:
    """Number of folds to simulate, from ``--folds`` or ``--epochs``; None without both.

    Raises:
        UserError: the protocol or cluster has no epochs, or their number is out of range.
    """
    from harness.simulator import load_protocols

    epochs = arguments.epochs
    if epochs is None:
        return cast("int | None", arguments.folds)
    each = protocol(arguments).epoch_folds(cluster, workers)
    if each == 0:
        able = [name for name, kind in load_protocols().items() if "epochs" in kind.can]
        raise UserError(
            f"--epochs: there are none; allowed: with --protocol {' or '.join(able)}, which can"
            " 'epochs', and a cluster file that has parallel.epoch_minibatches"
        )
    if not 1 <= epochs <= MOST_FOLDS // each:
        allowed = f"a whole number from 1 to {MOST_FOLDS // each}"
        raise UserError(f"--epochs: {epochs} is not allowed; allowed: {allowed}")
    return epochs * each


def _names(kind: Any) -> list[str]:
    return [entry.name for entry in fields(kind)]
