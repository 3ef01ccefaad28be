"""A run that has been recorded, executed again on one device in the recorded order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from harness.base.errors import UserError
from harness.execution.data.minibatches import Minibatches
from harness.execution.replay.sharded import ShardedReplay
from harness.execution.replay.stale import StaleReplay
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.training import Data, TrainingConfig
from harness.simulator import LOST, Timeline
from harness.simulator.timeline import IN_FLIGHT, Contributions, Spans


class Recorded:
    """An executor that walks a timeline which is there already.

    Every contribution is computed by itself, as its worker did it, so that on the CPU the
    parameters come out the same, bit for bit; but a sum over more than two workers was taken
    in whatever order the all-reduce had.

    Args:
        config: what was run.
        data: what it was trained on.
        model: initial parameters ``[P]``.
        minibatches: the data.
        timeline: what happened.
    """

    def __init__(
        self,
        config: TrainingConfig[Data],
        data: Data,
        model: Tensor,
        minibatches: Minibatches,
        timeline: Timeline,
    ) -> None:
        self.timeline = timeline
        parts = (
            config.algorithm,
            config.network(data),
            config.algorithm.start(model),
            minibatches.of,
        )
        self.replay = (
            ShardedReplay(*parts, config.shards)
            if config.shards > 1
            else StaleReplay(
                *parts, slots=max(2 * config.workers, config.handing.under_way), alone=True
            )
        )
        self.server = self.replay.server

    @property
    def now_s(self) -> float:
        """The recorded time of the last fold."""
        done = self.server.version
        return float(self.timeline.folds.time_s[done - 1]) if done else 0.0

    @property
    def loss(self) -> float:
        """See `Executor`."""
        return self.replay.loss.item()

    def advance(self, folds: int, *, drain: bool, handing_out: int | None, rate: float) -> Timeline:
        """See `Executor`; what was in flight is on record.

        Raises:
            UserError: the record ends before.
        """
        del drain, handing_out
        first = self.server.version
        if first + folds > len(self.timeline.folds):
            raise UserError(f"timeline: ends after {len(self.timeline.folds)} folds")
        segment = between(self.timeline, first, first + folds)
        self.replay.run(segment, rate)
        return segment

    def pause(self, seconds: float, kind: str) -> Timeline:
        """Nothing: the pause is on record."""
        del seconds, kind
        return Timeline()

    def begin_stage(self) -> None:
        """See `Executor`."""
        self.replay.begin_pass()

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`."""
        return self.replay.capture()

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`."""
        self.replay.reinstate(arrays, facts)


def between(timeline: Timeline, first: int, end: int) -> Timeline:
    """The segment of a timeline from fold ``first`` to before fold ``end``, without its spans."""
    rows, folds = timeline.contributions, timeline.folds
    entering = (rows.fold >= first) & (rows.fold < end)
    # Who had read by the end and folds later is under way; what was lost is of no consequence.
    under_way = (rows.fold >= end) & (rows.read_version <= end) & (rows.fold != LOST)
    kept: Contributions = rows.where(entering | under_way)
    kept = replace(kept, fold=np.where(kept.fold >= end, IN_FLIGHT, kept.fold))
    inside = (folds.fold >= first) & (folds.fold < end)
    pieces = timeline.pieces
    pieces = pieces.where((pieces.fold >= first) & (pieces.fold < end))
    return Timeline(folds.where(inside), kept, Spans(), timeline.kinds, pieces=pieces)
