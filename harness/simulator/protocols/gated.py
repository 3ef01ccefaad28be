"""A parameter server with a rule that says when workers may read: the base of own rules.

Reads, computations, copies, queues and folds are those of `parameter_server`, on any link or
network. Before each fold the rule is asked, worker by worker in the order of their numbers, which
of those that wait may read now; it sees the reads that it has just allowed as under way. So a rule
of a few lines of Python is a protocol. Python takes about 0.1 ms a fold.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs
from harness.simulator.events import WAIT, kernel
from harness.simulator.protocols import state as server_state
from harness.simulator.protocols.contract import Handing, Limits, TimingProtocol
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.protocols.state import ABOUT_TO_READ, PARKED, become, schedule_read
from harness.simulator.timeline import Contributions, Timeline

SERVER = ParameterServer()
"""The protocol that has everything but the rule."""


class GatedServer(Spec, TimingProtocol):
    """Base of protocols of one server with a rule that says when a worker may read.

    A subclass is a frozen dataclass that has `may_read`; its fields are the protocol's settings.
    """

    can = frozenset({"network"})

    def __init_subclass__(cls) -> None:
        """Name a subclass after its class, not after this one; see `TimingProtocol`."""
        cls.name = cls.__dict__.get("name", cls.__name__)
        super().__init_subclass__()

    @abstractmethod
    def may_read(self, worker: int, folded: np.ndarray, under_way: np.ndarray) -> bool:
        """Whether a worker that has nothing under way may read the model now.

        Args:
            worker: its number.
            folded: [W] contributions of each worker that are folded.
            under_way: [W] 1 for each worker with a contribution under way, else 0.
        """

    def handing(self, workers: int) -> Handing:
        """One counter hands out minibatches in the order of reads."""
        return SERVER.handing(workers)

    def start(self, cluster: Cluster, workers: int) -> server_state.State:
        """All workers idle at time 0, version 0."""
        return server_state.initial_state(cluster, workers, SERVER.rules)

    def wake(self, state: server_state.State) -> None:
        """Nothing: `advance` asks the rule."""

    def advance(
        self, state: server_state.State, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Let workers read and advance by a fold; see `TimingProtocol`.

        Raises:
            UserError: nothing is under way, and the rule lets no worker read.
        """
        del room
        self._let_read(state)
        clock = state.clock[0]
        ends = clock["version"] + clock["under_way"] >= limits.dispatch
        ends |= clock["version"] >= limits.version or clock["now_s"] > limits.dispatch_s
        if clock["busy"] == 0 and not ends:
            reason = f"no worker may read at version {clock['version']}, and none is under way"
            raise UserError(f"protocol {self.name}: {reason}; allowed: a rule that lets one read")
        # A fold at a time: the next one may change the rule's answer.
        return SERVER.advance(state, costs, limits, 1, spans)

    def _let_read(self, state: server_state.State) -> None:
        """Ask the rule for each worker that waits, and schedule the reads that it allows."""
        status, folded = state.workers["status"], state.workers["folds"].copy()
        under_way = state.workers["mine"].astype(np.int64)
        may: list[int] = []
        for worker in np.flatnonzero((status == PARKED) | (status == ABOUT_TO_READ)).tolist():
            if self.may_read(worker, folded, under_way):
                may.append(worker)
                # The rule sees the reads that it has just allowed, or it would allow too many.
                under_way[worker] = 1
        schedule_only(state, np.array(may, np.int64))

    def in_flight(self, state: server_state.State) -> Contributions:
        """Contributions read and not yet folded, by first step."""
        return SERVER.in_flight(state)

    def promised(self, state: server_state.State) -> int:
        """The version and folds in flight."""
        return SERVER.promised(state)


@kernel
def schedule_only(state: server_state.State, workers: Any) -> None:
    """Let these workers read at this instant, and park all others that were about to."""
    # As a whole: a change of status alone would leave a worker in the queue.
    state.readers.counts[WAIT] = 0
    for worker in range(len(state.workers)):
        if state.workers[worker].status == ABOUT_TO_READ:
            become(state, worker, PARKED)
    for place in range(len(workers)):
        schedule_read(state, workers[place])
