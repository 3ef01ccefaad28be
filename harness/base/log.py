"""Lines for the user, by a logger named ``lagbench`` that writes them to stderr as they are.

A program that imports us silences or redirects them as any logger's:
``logging.getLogger("lagbench").setLevel(logging.ERROR)``, or handlers of its own in place of ours.
"""

from __future__ import annotations

import logging
import sys

LOG = logging.getLogger("lagbench")


class _Bare(logging.Handler):
    """Writes a record's message alone; its attribute ``end``, if set, replaces the newline."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record to the present ``sys.stderr``, which a caller may have replaced."""
        print(record.getMessage(), end=getattr(record, "end", "\n"), file=sys.stderr, flush=True)


if not LOG.handlers:  # else a program has said already where they go
    LOG.addHandler(_Bare())
    LOG.propagate = False  # or a program that logs would have each line twice
if LOG.level == logging.NOTSET:
    LOG.setLevel(logging.INFO)


def say(line: str) -> None:
    """Print a line on standard error; standard output carries the results."""
    LOG.info("%s", line)
