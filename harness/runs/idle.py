"""Settings of a run and keys of its cluster file that nothing comes of, for people to be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.simulator.foresight import without_effect
from harness.tasks.contract import TaskConfig

Idle = Iterator[tuple[str, str]]


def idle_lines(configs: Iterable[TaskConfig], further: str = "") -> list[str]:
    """A line for each key without effect on any of the runs.

    Args:
        configs: runs that are compared; what counts for one of them is not named.
        further: a key that is known to have none, and why, in the place of what is found.
    """
    if further:
        return [f"no effect: {further}"]
    each = [dict(_idle(config)) for config in configs]
    common = each[0] if each else {}
    return [
        f"no effect: {key} ({why})"
        for key, why in common.items()
        if all(key in others for others in each[1:])
    ]


def _idle(config: TaskConfig) -> Idle:
    """Dotted keys without effect on a run, and why."""
    work = config.workload()
    yield from without_effect(config.cluster, config.timed, work, config.count)
    if config.cluster.workload not in (None, work):
        yield "workload", config.charge
    yield from config.idle()
