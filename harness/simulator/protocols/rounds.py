"""Protocols in rounds: the loop of their events, and the record that becomes a timeline.

When a round begins, the instants of all its stages are computed at once (`harness.simulator.
protocols.all_reduce`, or a network's messages), and so is its end. Only faults come between: a
death takes its worker's contribution out of the round, whose end is then computed again.

Of events at one instant, ends of rounds come before faults, faults before returns, returns before
reads.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from harness.simulator.costs import Costs, computation_s
from harness.simulator.events import kernel
from harness.simulator.protocols import contract
from harness.simulator.protocols.absences import NOBODY, begin, next_strike_s, strike
from harness.simulator.protocols.contract import Limits, TimingProtocol
from harness.simulator.protocols.record import ROW, Stage, contributions_of, spans_of
from harness.simulator.timeline import KINDS, LOST, Contributions, Folds, Restarts, Spans, Timeline

ROUND_FIELDS = (
    *contract.CLOCK_FIELDS,
    *(("standing", np.int64), ("begun", np.int64), ("end_s", np.float64)),
)
"""Fields of the clock of every protocol in rounds. Besides the contract's (``dispatched`` counts
rounds): events in a row at one instant, whether a round has begun, and its end; without a round,
the instant at which to try to begin one."""

TASK = np.dtype(
    [("is_read", np.int64), *ROW]
    + [(name, np.float64) for name in ("start_s", "last_s", "compute_end_s")]
    + [(name, np.float64) for name in ("join_s", "pushed_s", "reduced_s", "fetched_s")]
)
"""A worker's part in one round: its read, its minibatches with the duration of the last one, and
the instants of its stages. Workers without a part have ``is_read`` 0."""

EPOCH, AVERAGE, REDUCE = "epoch", "average", "all-reduce"

SPAN_KINDS = (*KINDS, EPOCH, AVERAGE, REDUCE)

MOST_ROWS = 1 << 18
"""Largest number of contributions recorded at a time, which limits memory with many workers."""


def new_tasks(workers: int) -> Any:
    """[N] of `TASK`: no worker takes part."""
    tasks = np.zeros(workers, TASK)
    tasks["worker"] = np.arange(workers)
    return tasks


@kernel
def compute(costs: Costs, task: Any, slowdown: float) -> None:
    """Compute the minibatches of a task from ``start_s`` on."""
    time_s = task.start_s
    for step in range(task.first_step, task.first_step + task.steps):
        task.last_s = computation_s(costs, task.worker, step)
        time_s += task.last_s * slowdown
    task.compute_end_s = time_s


class Record:
    """What a segment records.

    Attributes:
        room: largest number of folds.
        ends_s: end of each fold.
        rows: of `TASK`, the contributions of each fold.
        lost: of `TASK`, contributions that entered no fold.
        restarts: (time, version, restored version) of each restart from a checkpoint.
        barren: rounds in a row without a fold.
        undone: restarts in a row without a fold.
    """

    def __init__(self, room: int) -> None:
        self.room = max(room, 1)
        self.ends_s = list[float]()
        self.rows = [np.zeros(0, TASK)]
        self.lost = [np.zeros(0, TASK)]
        self.restarts = list[tuple[float, int, int]]()
        self.barren = self.undone = 0

    def add(self, ends_s: list[float], rows: Any) -> None:
        """Add folds, with all their contributions."""
        self.ends_s += ends_s
        self.rows.append(rows)
        self.barren = self.undone = 0

    def lose(self, tasks: Any, which: Any) -> None:
        """Take contributions out of a round: ``which`` are numbers of workers, or a mask."""
        rows = tasks[which]
        rows["fold"] = LOST
        self.lost.append(rows[rows["is_read"] == 1])
        tasks["is_read"][which] = 0

    def timeline(self, start: int, spans: Spans) -> Timeline:
        """The timeline, whose first fold has the number ``start``."""
        ends_s = np.array(self.ends_s)
        numbers = np.arange(start, start + len(ends_s), dtype=np.int64)
        columns = [np.array(column) for column in zip(*self.restarts, strict=True)]
        return Timeline(
            folds=Folds(numbers, ends_s),
            contributions=contributions_of(np.concatenate([*self.rows, *self.lost])),
            spans=spans,
            restarts=Restarts(*columns),
            kinds=SPAN_KINDS,
        )


class InRounds(TimingProtocol):
    """Base of protocols in rounds.

    Their state has a ``clock`` with `ROUND_FIELDS`, the present round's ``tasks``, [N] of `TASK`,
    and ``absences``. A contribution whose ``fetched_s`` is infinite at the end of its round has
    come too late, and is lost.
    """

    stages: ClassVar[tuple[Stage, ...]]
    """Kinds of spans of a contribution."""

    @abstractmethod
    def on_reads(self, state: Any, costs: Costs, limits: Limits, record: Record) -> bool:
        """Begin a round if none has begun; false if the limits allow none.

        Without a worker for it, ``end_s`` becomes the instant at which to try again. While a round
        is under way, workers may read for the next one.
        """

    @abstractmethod
    def on_death(self, state: Any, costs: Costs, worker: int, record: Record) -> None:
        """Lose a worker's contributions, and compute the end of the round again."""

    def on_fold(self, state: Any) -> None:
        """Do what follows a fold; nothing by default."""
        del state

    def spans_of(self, record: Record) -> Spans:
        """Busy times of all folded contributions."""
        return spans_of(np.concatenate(record.rows), self.stages, SPAN_KINDS)

    def wake(self, state: Any) -> None:
        """Let idle workers read at the present time."""
        state.clock[0]["busy"] = len(state.tasks)

    def in_flight(self, state: Any) -> Contributions:
        """Contributions read and not yet folded, by first step."""
        return contributions_of(state.tasks[state.tasks["is_read"] == 1])

    def advance(
        self, state: Any, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded; see `TimingProtocol`."""
        record = Record(min(room, MOST_ROWS // len(state.tasks)))
        start = int(state.clock[0]["version"])
        begin(state.absences, costs.faults, state.clock[0]["now_s"])
        reason = self._run(state, costs, limits, record)
        return reason, record.timeline(start, self.spans_of(record) if spans else Spans())

    def _run(self, state: Any, costs: Costs, limits: Limits, record: Record) -> int:
        clock, absences = state.clock[0], state.absences
        while clock["version"] < limits.version:
            if len(record.ends_s) >= record.room:
                return contract.FULL
            if max(record.barren, record.undone) >= contract.LOST_ROUNDS and limits.is_endless:
                return contract.DYING
            # Faults of this instant come before its reads, with which a worker may escape one.
            is_struck = not clock["begun"] and next_strike_s(absences) <= clock["now_s"]
            if not (is_struck or self.on_reads(state, costs, limits, record)):
                return contract.DONE
            struck_s = next_strike_s(absences)
            reason = contract.advance_clock(state.clock, limits, min(clock["end_s"], struck_s))
            if reason != contract.GOES_ON:
                return reason
            if is_struck or struck_s < clock["end_s"]:  # at one instant, the fold comes first
                worker = strike(absences, costs.faults, clock["now_s"])
                if worker != NOBODY:
                    self.on_death(state, costs, worker, record)
            elif clock["begun"]:  # else a worker returns, a pause is over, or rounds have passed
                self._end(state, record)
        return contract.DONE

    def _end(self, state: Any, record: Record) -> None:
        """End a round: a fold of all that has come, if anything has."""
        clock, tasks = state.clock[0], state.tasks
        record.lose(tasks, np.isinf(tasks["fetched_s"]))
        rows = tasks[tasks["is_read"] == 1]
        rows["fold"] = clock["version"]
        tasks["is_read"], clock["begun"], clock["end_s"] = 0, 0, np.inf
        if len(rows) == 0:  # the limits must not count this round
            clock["dispatched"] -= 1
            record.barren += 1
            return
        clock["version"] += 1
        record.add([float(clock["now_s"])], rows)
        self.on_fold(state)
