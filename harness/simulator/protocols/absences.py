"""Absent workers and checkpoints, for protocols in rounds.

`Absences` tracks the workers that die and return, are preempted, or join late. An absent worker
takes part in no round and delays none. It takes part again in the first round that begins after its
return.

`Saving` tracks checkpoints and restarts, which cost time. With checkpoints no round begins without
a missing worker. After ``every_folds`` folds all workers pause until a checkpoint is written. When
a worker dies, the present round is lost, and so are all folds since the last complete checkpoint;
when all workers are present again, they restart from it. A death during the restart makes it start
over. A worker that is going to leave (it is preempted, or has notice of its death) causes a
checkpoint of the newest version, which counts if it is complete before the worker dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.simulator import faults
from harness.simulator.cluster import Checkpoints, Cluster
from harness.simulator.events import kernel, new_tournament, set_leaf
from harness.simulator.faults import Faults, away_s, instant_s
from harness.simulator.timeline import Restarts

NOBODY = -1

OF_WORKERS = ("death", "preemption", "late")


class Absences(NamedTuple):
    """State of the faults of workers; arrays are empty if the cluster has no faults.

    Attributes:
        begun: [1] whether the processes are scheduled.
        strikes: [2PN] tournament of the next strike of each process at each worker; of equal
            instants, the process that the file names first, then the worker of least number.
        occurrences: [P, N] number of strikes so far.
        until_s: [N] end of each worker's absence.
        leave_s: [N] duration of each worker's coming absence, after its contribution; 0 for none.
        size_bytes: [1] size of the present round's all-reduce.
        doom_s: [N] instant at which each worker with notice dies, unless it has left by then;
            infinity for the others; empty if there are no notices.
    """

    begun: Any
    strikes: Any
    occurrences: Any
    until_s: Any
    leave_s: Any
    size_bytes: Any
    doom_s: Any


def new_absences(cluster: Cluster, workers: int, protocol: str) -> Absences:
    """The initial state, with all workers present.

    Raises:
        UserError: a fault that does not concern workers.
    """
    _check(cluster, protocol)
    processes = len(cluster.faults)
    people = workers if processes else 0
    return Absences(
        begun=np.zeros(min(processes, 1), np.int64),
        strikes=new_tournament(processes * people),
        occurrences=np.zeros((processes, people), np.int64),
        until_s=np.full(people, -np.inf),
        leave_s=np.zeros(people),
        size_bytes=np.zeros(min(processes, 1)),
        doom_s=np.full(people if any(f.notice_s for f in cluster.faults) else 0, np.inf),
    )


def _check(cluster: Cluster, protocol: str) -> None:
    for place, fault in enumerate(cluster.faults):
        if fault.kind not in OF_WORKERS:
            raise UserError(
                f"faults[{place}].kind: {fault.kind!r} is not allowed with protocol {protocol!r};"
                f" allowed: {', '.join(OF_WORKERS)}"
            )


@kernel
def begin(absences: Absences, processes: Faults, now_s: float) -> None:
    """Schedule every process; workers that join late are absent until then."""
    absences.begun[0] = 1
    for process in range(len(processes.kind)):
        for worker in range(len(absences.until_s)):
            time_s = instant_s(processes, process, worker, 0, now_s)
            if processes.kind[process] != faults.LATE:
                expect(absences, process, worker, time_s)
            elif time_s < np.inf:
                absences.until_s[worker] = max(absences.until_s[worker], time_s)


@kernel
def expect(absences: Absences, process: int, worker: int, time_s: float) -> None:
    """Schedule a process's next strike at a worker, infinity for none."""
    # The leaf is the order at equal instants, too: processes as in the file, then workers.
    place = process * len(absences.until_s) + worker
    set_leaf(absences.strikes, place, time_s, place)


@kernel
def next_strike_s(absences: Absences) -> float:
    """Instant of the next fault, infinity if there is none."""
    first_s = absences.strikes[1].time_s if len(absences.strikes) > 0 else np.inf
    for worker in range(len(absences.doom_s)):
        first_s = min(first_s, absences.doom_s[worker])
    return first_s


@kernel
def first_of(absences: Absences, now_s: float) -> int:
    """The first due strike, in order of processes and workers.

    During a pause of all workers several instants may have passed; all are due then.
    """
    strikes, leaves = absences.strikes, len(absences.strikes) >> 1
    place = strikes[1].key
    # The tournament orders by time first, so overdue strikes are searched in order of leaves.
    if strikes[1].time_s < now_s:
        place = 0
        while strikes[leaves + place].time_s > now_s:
            place += 1
    return place


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
    place, people = first_of(absences, now_s), len(absences.until_s)
    process, worker = place // people, place % people
    down_s = away_s(processes, process, worker, absences.occurrences[process, worker])
    notice_s = processes.notice_s[process]
    dies = processes.kind[process] == faults.DEATH and absences.until_s[worker] < now_s
    if dies and notice_s > 0.0:
        dies = False
        if absences.doom_s[worker] == np.inf:  # else it already has notice of another death
            absences.doom_s[worker] = now_s + notice_s
            absences.leave_s[worker] = down_s
    elif dies:
        absences.until_s[worker] = now_s + down_s
        absences.leave_s[worker] = 0.0
        if len(absences.doom_s) > 0:
            absences.doom_s[worker] = np.inf
    elif absences.until_s[worker] < now_s:
        # A preemption: the worker leaves when it would read next (`select_readers`).
        absences.leave_s[worker] = max(absences.leave_s[worker], down_s)
    # The process rests until the absence that it caused is over, even if no worker was struck:
    # so its instants do not depend on the protocol.
    absences.occurrences[process, worker] += 1
    times, over_s = absences.occurrences[process, worker], now_s + notice_s + down_s
    expect(absences, process, worker, instant_s(processes, process, worker, times, over_s))
    return worker if dies else NOBODY


