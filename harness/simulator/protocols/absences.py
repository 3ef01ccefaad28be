"""Absent workers, for protocols in rounds.

`Absences` tracks the workers that die and return, are preempted, or join late. An absent worker
takes part in no round and delays none. It takes part again in the first round that begins after its
return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.simulator.cluster import Cluster
from harness.simulator.costs import DEATH, LATE, Faults, away_s, instant_s
from harness.simulator.events import kernel, new_tournament, set_leaf

NOBODY = -1

OF_WORKERS = ("death", "preemption", "late")


class Absences(NamedTuple):
    """State of the faults of workers.

    Attributes:
        begun: [1] whether the processes are scheduled.
        strikes: [2PN] tournament of the next strike of each process at each worker; of equal
            instants, the process that the file names first, then the worker of least number.
        occurrences: [P, N] number of strikes so far.
        until_s: [N] end of each worker's absence.
        leave_s: [N] duration of each worker's coming absence, after its contribution; 0 for none.
        doom_s: [N] instant at which each worker with notice dies, unless it has left by then;
            infinity for the others.
    """

    begun: Any
    strikes: Any
    occurrences: Any
    until_s: Any
    leave_s: Any
    doom_s: Any


def check_faults(cluster: Cluster, protocol: str, kinds: Sequence[str]) -> None:
    """Raise UserError for a fault of another kind than a protocol simulates."""
    for place, fault in enumerate(cluster.faults):
        if fault.kind not in kinds:
            raise UserError(
                f"faults[{place}].kind: {fault.kind!r} is not allowed with protocol {protocol!r};"
                f" allowed: {', '.join(kinds)}"
            )


def new_absences(cluster: Cluster, workers: int, protocol: str) -> Absences:
    """The initial state, with all workers present.

    Raises:
        UserError: a fault that does not concern workers.
    """
    check_faults(cluster, protocol, OF_WORKERS)
    return Absences(
        begun=np.zeros(1, np.int64),
        # Without faults, one empty leaf: kernels always look at the first event.
        strikes=new_tournament(max(len(cluster.faults) * workers, 1)),
        occurrences=np.zeros((len(cluster.faults), workers), np.int64),
        until_s=np.full(workers, -np.inf),
        leave_s=np.zeros(workers),
        doom_s=np.full(workers, np.inf),
    )


@kernel
def begin(absences: Absences, processes: Faults, now_s: float) -> None:
    """Schedule every process, once; workers that join late are absent until then."""
    if absences.begun[0]:
        return
    absences.begun[0] = 1
    people = len(absences.until_s)
    for process in range(len(processes.kind)):
        for worker in range(people):
            time_s = instant_s(processes, process, worker, 0, now_s)
            if processes.kind[process] != LATE:
                # The leaf is the order at equal instants, too: processes as in the file, then
                # workers.
                place = process * people + worker
                set_leaf(absences.strikes, place, time_s, place)
            elif time_s < np.inf:
                absences.until_s[worker] = max(absences.until_s[worker], time_s)


@kernel
def next_strike_s(absences: Absences) -> float:
    """Instant of the next fault, infinity if there is none."""
    first_s = absences.strikes[1].time_s
    for worker in range(len(absences.doom_s)):
        first_s = min(first_s, absences.doom_s[worker])
    return first_s


@kernel
def strike(absences: Absences, processes: Faults, now_s: float) -> int:
    """Execute the fault of this instant; of several, the one that the file names first.

    A worker that is absent, even if it returns at this instant, is not struck.

    Returns:
        The worker that dies, or `NOBODY`.
    """
    # Deaths with earlier notice come before new strikes at this instant.
    for doomed in range(len(absences.doom_s)):
        if absences.doom_s[doomed] <= now_s:
            absences.doom_s[doomed] = np.inf
            absences.until_s[doomed] = now_s + absences.leave_s[doomed]
            absences.leave_s[doomed] = 0.0
            return doomed
    strikes, people = absences.strikes, len(absences.until_s)
    place = strikes[1].key
    if strikes[1].time_s < now_s:
        # After a pause of all workers strikes of several instants are due, and the tournament
        # orders by time first: they are searched in order of leaves.
        place = 0
        while strikes[(len(strikes) >> 1) + place].time_s > now_s:
            place += 1
    process, worker = place // people, place % people
    down_s = away_s(processes, process, worker, absences.occurrences[process, worker])
    notice_s = processes.notice_s[process]
    is_present = absences.until_s[worker] < now_s
    dies = is_present and processes.kind[process] == DEATH and notice_s == 0.0
    if dies:
        absences.until_s[worker] = now_s + down_s
        absences.leave_s[worker] = 0.0
        absences.doom_s[worker] = np.inf
    elif is_present and notice_s == 0.0:
        # A preemption: the worker leaves when it would read next (`select_readers`).
        absences.leave_s[worker] = max(absences.leave_s[worker], down_s)
    elif is_present and absences.doom_s[worker] == np.inf:  # else it has notice of another death
        absences.doom_s[worker] = now_s + notice_s
        absences.leave_s[worker] = down_s
    # The process rests until the absence that it caused is over, even if no worker was struck:
    # so its instants do not depend on the protocol.
    absences.occurrences[process, worker] += 1
    times, over_s = absences.occurrences[process, worker], now_s + notice_s + down_s
    set_leaf(strikes, place, instant_s(processes, process, worker, times, over_s), place)
    return worker if dies else NOBODY


@kernel
def select_readers(absences: Absences, now_s: float, due: Any) -> None:
    """Of the workers that are ``due`` [N] to read, keep those that are present.

    A preempted worker leaves now. One with notice leaves now, too, but its downtime counts from the
    announced death.
    """
    until_s, leave_s, doom_s = absences.until_s, absences.leave_s, absences.doom_s
    for worker in range(len(due)):
        if due[worker] and leave_s[worker] > 0.0 and until_s[worker] <= now_s:
            # A worker that leaves before its announced death escapes it.
            from_s = doom_s[worker] if doom_s[worker] < np.inf else now_s
            until_s[worker] = from_s + leave_s[worker]
            leave_s[worker], doom_s[worker] = 0.0, np.inf
        due[worker] = due[worker] and until_s[worker] <= now_s
