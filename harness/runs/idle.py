"""Settings of a run and keys of its cluster file that nothing comes of, for people to be told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from harness.runs.config import TrainingConfig
from harness.simulator.foresight import without_effect
from harness.speech.frames import RunConfig
from harness.speech.sequence import SequenceConfig

Config = TrainingConfig[Any] | SequenceConfig

Idle = Iterator[tuple[str, str]]

STEPWISE = ("fetch_s", "waiting", "shards")
"""Settings of decoders that work while frames are trained on."""


def idle_lines(configs: Iterable[Config], further: str = "") -> list[str]:
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


def _idle(config: Config) -> Idle:
    """Dotted keys without effect on a run, and why."""
    sequence = isinstance(config, SequenceConfig)
    workers = config.replicas if sequence else config.workers
    work = config.workload if sequence else config.workload(0)
    yield from without_effect(config.cluster, config.timed, work, workers)
    if config.cluster.workload not in (None, work):
        yield "workload", _charge(config)
    yield from _find_idle_in_sequence(config) if sequence else _find_idle_in_passes(config)


def _charge(config: Config) -> str:
    if isinstance(config, RunConfig | SequenceConfig):
        return "time is charged for timed_layers"
    return "time is charged for the module; charge_for='cluster' takes the file's"


def _find_idle_in_passes(config: TrainingConfig[Any]) -> Idle:
    own, parallel = config.handing.own, config.cluster.parallel
    if own is not None and parallel.epoch_minibatches:
        yield "parallel.epoch_minibatches", "a run's passes are its epochs"
    if config.chunk != 1.0 and not config.schedule.searches:
        yield "chunk", f"{type(config.schedule).__name__} searches for no rate"
    if config.tested == "never" and config.tested_models != "all":
        yield "tested_models", "tested is 'never'"


def _find_idle_in_sequence(config: SequenceConfig) -> Idle:
    if config.shuffling != "full":
        return
    for name in STEPWISE:
        if getattr(config, name) != getattr(SequenceConfig, name):
            yield name, "shuffling is 'full': all is decoded before it is trained on"
