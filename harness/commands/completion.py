"""`lagbench completion`: shell completion of commands, options, clusters and runs."""

from __future__ import annotations

import argparse
from typing import Any, cast

from harness.base.errors import EXIT_DONE, UserError
from harness.base.files import Kind, cluster_file, find_bundled, run_file

__all__ = ["configure", "run"]

SHELLS = ("bash", "zsh", "tcsh")
NAMED: dict[Any, Kind] = {cluster_file: "cluster", run_file: "run"}
BASH = '_lagbench_{kind}() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}\n'
ZSH = "_lagbench_{kind}() {{ _alternative '{kind}s:{kind}:({names})' 'files:file:_files' }}\n"
PREAMBLE = {"bash": BASH, "zsh": ZSH}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> int:
    """Print the completion script of a shell.

    Raises:
        UserError: shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise UserError(
            "completion: shtab is not installed; needed: pip install 'lagbench[completion]'"
        ) from None
    from harness.cli import parser_of

    parser = parser_of(None, every=True)
    _mark(parser)
    own = PREAMBLE.get(arguments.shell, "")
    told = [own.format(kind=kind, names=" ".join(find_bundled(kind))) for kind in NAMED.values()]
    # shtab annotates `preamble` as a string, but takes a dictionary by shell
    print(
        shtab.complete(
            parser, arguments.shell, preamble=cast(str, {arguments.shell: "".join(told)})
        )
    )
    return EXIT_DONE


def _mark(parser: argparse.ArgumentParser) -> None:
    """Mark arguments for shtab: files, and names of bundled clusters and runs."""
    actions: list[Any] = vars(parser)["_actions"]  # argparse has no other way to ask
    for action in actions:
        choices: Any = action.choices
        if isinstance(choices, dict):
            for inner in cast(dict[str, argparse.ArgumentParser], choices).values():
                _mark(inner)
        elif action.type in NAMED:
            name = f"_lagbench_{NAMED[action.type]}"
            action.complete = dict.fromkeys(PREAMBLE, name)
        elif action.nargs != 0 and choices is None and action.type not in (int, float):
            action.complete = {"bash": "_shtab_compgen_files", "zsh": "_files"}
