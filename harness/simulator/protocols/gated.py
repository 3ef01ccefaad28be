"""A parameter server with a rule that says when workers may read: the base of own rules.

Reads, computations, copies, queues, folds, faults and losses are those of `parameter_server`, on
any link or network. When workers are about to read, after all other events of the instant, the
rule is asked, worker by worker in the order in which they began to wait; it sees the reads that it
has just allowed as under way. A worker that may not read waits, and is asked about again after each
fold, loss and departure. So a rule of a few lines of Python is a protocol. Python takes about
0.1 ms a fold.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.simulator.costs import Costs
from harness.simulator.events import waiting
from harness.simulator.protocols import asynchronous
from harness.simulator.protocols import state as server_state
from harness.simulator.protocols.contract import ASKS, FULL, Limits
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.protocols.state import Rules
from harness.simulator.timeline import Timeline

MOST_FOLDS = 64
"""Folds that a call of the kernel may record: mostly the rule is asked before."""


@dataclass(frozen=True)
class GatedServer(ParameterServer):
    """Base of protocols of one server with a rule that says when a worker may read.

    A subclass is a frozen dataclass that has `may_read`; its fields are settings beside those of a
    parameter server.
    """

    can = frozenset({"faults", "network"})

    def __init_subclass__(cls) -> None:
        """Name a subclass after its class, not after this one; see `TimingProtocol`."""
        cls.name = cls.__dict__.get("name", cls.__name__)
        super().__init_subclass__()

    @abstractmethod
    def may_read(self, worker: int, folded: np.ndarray, under_way: np.ndarray) -> bool:
        """Whether a worker that can begin a contribution may read the model now.

        Args:
            worker: its number.
            folded: [W] contributions of each worker that are folded; one that is or was absent
                has as many as the slowest of those present at least.
            under_way: [W] contributions of each worker that are under way.
        """

    @property
    def rules(self) -> Rules:
        """The settings as arguments of a kernel, which asks before reads."""
        return super().rules._replace(asks=True)

    def advance(
        self, state: Any, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until the rule is asked, and answer; see `TimingProtocol`.

        Raises:
            UserError: the rule lets no worker read, and nothing can change that.
        """
        reason, timeline = super().advance(state, costs, limits, min(room, MOST_FOLDS), spans)
        if reason != ASKS:
            return reason, timeline
        before, asking, clock = waiting(state.late), waiting(state.readers), state.clock[0]
        workers = np.concatenate([before, np.setdiff1d(asking, before, assume_unique=True)])
        # Beyond the limits no worker reads, whatever the rule says.
        goes_on, asks = asynchronous.may_begin(state, self.rules, limits), np.isin(workers, asking)
        allowed = self._ask(state, workers, asks) if goes_on else asks
        asynchronous.answer(state, costs, self.rules, limits, workers, allowed)
        if goes_on and clock["busy"] == 0 and np.isinf(server_state.returns_s(state)).all():
            reason = f"no worker may read at version {clock['version']}, and none is under way"
            raise UserError(f"protocol {self.name}: {reason}; allowed: a rule that lets one read")
        return FULL, timeline

    def _ask(self, state: server_state.State, workers: Any, asks: Any) -> Any:
        """[U] whether each worker that asks may read, given those allowed before."""
        folded = np.maximum(state.workers["folds"], state.clock[0]["least"])
        under_way = state.workers["mine"].astype(np.int64)
        leaves = state.workers["leave_s"] > 0.0  # preempted: in place of its read
        allowed = asks.copy()
        for place, worker in enumerate(workers.tolist()):
            if asks[place] and not leaves[worker]:
                allowed[place] = self.may_read(worker, folded, under_way)
                # The rule sees the reads that it has just allowed, or it would allow too many.
                under_way[worker] += allowed[place]
        return allowed
