"""Federated rounds: a sample of many clients trains, and the first to answer are averaged.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (2017);
over-selection, drop-outs and deadlines as in Bonawitz et al., "Towards federated learning at scale:
system design" (2019). In a round

- the server draws ``sampled`` of the present clients and sends them the model, all at once, over
  the network;
- each computes ``every`` minibatches and sends its own model back;
- contributions are folded one after the other, in the order of their arrival, until ``needed`` are
  folded; the round ends then, or when no more can come, or at its deadline with those that have
  arrived by then. Later ones are dropped. A round without any contribution makes no fold.

The contribution of a client that dies before it arrives is lost; its message still occupies the
network until the round's end. A preempted client finishes its round, and one that returns or joins
late can be drawn from the next round on. Of events at one instant, folds come before faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, duration, setting
from harness.simulator import laws
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, computation_s, own_links
from harness.simulator.events import Heap, kernel, new_heap, push
from harness.simulator.network import (
    Level,
    Traffic,
    Wiring,
    new_traffic,
    next_event,
    reserve,
    start,
    wire,
)
from harness.simulator.protocols.absences import (
    Absences,
    begin,
    new_absences,
    next_strike_s,
    select_readers,
    strike,
)
from harness.simulator.protocols.contract import (
    CLOCK_FIELDS,
    DONE,
    DYING,
    FULL,
    GONE,
    LOST_ROUNDS,
    STUCK,
    Limits,
    TimingProtocol,
)
from harness.simulator.protocols.rounds import (
    LOST_TASK,
    SERVED,
    TASK,
    coding_s,
    contributions_in_flight,
    network_of,
    round_timeline,
    wire_bytes,
)
from harness.simulator.timeline import Contributions, Timeline

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *((name, np.int64) for name in ("standing", "begun", "drawn")),
        *((name, np.float64) for name in ("round_s", "end_s")),
    ]
)
"""Besides the contract's fields: events in a row at one instant, whether a round has begun, number
of rounds drawn, and beginning and end of the present one."""


class SamplingState(NamedTuple):
    """The state of the protocol.

    Attributes:
        clock: [1] of `CLOCK`.
        tasks: [N] of `TASK`, the present round; its clients have ``is_read`` 1.
        steps: [N] number of minibatches handed to each client so far.
        absences: state of the faults of clients.
        machine: the cluster.
        wiring: the network between clients and server.
    """

    clock: Any
    tasks: Any
    steps: Any
    absences: Absences
    machine: Cluster
    wiring: list[Wiring]


@dataclass(frozen=True)
class ClientSampling(Spec, TimingProtocol):
    """Timing of federated averaging.

    Attributes:
        sampled: clients that are drawn for a round; all present ones if these are fewer.
        needed: contributions that make a fold; 0 is all of the round.
        every: minibatches of a client in a round.
        deadline_s: longest duration of a round, if any contribution has arrived by then; none
            is no limit.
    """

    name = "client_sampling"
    can = frozenset({"faults", "network", "compression", "notice"})
    way = "network"

    sampled: int = setting(100, at_least=1, at_most=10_000_000)
    needed: int = setting(0, at_least=0, at_most=10_000_000)
    every: int = setting(10, at_least=1, at_most=2**30)
    deadline_s: float | None = duration(None)

    def trouble(self) -> tuple[str, str] | None:
        """More contributions needed than clients drawn."""
        if self.needed > self.sampled:
            allowed = f"at most sampled, which is {self.sampled}"
            return "needed", f"{self.needed} is not allowed; allowed: {allowed}"
        return None

    def start(self, cluster: Cluster, workers: int) -> SamplingState:
        """All clients idle at time 0, version 0.

        Raises:
            UserError: a fault that does not concern workers, or pageable buffers.
        """
        network = network_of(cluster)
        if cluster.host.staging == "pageable":
            raise UserError("host.staging: 'pageable' is not simulated in client_sampling")
        joined = replace(network, server=network.server or Level())
        return SamplingState(
            clock=np.zeros(1, CLOCK),
            tasks=np.zeros(workers, TASK),
            steps=np.zeros(workers, np.int64),
            absences=new_absences(cluster, workers, self.name),
            machine=cluster,
            wiring=[wire(joined, workers, 1, own_links(cluster, workers))],
        )

    def wake(self, state: SamplingState) -> None:
        """Let idle clients be drawn, at the present time."""
        state.clock[0]["busy"] = len(state.tasks)

    def advance(
        self, state: SamplingState, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded; see `TimingProtocol`."""
        clock, rounds, lost = state.clock[0], list[Any](), [np.zeros(0, LOST_TASK)]
        start, reason, rounds_lost = int(clock["version"]), DONE, 0
        room = max(1, min(room, MOST_ROWS // len(state.tasks)))
        if len(state.absences.begun) and not state.absences.begun[0]:
            begin(state.absences, costs.faults, clock["now_s"])
        while clock["version"] < limits.version:
            if len(rounds) == room:
                reason = FULL
                break
            # Faults of this instant come before its reads, with which a client may escape one.
            is_struck = not clock["begun"] and next_strike_s(state.absences) <= clock["now_s"]
            if not (clock["begun"] or is_struck or self._draw(state, costs, limits)):
                break
            struck_s = next_strike_s(state.absences)
            if min(clock["end_s"], struck_s) > limits.time_s:
                clock["now_s"] = limits.time_s
                break
            if is_struck or struck_s < clock["end_s"]:
                clock["now_s"] = max(clock["now_s"], struck_s)
                lost.append(self._strike(state, costs))
                continue
            if clock["end_s"] == math.inf:
                reason = GONE
                break
            clock["standing"] = clock["standing"] + 1 if clock["end_s"] == clock["now_s"] else 0
            if clock["standing"] > limits.standing:
                reason = STUCK
                break
            clock["now_s"] = clock["end_s"]
            # Without a round, ``end_s`` was the return of the first client.
            if clock["begun"]:
                folded, given_up = self._fold(state)
                rounds += folded
                lost.append(given_up)
                rounds_lost = 0 if folded else rounds_lost + 1
                if rounds_lost == LOST_ROUNDS and limits.is_endless:
                    reason = DYING
                    break
        return reason, round_timeline(start, rounds, np.concatenate(lost), spans, SERVED)

    def in_flight(self, state: SamplingState) -> Contributions:
        """Contributions of the present round."""
        return contributions_in_flight([state.tasks] if state.clock[0]["begun"] else [])

    def _draw(self, state: SamplingState, costs: Costs, limits: Limits) -> bool:
        """Begin a round; false if the limits allow none. With no client present, wait for one."""
        clock, tasks = state.clock[0], state.tasks
        if clock["dispatched"] >= limits.dispatch or clock["now_s"] > limits.dispatch_s:
            clock["busy"] = 0
            return False
        present = select_readers(state.absences, clock["now_s"], np.ones(len(tasks), np.bool_))
        if not present.any():
            clock["end_s"] = state.absences.until_s.min()
            return True
        scores = np.full(len(tasks), np.inf)
        lots(costs, present, clock["drawn"], scores)
        count = np.count_nonzero(present)
        clients = np.argsort(scores, kind="stable")[: min(self.sampled, count)]
        clock["drawn"] += 1
        clock["dispatched"] += 1
        clock["begun"], clock["round_s"] = 1, clock["now_s"]
        # In order of numbers: links serve messages of one instant in the order of the list.
        self._train(state, costs, np.sort(clients))
        self._end(state, costs)
        return True

    def _train(self, state: SamplingState, costs: Costs, clients: Any) -> None:
        """Compute the instants at which drawn clients have the model, compute and answer."""
        clock, tasks = state.clock[0], state.tasks
        tasks[:] = np.zeros((), TASK)
        mine = tasks[clients]
        mine["is_read"], mine["read_version"] = 1, clock["version"]
        mine["read_at_s"], mine["steps"] = clock["now_s"], self.every
        mine["first_step"] = state.steps[clients]
        state.steps[clients] += self.every
        (wiring,), size = state.wiring, costs.parameter_bytes
        sizes = float(size), float(wire_bytes(state.machine, size))
        prepare_s = state.machine.parallel.average_s + coding_s(state.machine, size)[0]
        traffic = new_traffic(wiring, 2 * len(clients))
        travel(costs, traffic, new_heap(len(clients)), mine, clients, len(tasks), sizes, prepare_s)
        tasks[clients] = mine

    def _end(self, state: SamplingState, costs: Costs) -> None:
        """Compute the end of the round, with the contributions that can still come."""
        clock, tasks = state.clock[0], state.tasks
        coming = np.flatnonzero(tasks["is_read"])
        order = coming[np.argsort(tasks["pushed_s"][coming], kind="stable")]
        order = order[: self.needed or len(order)]
        # Infinite marks contributions that will be dropped, until they are folded below.
        tasks["fetched_s"] = np.inf
        done_s = clock["now_s"] if len(order) == 0 else -math.inf
        fold_s = costs.fold_s + coding_s(state.machine, costs.parameter_bytes)[1]
        deadline_s = math.inf if self.deadline_s is None else clock["round_s"] + self.deadline_s
        for place, client in enumerate(order.tolist()):
            # The first contribution is folded even after the deadline: a round needs one.
            if place and tasks["pushed_s"][client] > deadline_s:
                done_s = max(done_s, deadline_s)
                break
            done_s = max(done_s, tasks["pushed_s"][client]) + fold_s
            tasks["fetched_s"][client] = done_s
        clock["end_s"] = max(done_s, clock["now_s"])

    def _strike(self, state: SamplingState, costs: Costs) -> Any:
        """Execute a fault; returns the client's task if it has not arrived: [L] of `LOST_TASK`."""
        clock, tasks = state.clock[0], state.tasks
        client = strike(state.absences, costs.faults, clock["now_s"])
        # A contribution that has arrived survives its client.
        busy = client >= 0 and clock["begun"] and tasks["is_read"][client]
        if not busy or tasks["pushed_s"][client] <= clock["now_s"]:
            return np.zeros(0, LOST_TASK)
        lost = np.array([(client, tasks[client].item())], LOST_TASK)
        tasks["is_read"][client] = 0
        self._end(state, costs)
        return lost

    def _fold(self, state: SamplingState) -> tuple[list[Any], Any]:
        """End the round: returns its tasks if there was a fold, and the dropped contributions."""
        clock, tasks = state.clock[0], state.tasks
        late = np.flatnonzero((tasks["is_read"] == 1) & np.isinf(tasks["fetched_s"]))
        given_up = np.zeros(len(late), LOST_TASK)
        given_up["worker"], given_up["task"] = late, tasks[late]
        tasks["is_read"][late] = 0
        tasks["fetched_s"] = np.where(tasks["is_read"], clock["now_s"], 0.0)  # one fold of them all
        clock["begun"], clock["end_s"] = 0, math.inf
        if not tasks["is_read"].any():  # no fold: the limits must not count this round
            clock["dispatched"] -= 1
            return [], given_up
        clock["version"] += 1
        return [tasks.copy()], given_up


MOST_ROWS = 1 << 18
"""Largest number of contributions recorded at a time, which limits memory with many clients."""


@kernel
def lots(costs: Costs, present: Any, number: int, scores: Any) -> None:
    """Draw a score for each present client; a round takes the clients with the smallest scores."""
    # By client and round: absences of other clients do not change a client's score.
    for client in range(len(present)):
        if present[client]:
            scores[client] = laws.uniforms(costs.sample_key, client, number, 0)[0]


@kernel
def travel(
    costs: Costs,
    traffic: Traffic,
    heap: Heap,
    tasks: Any,
    clients: Any,
    server: int,
    sizes: Any,
    prepare_s: float,
) -> None:
    """Send the model to K clients, compute, and send theirs back: all instants of the tasks.

    Args:
        costs: durations.
        traffic: an idle network for 2 K messages: K models, then K answers.
        heap: an empty heap for K events, the beginnings of messages.
        tasks: [K] of `TASK`, with ``read_at_s``, ``first_step`` and ``steps``.
        clients: [K] clients.
        server: the server's endpoint.
        sizes: bytes of a model and of an answer.
        prepare_s: seconds between a client's last minibatch and its answer.
    """
    # One run of the network for both directions: half-duplex links and a limited core carry both,
    # so an early client's answer delays a late client's model.
    for place in range(len(clients)):
        push(heap, tasks[place].read_at_s, 0, place)
    now_s, slot, departs = next_event(traffic, heap, -np.inf)
    while now_s < np.inf:
        arrival_s, arrives = now_s, departs
        place = slot % len(clients)
        if departs:
            arrival_s = now_s + traffic.flows[slot].latency_s
        else:
            source, target, size = server, clients[place], sizes[0]
            if slot >= len(clients):
                source, target, size = clients[place], server, sizes[1]
            if traffic.wiring.fair:
                start(traffic, slot, source, target, size, now_s)
            else:
                _, _, arrival_s = reserve(traffic, slot, source, target, size, now_s)
                arrives = True
        if arrives and slot >= len(clients):
            tasks[place].pushed_s = arrival_s
        elif arrives:
            tasks[place].start_s = arrival_s
            compute(costs, tasks[place], clients[place], prepare_s)
            push(heap, tasks[place].join_s, 0, len(clients) + place)
        now_s, slot, departs = next_event(traffic, heap, now_s)


@kernel
def compute(costs: Costs, task: Any, client: int, prepare_s: float) -> None:
    """Compute a client's minibatches from ``start_s`` on; sets their end and its answer's start."""
    time_s = task.start_s
    for step in range(task.first_step, task.first_step + task.steps):
        time_s += computation_s(costs, client, step)
    task.compute_end_s = time_s
    task.join_s = time_s + prepare_s
