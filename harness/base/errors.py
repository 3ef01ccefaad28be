"""Errors caused by users or by the machine, and the exit codes of every command."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb
from typing import Any

from harness.base.log import LOG, one_line

EXIT_DONE = 0

EXIT_BAD_INPUT = 2

EXIT_RUN_FAILED = 3

EXIT_INTERRUPTED = 130

LONGEST = 2000
"""Characters of an error; a value that has more is shown in part."""


RAISED = (Exception, SystemExit)
"""Exceptions that a user's code may raise, except KeyboardInterrupt."""


def describe_raised(error: BaseException) -> str:
    """Class and message of an error raised by a user's code."""
    return f"{type(error).__name__}: {error}"


class UserError(Exception):
    """Bad usage or bad input: one printable line, exit code 2, never a traceback.

    The message names the file or option, the key, the value and what is allowed.
    """

    def __str__(self) -> str:
        text = one_line(super().__str__())
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-300:]}"


class Damaged(UserError):  # noqa: N818 (what is wrong with a file)
    """A file is missing, or is not as it was written: it may be made again.

    What the machine refuses to read is not damaged: that is a plain `UserError`.
    """


class ProcessDied(Exception):  # noqa: N818 (what happened, not what was wrong)
    """Processes or jobs were killed from outside: one line, exit code 3; a rerun resumes."""


def is_interrupt(error: BaseException) -> bool:
    """Whether an error is a signal's KeyboardInterrupt, also one that came amid compiled code.

    numba calls Python for each array that a compiled function returns. A signal is raised there,
    numba goes on, and CPython makes a SystemError of it, whose first cause is the signal's.
    """
    cause: BaseException | None = error
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    return isinstance(cause, KeyboardInterrupt)


def machine_error(error: OSError, path: Path | None = None) -> UserError:
    """An error of the machine (a full disk, a folder without write access) as one line.

    Finished runs are kept; the same command resumes unfinished ones from their checkpoints.

    Args:
        error: the operating system's error.
        path: the file to be written; None for the error's own ``filename``.
    """
    name = error.filename if path is None else path
    place = "" if name is None else f"{name}: "
    reason = error.strerror or str(error)
    return UserError(f"{place}{reason}; after a repair the same command resumes")


def lacks_memory(error: BaseException) -> UserError | None:
    """The `UserError` for an error of exhausted memory; None for any other error.

    PyTorch raises a plain RuntimeError on the CPU, so its message has to be searched.
    """
    # CUDA's OutOfMemoryError is a RuntimeError too, and says "out of memory".
    matches = any(words in str(error) for words in ("can't allocate memory", "out of memory"))
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and matches):
        return UserError("out of memory; allowed: what fits, e.g. fewer --jobs")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return UserError("this machine starts no further thread; allowed: a higher ulimit -u")
    return None


def fails_import(error: BaseException) -> UserError | None:
    """The `UserError` for a library that this machine or the environment keeps from being imported.

    That is an error beneath the top level of a module that is neither ours nor the main program.
    """
    modules = [
        str(frame.f_globals.get("__name__")).partition(".")[0]
        for frame, _ in walk_tb(error.__traceback__)
        if frame.f_code.co_name == "<module>"
    ]
    if not modules or modules[-1] in OURS | {"__main__"}:
        return None
    return UserError(f"{modules[-1]} cannot be imported here: {describe_raised(error)}")


OURS = {"lagbench", "harness", "reproductions", "data_synth", "reports"}

LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "numba", "scipy"} - {"__main__"}


def describe_failure(error: BaseException) -> str | None:
    """An error that the user's code raised, or PyTorch on the user's data; None for any other.

    Of the functions that were called, the innermost one that is neither ours, Python's nor a
    library's is the user's.
    """
    origin, package, entered = "", "", False
    for frame, line in walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        entered = entered or package in OURS
        if entered and package not in OURS | LIBRARIES:
            code = frame.f_code
            origin = f"{code.co_qualname} ({Path(code.co_filename).name}, line {line})"
    if lacks_memory(error) is not None:
        return str(lacks_memory(error))
    if origin:
        return f"{origin} raised {describe_raised(error)}"
    if package == "torch":  # beyond the first minibatch, which is tried before training
        return f"data, model or loss: fails in training: {describe_raised(error)}"
    return None


SYNONYMS = """
cluster machines
cuda gpu
death worker crash failure
dev val valid validation val_data validation_data
minibatch batch_size batch
parameter_server ssp
passes epochs n_epochs num_epochs
rates lr learning_rate
schedule scheduler lr_scheduler
store out out_dir output_dir
trainings budget
workers n_workers num_workers
"""
"""What is one thing under several names: ours first on a line, then those of other libraries."""


def meant(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that a word means; None if it means none.

    It is that name in another spelling, in the singular or plural, or what others call it.

    Example:
        >>> meant("Rates", ["rate", "passes"]), meant("epochs", ["rate", "passes"])
        ('rate', 'passes')
    """
    names = {_stem(name): name for name in allowed}
    lines = [[_stem(name) for name in line.split()] for line in SYNONYMS.splitlines()]
    alike = [_stem(word), *(name for line in lines if _stem(word) in line for name in line)]
    return next((names[name] for name in alike if name in names), None)


def rename(place: str, given: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, Any]:
    """Settings under the names that they have here; a line tells each that had another.

    Args:
        place: the call, or the file and table.
        given: what the user wrote, by name.
        allowed: all valid names.

    Raises:
        UserError: a name that means none of them, or one that is given too.
    """
    names = {name: name if name in allowed else meant(name, allowed) for name in given}
    for name, ours in names.items():
        if ours is None or (ours != name and ours in given):
            raise name_error(place, name, allowed)
        if ours != name:
            LOG.info(f"{place}: {name} is called {ours} here")
    return {str(names[name]): value for name, value in given.items()}


def _stem(word: str) -> str:
    return re.sub(r"[\s_-]", "", word.lower()).removesuffix("s")


def name_error(place: str, value: str, allowed: Iterable[str]) -> UserError:
    """An error for a name that is not among the allowed ones, with the nearest one named.

    Args:
        place: option or key, e.g. ``"--scale"`` or ``"k20m.toml: key"``.
        value: the name that the user wrote.
        allowed: all valid names.

    Example:
        >>> str(name_error("--scale", "lptop", ("smoke", "laptop")))
        "--scale: unknown 'lptop' (did you mean 'laptop'?); allowed: laptop, smoke"
    """
    return UserError(f"{place}: {describe_unknown(value, allowed)}")


def describe_unknown(value: str, allowed: Iterable[str]) -> str:
    """The text of a `name_error` without its place."""
    names = sorted(allowed)
    close = get_close_matches(value, names, n=1)
    completions = [name for name in names if value and name.startswith(value)]
    nearest = meant(value, names) or next(iter(close + completions), None)
    hint = f" (did you mean {nearest!r}?)" if nearest else ""
    text = repr(value) if len(value) <= 60 else f"{value[:57]!r}..."
    return f"unknown {text}{hint}; allowed: {', '.join(names)}"
