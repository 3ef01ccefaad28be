"""Nobody watches, and nothing is said."""

from __future__ import annotations


def silent(told: object) -> None:
    """Stands for whoever is told of progress, and does nothing."""
