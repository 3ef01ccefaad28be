"""A receiver of progress that ignores it."""


def silent(told: object) -> None:
    """Ignore progress."""
