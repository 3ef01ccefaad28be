"""The `lagbench` command: finds the subcommand, runs it, and returns an exit code.

A subcommand is a module with ``configure(parser)`` and ``run(arguments) -> exit code``. Only the
requested one is imported, and it imports torch in ``run``, so that ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from harness.base import forks
from harness.base.errors import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_RUN_FAILED,
    ProcessDied,
    UserError,
    fails_import,
    is_interrupt,
    lacks_memory,
    machine_error,
    name_error,
)
from harness.base.registry import version_of
from harness.kernels import notice

COMMANDS = {
    "simulate": "time a cluster: throughput, speed-up, staleness",
    "runs": "list the runs of a store, or of every store in a folder",
    "compare-algorithms": "compare algorithms on a run file, over numbers of workers and seeds",
    "tolerate": "find the workers, staleness, delay or message loss at which a run file breaks",
    "advise": "advise on the algorithm and the number of workers of a run file",
    "check-algorithm": "check an algorithm against the promises of every algorithm",
    "corpus": "make, validate, fetch and import corpora",
    "train": "train one run file on a simulated cluster",
    "replay": "replay a recorded run in its recorded order",
    "compare": "compare a run on real processes with the simulator's prediction",
    "validate": "compare real processes with the simulator",
    "predict": "predict the time of a run on a cluster",
    "calibrate": "measure this machine, and write a cluster file",
    "reproduce": "reproduce a paper's exhibits and claims, as a PDF",
    "report": "rebuild a report from its folder, without training",
}
"""One-line description of every subcommand, whose module in `harness.commands` has its name."""

RUN_FILE = """\
a run file, for functions of your my_module.py beside it:

  cluster = "k20m-server"
  workers = 4
  algorithm = "async"
  rate = 0.1
  [task]
  is = "module"
  model = "my_module:make_model"
  loss = "my_module:loss"
  data = "my_module:make_data"
"""

TAKE_RUN_FILES = ("train", "tolerate", "advise", "compare-algorithms")
"""Commands whose help ends with `RUN_FILE`."""

ELSEWHERE = {"reproduce": "reproductions.command"}
"""Modules of the subcommands that are not there."""

OPTIONS = ("--help", "--version", "-h")


class Parser(argparse.ArgumentParser):
    """A parser that reports mistakes as a `UserError`, one line.

    Abbreviated options are rejected, because a later option could change their meaning.

    Attributes:
        prepare: receives the arguments before they are parsed, and declares options that depend
            on other options.
    """

    prepare: Callable[[Sequence[str]], None] | None = None

    def __init__(self, **settings: Any) -> None:  # whatever argparse takes
        settings.setdefault("allow_abbrev", False)
        super().__init__(**settings)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Call `prepare`, then parse as argparse does."""
        if self.prepare is not None:
            self.prepare(sys.argv[1:] if args is None else args)
        parsed, rest = super().parse_known_args(args, namespace)
        unknown = [word.partition("=")[0] for word in rest if word.startswith("--")]
        if unknown and self.get_default("run"):  # a command, none of whose options is left
            raise name_error(f"{self.prog}: option", unknown[0], self._option_string_actions)
        return parsed, rest

    def error(self, message: str) -> NoReturn:
        """Reject bad usage; `exit_code` prints the line."""
        raise UserError(f"{self.prog}: {message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lagbench` with the given arguments, by default the process's own.

    With the process's own arguments, it also announces the compilation of kernels.

    Returns:
        The exit code: 0 done, 2 bad usage or input, 3 a run failed, 130 interrupted.
    """
    if argv is None:
        notice.announce()

    def run() -> int:
        arguments = _parse(list(sys.argv[1:] if argv is None else argv))
        return int(arguments.run(arguments))

    return exit_code(run)


def run_process(main: Callable[[], int]) -> int:
    """Run the command of this process: the first signal interrupts it, later ones do nothing."""
    forks.listen()
    try:
        return main()
    finally:
        forks.ignore()


def exit_code(run: Callable[[], int], interrupted: str = "interrupted") -> int:
    """Run a command; a user's mistake becomes one line on stderr, never a traceback.

    Args:
        run: the command; returns its exit code.
        interrupted: message after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # None or another where it is closed or replaced
            stream.reconfigure(errors="backslashreplace")  # a locale may lack a letter
    try:
        _check_folder()
        return run()
    except UserError as error:
        return _refuse(error)
    except ProcessDied as died:
        print(f"error: {died}; the same command resumes", file=sys.stderr)
        return EXIT_RUN_FAILED
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interrupt(error):
            raise
        print(interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it, e.g. `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except OSError as error:
        return _refuse(fails_import(error) or machine_error(error))
    except Exception as error:
        if (refusal := lacks_memory(error) or fails_import(error)) is None:
            raise
        return _refuse(refusal)


def _check_folder() -> None:
    """Refuse a working folder that is gone: no command works there.

    Raises:
        UserError: it is gone.
    """
    try:
        Path.cwd()
    except OSError as error:
        mistake = f"cannot be found ({error.strerror}); allowed: a folder that exists"
        raise UserError(f"working folder: {mistake}") from error


def _refuse(error: UserError) -> int:
    print("error:", " ".join(str(error).splitlines()), file=sys.stderr)
    return EXIT_BAD_INPUT


def _parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, with ``run`` set to the subcommand's function."""
    command = next((word for word in argv if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS:
        raise name_error("lagbench: command", command, COMMANDS)
    if command is None and argv and argv[0] not in OPTIONS:
        raise name_error("lagbench: option", argv[0], OPTIONS)
    return parser_of(command).parse_args(argv)


def parser_of(word: str | None) -> Parser:
    """The parser of the command line.

    Args:
        word: the command whose module is imported for its options and ``run``; None for none.
    """
    parser = Parser(prog="lagbench", description="What does parallelism do to training?")
    libraries = ", ".join(f"{name} {version_of(name)}" for name in ("torch", "numba", "numpy"))
    version = f"lagbench {version_of('lagbench')} ({libraries})"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, description in COMMANDS.items():
        command = commands.add_parser(name, help=description, description=description)
        if name in TAKE_RUN_FILES:
            command.epilog, command.formatter_class = RUN_FILE, argparse.RawDescriptionHelpFormatter
        if name == word:
            place = f"harness.commands.{name.replace('-', '_')}"
            module = import_module(ELSEWHERE.get(name, place))
            module.configure(command)
            command.set_defaults(run=module.run)
    return parser
