"""Lines for the user, by a logger named ``lagbench`` that writes them to stderr as they are.

A program that imports us silences or redirects them as any logger's:
``logging.getLogger("lagbench").setLevel(logging.ERROR)``, or handlers of its own in place of ours.
"""

from __future__ import annotations

import logging
import sys
import warnings

__all__ = ["LOG", "FormerWarning"]

LOG = logging.getLogger("lagbench")


class _Bare(logging.Handler):
    """Writes a line without its level and time; ``end`` of a record is in place of a new line."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it to what is the standard error by now."""
        print(record.getMessage(), end=getattr(record, "end", "\n"), file=sys.stderr, flush=True)


if not LOG.handlers:  # else a program has said already where they go
    LOG.addHandler(_Bare())
    LOG.propagate = False  # or a program that logs would have each line twice
if LOG.level == logging.NOTSET:
    LOG.setLevel(logging.INFO)


class FormerWarning(FutureWarning):
    """A user's file has a name or a class of before, which goes on working for one version.

    Python shows a FutureWarning to everybody, and hides a DeprecationWarning in what is imported.
    """

    @classmethod
    def hush(cls) -> None:
        """Show none in this process: it imports what another imports too, which shows them."""
        warnings.filterwarnings("ignore", category=cls)
