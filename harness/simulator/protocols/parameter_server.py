"""Asynchronous training around one server.

Each worker repeats: read the shared model (a snapshot at the instant of the read), copy it to its
device, compute the gradient of one minibatch, copy that back, queue at the server. The server
folds one contribution at a time, first come, first served; when a fold is complete the version
rises by one and its worker reads again.

Of events at one instant, folds come before arrivals, arrivals before the other events of links and
devices, and reads last: a worker that reads at the instant of a fold reads the folded model. So
with all costs zero each worker's whole cycle is done before the next one reads, which is
serial SGD.

With several shards, a contribution is sent to them in equal pieces, one after the other, and each
shard folds its pieces first come, first served; a fold is complete when the last shard has folded
(see `harness.simulator.protocols.state`).

Minibatches are handed out by one counter in order of reads. The costs of a contribution are fixed
at its read.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs
from harness.simulator.protocols import asynchronous, record
from harness.simulator.protocols import state as server_state
from harness.simulator.protocols.contract import Handing, Limits, TimingProtocol
from harness.simulator.protocols.state import Rules, State
from harness.simulator.timeline import IN_FLIGHT, Contributions, Timeline

MOST_PIECES = 1 << 20
"""Largest number of pieces, or of contributions of rounds, that are recorded at a time."""


class OneServer(TimingProtocol):
    """Base of protocols of one server: settings that make `Rules` for its event loop."""

    @property
    @abstractmethod
    def rules(self) -> Rules:
        """The settings as arguments of a kernel."""

    def start(self, cluster: Cluster, workers: int) -> State:
        """All workers idle at time 0, version 0.

        Raises:
            UserError: too many workers.
        """
        return server_state.initial_state(cluster, workers, self.rules)

    def wake(self, state: State) -> None:
        """Let idle workers read at the present time."""
        server_state.wake(state)

    def advance(
        self, state: State, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded; see `TimingProtocol`.

        Raises:
            UserError: more events than sequence numbers.
        """
        start, rules = int(state.clock[0]["version"]), self.rules
        # A fold records its pieces or its contributions, which must fit the memory.
        is_round = rules.backups >= 0
        rows = server_state.rows_of_fold(rules, len(state.workers))
        folded = rows * min(room, max(1, MOST_PIECES // max(rows, rules.shards)))
        losses = folded + len(state.slots) if is_round or len(state.occurrences) else 0
        # A round may have a single contribution, if most workers are absent.
        rounds = folded if is_round else 0
        table = record.space(folded, spans, losses, len(state.shards.queues), rounds)
        reason = asynchronous.run(state, costs, rules, limits, table)
        # Half of the range, since the test comes after the events of a call.
        if int(state.clock[0]["sequence"]) > server_state.MOST_EVENTS // 2:
            raise UserError("simulation: too long; use fewer folds")
        return reason, record.timeline(table, start, rules.push_every)

    def in_flight(self, state: State) -> Contributions:
        """Contributions read and not yet folded, by first step."""
        slots, over = state.slots, (server_state.FREE, server_state.ABANDONED)
        places = np.flatnonzero(~np.isin(slots["phase"], over))
        places = places[np.argsort(slots["first_step"][places])]
        return record.columns_of(slots, IN_FLIGHT, self.rules.push_every, places)

    def promised(self, state: State) -> int:
        """The version and folds in flight."""
        clock = state.clock[0]
        if self.rules.backups >= 0:  # a round makes one fold
            return int(clock["version"] + (clock["taken"] + clock["coming"] > 0))
        return int(clock["version"] + clock["under_way"])

    def restorable(self, state: State) -> int:
        """The version of the server's last checkpoint."""
        return int(state.clock[0]["restored"])


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Spec, OneServer):
    """Asynchronous SGD's timing: one server, first come first served.

    Attributes:
        push_every: minibatches of one contribution, computed from one read; the algorithm
            determines the steps between them (n_push of Dean et al., "Large scale distributed
            deep networks", 2012).
        fetch_every: minibatches between two fetches of a worker (their n_fetch); a multiple of
            ``push_every``.
        bound: contributions by which a worker may be ahead of the slowest when it begins another:
            the staleness of Ho et al., "More effective distributed ML via a stale synchronous
            parallel parameter server" (2013). None is no bound.
        queue: places at the server. A contribution takes one when its copy begins and releases it
            when it is folded; without a free one it waits at its worker. None is no limit.
        depth: contributions that a worker may have in flight. With 1 it waits for its fold before
            it reads again; with more it continues as soon as it has computed.
        shards: equal parts of the model, each with a queue of its own.

    Examples:
        >>> ParameterServer(depth=2).handing(workers=4).under_way
        8
    """

    name = "parameter_server"
    can = frozenset({"faults", "network", "processes"})

    push_every: int = setting(1, at_least=1, at_most=1_000_000)
    fetch_every: int = setting(1, at_least=1, at_most=1_000_000)
    bound: int | None = setting(None, at_least=0, at_most=1_000_000_000)
    queue: int | None = setting(None, at_least=1, at_most=1_000_000_000)
    depth: int = setting(1, at_least=1, at_most=64)
    shards: int = setting(1, at_least=1, at_most=10_000)

    def handing(self, workers: int) -> Handing:
        """One counter hands out minibatches in the order of reads."""
        under_way = workers * self.depth
        return Handing(rounds=False, own=None, a_fold=self.push_every, under_way=under_way)

    def untrained(self) -> tuple[str, str] | None:
        """A setting that can be timed but not trained with: (key, message), or None.

        Shards are a key of the run; fetches less frequent than reads are timed only.
        """
        if self.shards > 1:
            reason = f"{self.shards} is not allowed here; allowed: the key shards of the run"
            return "shards", reason
        if self.fetch_every > 1:
            reason = f"{self.fetch_every} can be timed but not trained with; allowed: 1"
            return "fetch_every", reason
        return None

    def simulated_only(self) -> tuple[str, str] | None:
        """Real workers push every contribution, and none waits for another."""
        plain = ParameterServer(push_every=self.push_every)
        for entry in fields(plain):
            setting, allowed = getattr(self, entry.name), getattr(plain, entry.name)
            if setting != allowed:
                default = "without it" if allowed is None else allowed
                return entry.name, f"{setting} is simulated only; allowed here: {default}"
        return None

    def trouble(self) -> tuple[str, str] | None:
        """Fetches that would split a contribution: it is computed at one version."""
        if self.fetch_every % self.push_every and self.fetch_every != 1:
            allowed = f"1 or a multiple of push_every, which is {self.push_every}"
            return "fetch_every", f"{self.fetch_every} is not allowed; allowed: {allowed}"
        return None

    @property
    def rules(self) -> Rules:
        """The settings as arguments of a kernel."""
        # The kernel counts fetches in contributions, not minibatches; −1 stands for None.
        return Rules(
            push_every=self.push_every,
            fetch_every=max(1, self.fetch_every // self.push_every),
            bound=-1 if self.bound is None else self.bound,
            queue=-1 if self.queue is None else self.queue,
            depth=self.depth,
            shards=self.shards,
        )

    def start(self, cluster: Cluster, workers: int) -> State:
        """All workers idle at time 0, version 0.

        Raises:
            UserError: too many workers or shards for these settings, or faults with several shards.
        """
        if self.shards > 1 and cluster.faults:
            raise UserError(f"shards: {self.shards} is not allowed with faults; allowed: 1")
        if self.shards > 1 and self.shards * self.depth * workers > MOST_PIECES:
            allowed = f"with {workers} workers at most {MOST_PIECES // (self.depth * workers)}"
            raise UserError(f"shards: {self.shards} is not allowed; allowed: {allowed}")
        return super().start(cluster, workers)
