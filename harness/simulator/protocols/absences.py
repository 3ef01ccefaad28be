"""Workers that are absent from rounds, and checkpoints that bring them back.

Which workers are present: some die and return, are preempted, or join late. For protocols in which
workers wait for each other. An absent worker takes part in no round and delays none. It takes part
again in the first round that begins after its return.

Checkpoints of training in rounds, and restarts from them, which cost time. With checkpoints nobody
goes on without a worker that is gone. After every so many folds all stand still until a checkpoint
is written. When a worker dies, the present round is lost, and so are all folds since the last
checkpoint that is complete; when everybody is there again, or has been replaced, they restart from
it, which takes time too. A death during the restart begins it anew. A worker that is going to
leave (it is preempted, or has been told of its death) leaves behind a checkpoint of the newest
version, if that is written before it dies.
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

__all__ = [
    "NOBODY",
    "Absences",
    "Saving",
    "begin",
    "concat_restarts",
    "fail",
    "finish_restart",
    "new_absences",
    "new_saving",
    "next_strike_s",
    "on_fold",
    "pause_end_s",
    "select_readers",
    "strike",
]

NOBODY = -1

OF_WORKERS = ("death", "preemption", "late")


class Absences(NamedTuple):
    """Where faults stand; arrays without entries where the cluster has none.

    Attributes:
        begun: [1] whether the processes are scheduled.
        strikes: [2PN] tournament of when each process strikes each worker the next time; of
            one instant the process that the file names first, then the worker of least number.
        occurrences: [P, N] how often it has.
        until_s: [N] until when each worker is away.
        leave_s: [N] how long it will be away after what it is doing; 0 if it need not go.
        size_bytes: [1] what the present round's all-reduce was begun with.
        doom_s: [N] when each worker that has been told of its death dies, unless it has left by
            then; infinity for the others; empty where nobody is told.
    """

    begun: Any
    strikes: Any
    occurrences: Any
    until_s: Any
    leave_s: Any
    size_bytes: Any
    doom_s: Any


def new_absences(cluster: Cluster, workers: int, protocol: str) -> Absences:
    """Everybody is there.

    Raises:
        UserError: a fault that does not happen to workers.
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
    """Schedule every process; who joins late is away until then."""
    absences.begun[0] = 1
    for process in range(len(processes.kind)):
        for who in range(len(absences.until_s)):
            time_s = instant_s(processes, process, who, 0, now_s)
            if processes.kind[process] != faults.LATE:
                expect(absences, process, who, time_s)
            elif time_s < np.inf:
                absences.until_s[who] = max(absences.until_s[who], time_s)


@kernel
def expect(absences: Absences, process: int, who: int, time_s: float) -> None:
    """A process strikes a worker the next time at an instant, infinity if never."""
    place = process * len(absences.until_s) + who
    set_leaf(absences.strikes, place, time_s, place)


@kernel
def next_strike_s(absences: Absences) -> float:
    """When the next fault strikes, infinity if none does."""
    first_s = absences.strikes[1].time_s if len(absences.strikes) > 0 else np.inf
    for who in range(len(absences.doom_s)):
        first_s = min(first_s, absences.doom_s[who])
    return first_s


@kernel
def first_of(absences: Absences, now_s: float) -> int:
    """The first in order of processes and workers of what is due at this instant.

    While all stood still several instants may have passed: then all are gone through.
    """
    strikes, leaves = absences.strikes, len(absences.strikes) >> 1
    place = strikes[1].key
    if strikes[1].time_s < now_s:
        place = 0
        while strikes[leaves + place].time_s > now_s:
            place += 1
    return place


@kernel
def strike(absences: Absences, processes: Faults, now_s: float) -> int:
    """Let the fault of this instant happen; of several, the one that the file names first.

    A worker that is absent, even if it returns at this instant, is not struck.

    Returns:
        The worker that dies, or `NOBODY`.
    """
    for doomed in range(len(absences.doom_s)):
        if absences.doom_s[doomed] <= now_s:
            absences.doom_s[doomed] = np.inf
            absences.until_s[doomed] = now_s + absences.leave_s[doomed]
            absences.leave_s[doomed] = 0.0
            return doomed
    place, people = first_of(absences, now_s), len(absences.until_s)
    process, who = place // people, place % people
    down_s = away_s(processes, process, who, absences.occurrences[process, who])
    notice_s = processes.notice_s[process]
    dies = processes.kind[process] == faults.DEATH and absences.until_s[who] < now_s
    if dies and notice_s > 0.0:
        dies = False
        if absences.doom_s[who] == np.inf:  # else it has been told of another death
            absences.doom_s[who] = now_s + notice_s
            absences.leave_s[who] = down_s
    elif dies:
        absences.until_s[who] = now_s + down_s
        absences.leave_s[who] = 0.0
        if len(absences.doom_s) > 0:
            absences.doom_s[who] = np.inf
    elif absences.until_s[who] < now_s:
        absences.leave_s[who] = max(absences.leave_s[who], down_s)
    absences.occurrences[process, who] += 1
    times, over_s = absences.occurrences[process, who], now_s + notice_s + down_s
    expect(absences, process, who, instant_s(processes, process, who, times, over_s))
    return who if dies else NOBODY


