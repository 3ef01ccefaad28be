"""A receiver of progress that ignores it."""

from __future__ import annotations


def silent(told: object) -> None:
    """Ignore progress."""