def select_readers(absences: Absences, now_s: float, due: Any) -> Any:
    """[N] whether each worker ``due`` to read is present; preempted workers leave now.

    A worker with notice leaves now, too, but its downtime counts from the announced death.
    """
    if len(absences.until_s) == 0:
        return due
    # A worker that leaves before its announced death escapes it.
    goes = due & (absences.leave_s > 0.0) & (absences.until_s <= now_s)
    from_s = np.full(len(goes), now_s)
    if len(absences.doom_s):
        from_s = np.where(np.isinf(absences.doom_s), now_s, absences.doom_s)
        absences.doom_s[goes] = np.inf
    absences.until_s[goes] = (from_s + absences.leave_s)[goes]
    absences.leave_s[goes] = 0.0
    return due & (absences.until_s <= now_s)


WELL, MISSED, RESTARTING = range(3)

SAVED = np.dtype(
    [(name, np.int64) for name in ("version", "step", "newest", "writing", "health")]
    + [("until_s", np.float64)]
)
"""Version and step of the last complete checkpoint, the newest version, whether a checkpoint is
being written, whether a worker is missing or all restart, and the end of the present pause."""


class Saving(NamedTuple):
    """State of the checkpoints.

    Attributes:
        saved: [1] of `SAVED`; empty without checkpoints.
    """

    saved: Any


def new_saving(checkpoints: Checkpoints | None) -> Saving:
    """The initial state; the initial model counts as a checkpoint."""
    return Saving(np.zeros(0 if checkpoints is None else 1, SAVED))


def on_fold(saving: Saving, rules: Checkpoints | None, version: int, now_s: float) -> None:
    """After a fold: start a checkpoint if one is due."""
    if rules is not None:
        saved = saving.saved[0]
        saved["newest"] = version
        if version - saved["version"] >= rules.every_folds:
            _write(saved, rules, now_s)


def fail(saving: Saving) -> None:
    """After a worker's death: discard a checkpoint that is being written."""
    saved = saving.saved[0]
    # Until 0 ends any pause, also that of a restart, which then starts over.
    saved["writing"], saved["until_s"], saved["health"] = 0, 0.0, MISSED


def pause_end_s(
    saving: Saving, rules: Checkpoints, absences: Absences, step: int, now_s: float
) -> float:
    """Instant at which a round may begin, or at which to ask again; ``now_s`` if it may begin.

    Args:
        saving: state of the checkpoints, changed in place.
        rules: the cluster's checkpoints.
        absences: state of the faults.
        step: number of minibatches handed to each worker so far.
        now_s: the present time.
    """
    saved = saving.saved[0]
    if saved["until_s"] > now_s:
        return float(saved["until_s"])
    if saved["writing"]:  # the pause is over, so the checkpoint is complete
        saved["version"], saved["step"], saved["writing"] = saved["newest"], step, 0
    back_s = float(absences.until_s.max(initial=-np.inf))
    if back_s > now_s:
        return back_s
    if saved["health"] == MISSED:  # all are present again: restart
        saved["health"], saved["until_s"] = RESTARTING, now_s + rules.restart_s
    elif saved["health"] == RESTARTING:
        return now_s  # with what is saved, whichever worker is going to leave
    elif absences.leave_s.max(initial=0.0) > 0.0 and saved["newest"] > saved["version"]:
        _write(saved, rules, now_s)
    else:
        return now_s
    # A pause of no time is over at once.
    return pause_end_s(saving, rules, absences, step, now_s)


def finish_restart(saving: Saving, now_s: float) -> tuple[Restarts, int] | None:
    """The restart that ends now and the step to continue from; None if no restart ends now."""
    saved = saving.saved[0]
    if saved["health"] != RESTARTING or saved["until_s"] > now_s:
        return None
    newest, restored = saved["newest"].reshape(1).copy(), saved["version"].reshape(1).copy()
    # Version numbers continue: the newest version now has the saved model.
    saved["health"], saved["version"] = WELL, saved["newest"]
    return Restarts(np.array([now_s]), newest, restored), int(saved["step"])


def concat_restarts(rows: Sequence[Restarts]) -> Restarts:
    """Concatenate the restarts of one segment."""
    columns = ("time_s", "version", "restored_version")
    if not rows:
        return Restarts()
    return Restarts(*(np.concatenate([getattr(row, name) for row in rows]) for name in columns))


def _write(saved: Any, rules: Checkpoints, now_s: float) -> None:
    saved["writing"], saved["until_s"] = 1, now_s + rules.write_s
