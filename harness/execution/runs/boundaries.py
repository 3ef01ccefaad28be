"""Where a stage is cut: the folds at which training decides something, and what is idle then.

Training and prediction cut alike, so that both ask the simulation for the same segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

from harness.execution.data.partition import Laid
from harness.execution.runs.training import TrainingConfig

SEARCH = "search"
"""The kind of a cluster's pause in which the next chunk's rate is searched."""


@dataclass(frozen=True)
class Segment:
    """What is asked of the cluster between two boundaries.

    Attributes:
        begins, ends: folds since the stage began.
        drain: whether nothing is under way at its end.
        handing_out: minibatches, in folds, that may be handed out; None for its own folds'.
    """

    begins: int
    ends: int
    drain: bool
    handing_out: int | None

    @property
    def folds(self) -> int:
        """How many folds it has."""
        return self.ends - self.begins


@dataclass(frozen=True)
class Boundaries:
    """The boundaries of one stage.

    Args:
        config: of the run.
        order: of the stage.
        stage: its number.
    """

    config: TrainingConfig[Any]
    order: Laid
    stage: int

    @property
    def evaluations(self) -> dict[int, float]:
        """The folds after which candidates are scored, and the share of a pass done by then."""
        return self._every(self.config.evaluations)

    @property
    def considerations(self) -> dict[int, float]:
        """The folds after which the algorithm is told the candidates' scores."""
        times = self.config.algorithm.considers
        return self._every(times) if times else {}

    @property
    def held_out_tests(self) -> dict[int, float]:
        """The folds after which the schedule is told a held-out loss."""
        times = self.config.schedule.held_out_tests
        return self._every(times) if times else {}

    @property
    def chunk_steps(self) -> int:
        """Minibatches in a chunk."""
        order = self.order
        return max(1, round(self.config.chunk * int(order.frames.sum()) / order.minibatch))

    def is_chunk(self, step: int) -> bool:
        """Whether a chunk whose rate is searched begins after so many folds."""
        return self.config.schedule.searches and step % self.chunk_steps == 0

    def segments(self, begun: int = 0) -> Iterator[Segment]:
        """The rest of a stage that stands ``begun`` folds after its beginning."""
        folds, chunk = self.order.folds, self.chunk_steps
        chunks = set(range(0, folds, chunk)) if self.config.schedule.searches else set[int]()
        asked = self.evaluations.keys() | self.considerations.keys() | self.held_out_tests.keys()
        ends = chunks | asked | {folds}
        for end in sorted(step for step in ends if step > begun):
            idle = next(step for step in sorted(chunks | {folds}) if step > begun)
            if self.config.shards > 1:
                idle = end  # shards meet in one version only when nothing is under way
            yield Segment(begun, end, end == idle, None if end == idle else idle - begun)
            begun = end

    def _every(self, times: int) -> dict[int, float]:
        """Folds that divide a whole pass into ``times`` nearly equal parts, and the share done.

        The share is nominal: a subset of whole utterances has other numbers of frames for
        other seeds, and what is read at the same share is to be compared.
        """
        parts = max(1, round(times * self.config.stage(self.stage).share))
        return {ceil(self.order.folds * (k + 1) / parts): (k + 1) / parts for k in range(parts)}
