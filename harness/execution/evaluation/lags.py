"""Which reads each kind of run has, by name, and how long before the folds they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, singledispatch

import numpy as np

from harness.execution.runs.config import RunConfig
from harness.execution.runs.sequence import SequenceConfig
from harness.simulator import Timeline
from harness.simulator.timeline import Lag, inner_lag, outer_lag, pass_lag, push_lag

Reads = Mapping[str, Callable[[Timeline], Lag]]
"""The reads of a run by name, each as a function that takes its lags from a timeline."""


@singledispatch
def reads(config: RunConfig | SequenceConfig) -> Reads:
    """The reads of a run.

    ``inner`` is the trainer's read. In sequence training ``push`` is the end of computing, and
    ``outer`` the decoder's read, frame by frame (minibatch by minibatch where everything is
    decoded as a pass begins).

    Args:
        config: whose.

    Raises:
        TypeError: of this kind no reads are known.
    """
    raise TypeError(f"{type(config).__name__}: no reads are known of this kind")


@reads.register
def _of_frames(config: RunConfig) -> Reads:
    del config
    return {"inner": inner_lag}


@reads.register
def _of_sequences(config: SequenceConfig) -> Reads:
    outer: Reads = {}
    if config.shuffling != "full":
        slots = None if config.shuffling == "on the fly" else config.slots
        outer = {"outer": partial(outer_lag, slots=slots)}
    elif config.decode_cost or config.passes == 1:  # else nothing says where a pass begins
        outer = {"outer": pass_lag}
    return {"inner": inner_lag, **outer, "push": push_lag}


def lags(timeline: Timeline, config: RunConfig | SequenceConfig) -> dict[str, float]:
    """Mean and percentiles of a run's lags from each of its reads, in folds and in seconds."""
    return {
        f"{name}_{unit}_{figure}": value
        for name, read in reads(config).items()
        for unit, values in read(timeline)._asdict().items()
        for figure, value in _described(values).items()
    }


def _described(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {}
    p50, p95 = np.percentile(values, (50, 95)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p95": p95}
