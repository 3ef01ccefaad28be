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
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, own_links, uniforms
from harness.simulator.events import Agenda, kernel, new_agenda, set_event
from harness.simulator.network import Level, Traffic, Wiring, new_traffic, next_event, send, wire
from harness.simulator.protocols import rounds
from harness.simulator.protocols.absences import Absences, new_absences, select_readers
from harness.simulator.protocols.all_reduce import coding_s, network_of, wire_bytes
from harness.simulator.protocols.contract import Limits
from harness.simulator.protocols.record import Stage
from harness.simulator.protocols.rounds import InRounds, Record
from harness.simulator.timeline import IN_FLIGHT

CLOCK = np.dtype([*rounds.ROUND_FIELDS, ("drawn", np.int64), ("round_s", np.float64)])
"""Besides the fields of all rounds: number of rounds drawn, and beginning of the present one."""


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
class ClientSampling(Spec, InRounds):
    """Timing of federated averaging; training is with all clients instead, by ``"fedavg:N"``.

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
    stages = (
        Stage("fetch", "read_at_s", "start_s"),
        Stage("compute", "start_s", "compute_end_s"),
        Stage(rounds.AVERAGE, "compute_end_s", "join_s"),
        Stage("push", "join_s", "pushed_s"),
    )

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
            tasks=rounds.new_tasks(workers),
            steps=np.zeros(workers, np.int64),
            absences=new_absences(cluster, workers, self.name),
            machine=cluster,
            wiring=[wire(joined, workers, 1, own_links(cluster, workers))],
        )

    def on_reads(self, state: SamplingState, costs: Costs, limits: Limits, record: Record) -> bool:
        """Draw clients for a round, if none has begun and any is present."""
        clock, tasks = state.clock[0], state.tasks
        if clock["begun"]:
            return True
        if clock["dispatched"] >= limits.dispatch or clock["now_s"] > limits.dispatch_s:
            clock["busy"] = 0
            return False
        present = np.ones(len(tasks), np.bool_)
        select_readers(state.absences, clock["now_s"], present)
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
        self._end_round(state, costs)
        return True

    def _train(self, state: SamplingState, costs: Costs, clients: Any) -> None:
        """Compute the instants at which drawn clients have the model, compute and answer."""
        clock, tasks = state.clock[0], state.tasks
        tasks["is_read"][clients], tasks["fold"][clients] = 1, IN_FLIGHT
        tasks["read_version"][clients] = clock["version"]
        tasks["read_at_s"][clients] = clock["now_s"]
        tasks["steps"][clients], tasks["first_step"][clients] = self.every, state.steps[clients]
        state.steps[clients] += self.every
        (wiring,), size = state.wiring, costs.parameter_bytes
        sizes = float(size), float(wire_bytes(state.machine, size))
        prepare_s = state.machine.parallel.average_s + coding_s(state.machine, size)[0]
        traffic, mine = new_traffic(wiring, 2 * len(clients)), tasks[clients]
        travel(costs, traffic, new_agenda(2 * len(clients)), mine, sizes, prepare_s)
        tasks[clients] = mine

    def _end_round(self, state: SamplingState, costs: Costs) -> None:
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

    def on_death(self, state: SamplingState, costs: Costs, worker: int, record: Record) -> None:
        """Lose the client's contribution, unless that has arrived."""
        clock, task = state.clock[0], state.tasks[worker]
        if clock["begun"] and task["is_read"] and task["pushed_s"] > clock["now_s"]:
            record.lose(state.tasks, [worker])
            self._end_round(state, costs)


@kernel
def lots(costs: Costs, present: Any, number: int, scores: Any) -> None:
    """Draw a score for each present client; a round takes the clients with the smallest scores."""
    # By client and round: absences of other clients do not change a client's score.
    for client in range(len(present)):
        if present[client]:
            scores[client] = uniforms(costs.sample_key, client, number, 0)[0]


@kernel
def travel(
    costs: Costs, traffic: Traffic, agenda: Agenda, tasks: Any, sizes: Any, prepare_s: float
) -> None:
    """Send the model to K clients, compute, and send theirs back: all instants of the tasks.

    Args:
        costs: durations.
        traffic: an idle network for 2 K messages: K models, then K answers.
        agenda: an empty agenda of 2 K owners, the beginnings of these messages.
        tasks: [K] of `TASK`, with ``worker``, ``read_at_s``, ``first_step`` and ``steps``.
        sizes: bytes of a model and of an answer.
        prepare_s: seconds between a client's last minibatch and its answer.
    """
    # One run of the network for both directions: half-duplex links and a limited core carry both,
    # so an early client's answer delays a late client's model.
    clients, server = len(tasks), traffic.wiring.workers
    for place in range(clients):
        set_event(agenda, place, tasks[place].read_at_s)
    now_s, slot, arrives_s = next_event(traffic, agenda, -np.inf)
    while now_s < np.inf:
        place = slot % clients
        if arrives_s == np.inf:  # the message begins now
            source, target, size = server, tasks[place].worker, sizes[0]
            if slot >= clients:
                source, target, size = tasks[place].worker, server, sizes[1]
            arrives_s = send(traffic, slot, source, target, size, now_s)[2]
        if arrives_s < np.inf and slot >= clients:
            tasks[place].pushed_s = arrives_s
        elif arrives_s < np.inf:
            tasks[place].start_s = arrives_s
            rounds.compute(costs, tasks[place], 1.0)
            tasks[place].join_s = tasks[place].compute_end_s + prepare_s
            set_event(agenda, clients + place, tasks[place].join_s)
        now_s, slot, arrives_s = next_event(traffic, agenda, now_s)
