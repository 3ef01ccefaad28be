"""Keys of runs without effect, and clusters with fewer workers than asked for, as lines."""

from __future__ import annotations

from collections.abc import Iterable

from harness.simulator.foresight import describe_idle, describe_repeats
from harness.store import Run
from harness.store.schema import UNREAD
from harness.tasks.contract import TaskConfig

__all__ = ["idle_lines", "repeat_lines"]


def repeat_lines(configs: Iterable[TaskConfig]) -> list[str]:
    """A line if the largest of several runs has more workers than its cluster describes."""
    largest = max(configs, key=lambda config: config.count, default=None)
    return describe_repeats(largest.cluster, largest.count) if largest else []


def idle_lines(runs: Iterable[Run]) -> list[str]:
    """A line for each key that is not at its default and that none of several runs has read.

    Of a run that was resumed, or on real processes, this is not known; then there is none.
    """
    keys = [run.provenance.get(UNREAD) for run in runs if run.status == "done"]
    return [] if None in keys else describe_idle([each for each in keys if each is not None])