def select_readers(absences: Absences, now_s: float, due: Any) -> Any:
    """[N] which of the workers that are ``due`` to read are there; preempted ones go now."""
    if len(absences.until_s) == 0:
        return due
    goes = due & (absences.leave_s > 0.0) & (absences.until_s <= now_s)
    absences.until_s[goes] = now_s + absences.leave_s[goes]
    absences.leave_s[goes] = 0.0
    if len(absences.doom_s):
        absences.doom_s[goes] = np.inf
    return due & (absences.until_s <= now_s)


WELL, MISSED, RESTARTING = range(3)

SAVED = np.dtype(
    [(name, np.int64) for name in ("version", "step", "newest", "writing", "health")]
    + [("until_s", np.float64)]
)
"""The version and the step of the last complete checkpoint, the newest version, whether one is
being written, whether anybody is missing or all restart, and until when all stand still."""


class Saving(NamedTuple):
    """Where checkpoints stand.

    Attributes:
        saved: [1] of `SAVED`; empty where there are no checkpoints.
    """

    saved: Any


def new_saving(checkpoints: Checkpoints | None) -> Saving:
    """The initial model is a checkpoint."""
    return Saving(np.zeros(0 if checkpoints is None else 1, SAVED))


def on_fold(saving: Saving, rules: Checkpoints | None, version: int, now_s: float) -> None:
    """A fold is complete: write a checkpoint if one is due."""
    if rules is not None:
        saved = saving.saved[0]
        saved["newest"] = version
        if version - saved["version"] >= rules.every_folds:
            _write(saved, rules, now_s)


def fail(saving: Saving) -> None:
    """A worker is missing: a checkpoint that was being written is none."""
    saved = saving.saved[0]
    saved["writing"], saved["until_s"], saved["health"] = 0, 0.0, MISSED


def pause_end_s(
    saving: Saving, rules: Checkpoints, absences: Absences, step: int, now_s: float
) -> float:
    """Before a round: when more is known of whether it may begin; now if it may.

    Args:
        saving: where checkpoints stand.
        rules: what they cost.
        absences: who is away, or about to leave.
        step: minibatches each worker has been handed.
        now_s: the present time.
    """
    saved = saving.saved[0]
    if saved["until_s"] > now_s:
        return float(saved["until_s"])
    if saved["writing"]:
        saved["version"], saved["step"], saved["writing"] = saved["newest"], step, 0
    back_s = float(absences.until_s.max(initial=-np.inf))
    if back_s > now_s:
        return back_s
    if saved["health"] == MISSED:
        saved["health"], saved["until_s"] = RESTARTING, now_s + rules.restart_s
    elif saved["health"] == RESTARTING:
        return now_s  # with what is saved, whoever is going to leave
    elif absences.leave_s.max(initial=0.0) > 0.0 and saved["newest"] > saved["version"]:
        _write(saved, rules, now_s)
    else:
        return now_s
    # what takes no time is over at once
    return pause_end_s(saving, rules, absences, step, now_s)


def finish_restart(saving: Saving, now_s: float) -> tuple[Restarts, int] | None:
    """Once everybody has restarted: what that undid, and the step to go on from."""
    saved = saving.saved[0]
    if saved["health"] != RESTARTING or saved["until_s"] > now_s:
        return None
    newest, restored = saved["newest"].reshape(1).copy(), saved["version"].reshape(1).copy()
    # the newest version is now what was saved
    saved["health"], saved["version"] = WELL, saved["newest"]
    return Restarts(np.array([now_s]), newest, restored), int(saved["step"])


def concat_restarts(rows: Sequence[Restarts]) -> Restarts:
    """Restarts of one segment."""
    columns = ("time_s", "version", "restored_version")
    if not rows:
        return Restarts()
    return Restarts(*(np.concatenate([getattr(row, name) for row in rows]) for name in columns))


def _write(saved: Any, rules: Checkpoints, now_s: float) -> None:
    saved["writing"], saved["until_s"] = 1, now_s + rules.write_s
