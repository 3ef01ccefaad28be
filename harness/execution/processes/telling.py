"""What the processes of a group tell the user; imports nothing, so that errors are quick."""

import sys

GOES_ON = "the same command goes on from the last checkpoint"


def say(line: str) -> None:
    """A line on the standard error: figures are on the standard output."""
    print(line, file=sys.stderr, flush=True)
