"""Settings of a run and keys of its cluster file without effect, as lines for the user."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, cast

from harness.simulator import Cluster
from harness.simulator.foresight import (
    describe_repeats,
    find_unused_keys,
    leave_out_untouched,
)
from harness.tasks.contract import TaskConfig

Idle = Iterator[tuple[str, str]]


def idle_lines(
    configs: Iterable[TaskConfig], further: str = "", used: Collection[str] = ()
) -> list[str]:
    """A line for each key without effect on any of the runs, and for more workers than described.

    Args:
        configs: runs that are compared; a key with effect on one of them is not listed.
        further: a key known to have no effect, and why; if given, it is listed alone.
        used: keys that are not listed.
    """
    configs = list(configs)
    largest = max(configs, key=lambda config: config.count, default=None)
    repeated = describe_repeats(largest.cluster, largest.count) if largest else []
    if further:
        return [*repeated, f"no effect: {further}"]
    each = [dict(_idle(config)) for config in configs]
    common = each[0] if each else {}
    return repeated + [
        f"no effect: {key} ({why})"
        for key, why in common.items()
        if key not in used and all(key in others for others in each[1:])
    ]


def _idle(config: TaskConfig) -> Idle:
    """Dotted keys without effect on a run, and why."""
    yield from leave_out_untouched(config.cluster, _find_idle_of_cluster(config))
    yield from config.idle()
    yield from _find_idle_in_tables(config)


def _find_idle_of_cluster(config: TaskConfig) -> Idle:
    work = config.workload()
    yield from find_unused_keys(config.cluster, config.timed, work, config.count)
    if config.cluster.workload not in (None, work):
        yield "workload", config.charge


def _find_idle_in_tables(table: Any, before: str = "") -> Idle:
    """Settings switched off by another setting of their table, in all tables below ``table``."""
    for entry in fields(table):
        inner, name = getattr(table, entry.name), f"{before}{entry.name}."
        if is_dataclass(inner) and not isinstance(inner, Cluster):
            if hasattr(inner, "idle") and not isinstance(inner, TaskConfig):
                yield from ((name + key, why) for key, why in cast(Any, inner).idle())
            yield from _find_idle_in_tables(inner, name)
