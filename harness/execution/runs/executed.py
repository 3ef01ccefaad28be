"""What every configuration answers: its finished run, from the store or made now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol

from harness.store import Run, Store


@dataclass(frozen=True)
class Progress:
    """Where a run is: its name, passes done of at most ``passes``, and the last frame error."""

    run: str
    done: float
    passes: float
    frame_error: float


Watch = Callable[[Progress], None]


class Configuration(Protocol):
    """Whatever a grid can execute: it says what it computes, and `executed` knows how."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ...


@singledispatch
def executed(config: Configuration, store: Store, watch: Watch) -> Run:
    """The finished run of a configuration: the stored one, or made now, or gone on with.

    The module that knows how to execute a kind registers it (``@executed.register``).

    Args:
        config: what to run.
        store: where it is kept.
        watch: told of progress.

    Raises:
        UserError: the run met bad input.
        TypeError: nobody has registered this kind.
    """
    raise TypeError(f"{type(config).__name__}: nobody knows how to execute it")
