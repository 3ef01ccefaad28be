"""The protocol of `lagbench simulate`, with its settings as options of the command line.

An option is declared for each setting of our protocols, and for those of another one when
``--protocol`` names it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

from harness.base.errors import UserError
from harness.base.registry import entries, import_modules, names_algorithm
from harness.base.settings import build, limits_of, meanings, read_value
from harness.cli import Parser
from harness.simulator.simulation import load_protocol, load_protocols

if TYPE_CHECKING:
    from harness.simulator.protocols.contract import TimingProtocol


def numbers(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    return tuple(float(part) for part in text.split(","))


TAKES: dict[Any, tuple[Callable[[str], object], str]] = {
    int: (int, "N"),
    float: (float, "X"),
    str: (str, "NAME"),
    tuple[float, ...]: (numbers, "A,B"),
}
"""Parser and placeholder of an option, by the type of its setting. Other types take any value in
TOML, which is checked with the rest of the settings."""


def configure(parser: Parser) -> None:
    """Declare ``--protocol`` and an option for each setting."""
    _add_names(parser)
    ours = [entry.load() for entry in entries("protocols").values() if entry.ours]
    names = _add_settings(parser.add_argument_group("settings of a protocol"), ours)
    parser.set_defaults(settings=names)

    def prepare(words: Sequence[str]) -> None:
        parser_of_names = Parser(prog=parser.prog, add_help=False)
        _add_names(parser_of_names)
        arguments, _ = parser_of_names.parse_known_args(words)
        import_modules(arguments.modules, "--import", Path.cwd())
        kind, _ = _find(arguments.protocol, needs_steps=False)
        if kind in ours:
            return
        title = f"settings of {kind.name}, except those named like another option"
        # An option of our protocols is replaced by theirs of the same name, which may have another
        # type.
        theirs = parser.add_argument_group(title, conflict_handler="resolve")
        actions: dict[str, object] = vars(parser)["_option_string_actions"]
        others = actions.keys() - {_option(name) for name in names}
        parser.set_defaults(settings=[*names, *_add_settings(theirs, [kind], others)])

    parser.prepare = prepare


def _add_names(parser: Parser) -> None:
    parser.add_argument(
        "--protocol",
        default="parameter_server",
        metavar="NAME",
        help="name or class of the protocol, or an algorithm's (ddp, localsgd:10, diloco); default:"
        " %(default)s",
    )
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that defines a protocol, e.g. of a file in this folder; may be repeated",
    )


def _add_settings(
    group: Any, kinds: Iterable[type[TimingProtocol]], others: Iterable[str] = ()
) -> list[str]:
    """Declare an option for each setting's name, which several protocols may share.

    Args:
        group: of the parser.
        kinds: the protocols.
        others: options that mean something else.

    Returns:
        The names.
    """
    types: dict[str, Any] = {}
    owners: dict[str, dict[str, list[str]]] = {}
    for kind in kinds:
        hints, descriptions = get_type_hints(kind), meanings(kind)
        for entry in fields(cast(Any, kind)):
            name, choices = entry.name, limits_of(entry).one_of
            if _option(name) in others:
                continue
            plain = [part for part in get_args(hints[name]) if part is not type(None)]
            is_optional = type(None) in get_args(hints[name]) and len(plain) == 1
            types.setdefault(name, plain[0] if is_optional else hints[name])
            # help shows the first clause of the description
            short = re.split(r"[.:;](?:\s|$)", descriptions.get(name, ""), maxsplit=1)[0]
            notes = ["|".join(choices)] if choices else []
            if type(entry.default) in (int, float, str):
                notes.append(f"default: {entry.default}".removesuffix(".0"))
            short += f" ({'; '.join(notes)})" if notes else ""
            owners.setdefault(name, {}).setdefault(short.replace("%", "%%"), []).append(kind.name)
    for name, kinds_by_text in owners.items():
        text = "; ".join(f"{', '.join(alike)}: {short}" for short, alike in kinds_by_text.items())
        if types[name] is bool:
            action = argparse.BooleanOptionalAction
            group.add_argument(_option(name), action=action, dest=name, help=text)
        else:
            takes, placeholder = TAKES.get(types[name], (read_value, "VALUE"))
            group.add_argument(_option(name), type=takes, metavar=placeholder, dest=name, help=text)
    return list(owners)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _find(name: str, *, needs_steps: bool) -> tuple[type[TimingProtocol], dict[str, Any]]:
    """The class of a protocol's name, and the settings of an algorithm's (``localsgd:10``)."""
    try:
        return load_protocol(name), {}
    except UserError:
        if not names_algorithm(name):
            raise
        from harness.experiment.methods import method_of  # with torch, for such a name only

        instance: Any = method_of(name, needs_steps=needs_steps).protocol
        settings = {entry.name: getattr(instance, entry.name) for entry in fields(instance)}
        changes = {x.name for x in fields(instance) if settings[x.name] != x.default}
        return cast(Any, type(instance)), {key: settings[key] for key in settings if key in changes}


def protocol(arguments: argparse.Namespace) -> TimingProtocol:
    """The protocol that the options describe.

    Raises:
        UserError: an unknown protocol, or a setting that it does not have.
    """
    kind, meant = _find(arguments.protocol, needs_steps=arguments.every is None)
    options = {name: getattr(arguments, name) for name in arguments.settings}
    settings: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in settings:
        if name not in _names(kind):
            owners = [owner for owner, other in load_protocols().items() if name in _names(other)]
            raise UserError(
                f"{_option(name)}: not allowed with --protocol {arguments.protocol};"
                f" allowed: with --protocol {' or '.join(owners)}"
            )
    return build(kind, meant | settings, f"--protocol {arguments.protocol}")


def _names(kind: Any) -> list[str]:
    return [entry.name for entry in fields(kind)]
