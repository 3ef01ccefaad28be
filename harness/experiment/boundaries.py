"""Boundaries of a stage: the folds at which training decides something.

Training and prediction cut in the same way, so both request the same segments from the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from harness.experiment.experiment import AnyExperiment
from harness.experiment.order import Laid

SEARCH = "search"
"""Kind of the cluster's pause for the search of the next chunk's learning rate."""


@dataclass(frozen=True)
class Segment:
    """The folds between two boundaries, as requested from the cluster.

    Attributes:
        begins, ends: first and last fold, counted from the beginning of the stage.
        drain: whether nothing is in flight at its end.
        handing_out: folds whose minibatches may be handed out, from ``begins``; None for those of
            the segment.
    """

    begins: int
    ends: int
    drain: bool
    handing_out: int | None

    @property
    def folds(self) -> int:
        """Number of folds in the segment."""
        return self.ends - self.begins


@dataclass(frozen=True)
class Boundaries:
    """The boundaries of one stage.

    Args:
        config: the experiment.
        order: minibatches of the stage.
        stage: number of the stage, from 0.
    """

    config: AnyExperiment
    order: Laid
    stage: int

    @property
    def evaluations(self) -> dict[int, float]:
        """The folds after which candidates are scored, and the share of a pass done by then."""
        return self._every(self.config.evaluations)

    @property
    def considerations(self) -> dict[int, float]:
        """The folds after which the algorithm receives the candidates' scores."""
        return self._every(self.config.algorithm.considers)

    @property
    def held_out_tests(self) -> dict[int, float]:
        """The folds after which the schedule receives a held-out loss."""
        return self._every(self.config.schedule.held_out_tests)

    @property
    def chunk_steps(self) -> int:
        """Minibatches in a chunk."""
        order = self.order
        return max(1, round(self.config.chunk * int(order.frames.sum()) / order.minibatch))

    def is_chunk(self, step: int) -> bool:
        """Whether a chunk begins after ``step`` folds, and with it a search for its rate."""
        return self.config.schedule.searches and step % self.chunk_steps == 0

    def segments(self, begin: int = 0) -> Iterator[Segment]:
        """The remaining segments of a stage after its first ``begin`` folds."""
        folds = self.order.folds
        # Minibatches of later passes are handed out before this one ends, so no worker waits there.
        horizon = folds + self.order.ahead(self.config.handing.under_way)
        # A trial descent needs one version of the model, so workers are idle where a chunk begins.
        searches = self.config.schedule.searches
        chunks = set(range(0, folds, self.chunk_steps)) if searches else set[int]()
        measured = self.evaluations | self.considerations | self.held_out_tests
        for end in sorted(step for step in {*chunks, *measured, folds} if step > begin):
            idle = next(step for step in sorted({*chunks, horizon}) if step > begin)
            if self.config.shards > 1:
                idle = end  # shards have one common version only when nothing is in flight
            yield Segment(begin, end, end == idle, None if end == idle else idle - begin)
            begin = end

    def _every(self, times: int) -> dict[int, float]:
        """Folds that divide a whole pass into ``times`` nearly equal parts, and the share done."""
        parts = max(1, round(times * self.config.stage(self.stage).share)) if times else 0
        # The share is nominal: a subset of whole utterances has other numbers of frames with each
        # seed, and evaluations at the same share are compared between seeds.
        return {ceil(self.order.folds * (k + 1) / parts): (k + 1) / parts for k in range(parts)}
