"""What the processes of a group tell the user; imports little, so that errors are quick."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED
from harness.base.log import LOG

if TYPE_CHECKING:
    from harness.store import Run
    from harness.tasks.contract import Watch

SECRET = "LAGBENCH_SECRET"
"""The environment variable that has the secret of a run's processes."""

GOES_ON = "the same command goes on from the last checkpoint"


def say(line: str) -> None:
    """A line on the standard error: figures are on the standard output."""
    LOG.info(line)


@contextmanager
def show_progress(name: str) -> Generator[Watch]:
    """Show how far a run is.

    Args:
        name: what the user calls it.
    """
    from harness.grid.display import Display
    from harness.grid.grid import Report

    with Display({name: name}) as display:
        yield lambda progress: display.show(Report(0, 1, {name: replace(progress, run=name)}))


def print_result(found: Run, who: str) -> int:
    """Print what a run came to, as `lagbench train` does; returns the exit code.

    Args:
        found: the run.
        who: the run, in words.
    """
    print(*found.lines(), sep="\n")
    if found.status == "done":
        return EXIT_DONE
    say(found.ending(who))
    return EXIT_RUN_FAILED
