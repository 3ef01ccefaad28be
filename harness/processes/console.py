"""Console output of the processes of a group; imports little, so that errors appear quickly."""

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
"""Environment variable with the shared secret of a run's processes."""

GOES_ON = "the same command resumes from the last checkpoint"


def say(line: str) -> None:
    """Print a line on standard error; standard output carries the results."""
    LOG.info(line)


@contextmanager
def show_progress(name: str) -> Generator[Watch]:
    """Show the progress of a run; yields the function that takes each `Progress`.

    Args:
        name: title of the run on the display.
    """
    # Imported here, as these modules load torch: an error before training appears at once.
    from harness.grid.display import Display

    with Display({name: name}, {name: 1.0}) as display:
        yield lambda progress: display.hear(replace(progress, run=name))


def print_result(found: Run, who: str) -> int:
    """Print the results of a run, as `lagbench train` does; returns the exit code.

    Args:
        found: the run.
        who: title of the run in the closing line.
    """
    print(*found.lines(), sep="\n")
    if found.status == "done":
        return EXIT_DONE
    say(found.ending(who))
    return EXIT_RUN_FAILED
