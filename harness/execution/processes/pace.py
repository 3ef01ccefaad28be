"""The clock of a run on real processes, and what slows them to the cluster that it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.execution.processes.headers import GarbageReceived, Header
from harness.execution.processes.messages import NOTHING, Address, into, receive, send
from harness.execution.processes.world import now_s, sleep_until
from harness.execution.runs.config import RunConfig
from harness.simulator.costs import Costs, computation_s, costs_of, folding_s

QUESTIONS = 20
"""For a peer's clock; the quickest answer says most."""


@dataclass(frozen=True)
class Pacing:
    """Slows real processes to the cluster of a run: what is quicker than it says, waits.

    So a few cores stand for many workers of known speed.

    Args:
        costs: of the cluster; None for as fast as they go.
    """

    costs: Costs | None = None

    @classmethod
    def of(cls, config: RunConfig, paced: bool) -> Pacing:
        """The pace of the run's own cluster and workload, if it is paced at all."""
        if not paced:
            return cls()
        return cls(costs_of(config.cluster, config.workload(0), config.workers, config.seed))

    def compute_s(self, worker: int, count: int) -> float:
        """How long a worker's minibatch of a number takes at least."""
        return 0.0 if self.costs is None else float(computation_s(self.costs, worker, count))

    def plain_s(self, worker: int, minibatches: float) -> float:
        """How long what costs as much as so many minibatches takes at least, without jitter."""
        return 0.0 if self.costs is None else float(self.costs.compute_s[worker]) * minibatches

    def fold_s(self, worker: int, count: int) -> float:
        """How long a worker's contribution of a number takes to fold at least."""
        return 0.0 if self.costs is None else float(folding_s(self.costs, worker, count))


Aside = Callable[[Any], None]


def only_answers(header: Header) -> None:
    """For a peer that has nothing else to say yet.

    Raises:
        GarbageReceived: it said something else.
    """
    raise GarbageReceived(f"{header.kind.name} in place of the time")


def clock_offset(address: Address, question: Header, aside: Aside) -> float:
    """What to add to a peer's monotonic clock to have ours, by the quickest of some answers.

    Args:
        address: of the peer.
        question: what it is asked.
        aside: told what else it says meanwhile.

    Raises:
        RuntimeError: it is gone.
        GarbageReceived: it answered with what is no message, or no answer.
    """
    answers = list[tuple[float, float]]()
    for _ in range(QUESTIONS):
        asked = now_s()
        send(question, address)
        while (answer := receive(address, type(question), into(NOTHING))[0]).kind != question.kind:
            aside(answer)
        now = now_s()
        answers.append((now - asked, (now + asked) / 2.0 - answer.began_s))
    return min(answers)[1]


class Clock:
    """Seconds since a run began, on this process's clock, to which those of others are corrected.

    Args:
        question: what others are asked for their clocks.
    """

    def __init__(self, question: Header) -> None:
        self._began, self._question = now_s(), question
        self._offset: dict[int, float] = {}

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.of(now_s())

    def of(self, moment: float) -> float:
        """A moment of this process's monotonic clock, on the run's clock."""
        return moment - self._began

    def ask(self, peer: int, address: Address, aside: Aside = only_answers) -> None:
        """Ask a peer for its clock; see `clock_offset`."""
        self._offset[peer] = clock_offset(address, self._question, aside)

    def of_peer(self, peer: int, moment: float) -> float:
        """A moment of a peer's monotonic clock, on the run's clock."""
        return self.of(moment + self._offset[peer])

    def sleep_until(self, moment_s: float) -> None:
        """Wait until a moment of the run, if it is still to come."""
        sleep_until(self._began + moment_s)

    def go_on_at(self, now_s: float) -> None:
        """Go on where a checkpoint stopped the clock: what came after never happened."""
        self._began += self.now_s - now_s
