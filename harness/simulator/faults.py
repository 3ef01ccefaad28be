"""Faults as seeded processes, one for each `[[faults]]` table of a cluster file.

A process that concerns workers runs independently for each of them. Its instants are listed, or
random: from the end of one occurrence to the next passes an exponential time with the table's
mean, drawn from a stream of the process, the worker and the occurrence. So faults happen at the
same instants under every protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness.base.settings import GREATEST_DURATION_S, Spec, duration, setting
from harness.simulator import laws
from harness.simulator.events import kernel

KINDS = ("death", "preemption", "late", "message", "server")
DEATH, PREEMPTION, LATE, MESSAGE, SERVER = range(5)
DOWN_LAWS = tuple(law for law in laws.LAW_CODES if law != "empirical")
_MOST_WORKERS = 10_000_000


def _interval() -> Any:
    """Seconds between two occurrences; not so short that nothing else could happen."""
    return setting(None, at_least=1e-6, at_most=GREATEST_DURATION_S)


@dataclass(frozen=True)
class Fault(Spec):
    """One fault process.

    Attributes:
        kind: kind of fault: ``death``, a worker fails at once and loses the contributions that have
            not arrived; ``preemption``, a worker finishes its contribution and then leaves;
            ``late``, a worker is absent at the start; ``message``, a contribution on its way to the
            server is lost and sent again; ``server``, the server fails, loses its queue,
            and restarts from its last checkpoint.
        workers: numbers of the affected workers; without it, all.
        mean_s: mean time from the end of one occurrence to the next.
        at_s: instants of the occurrences, instead of ``mean_s``; for ``late``, the instant when the
            workers join.
        down_s: mean downtime of the worker or server; without it, a worker leaves permanently.
        probability: probability that a message is lost, each time it is sent.
        retry_s: time from the loss of a message until it is sent again.
        checkpoint_s: interval between checkpoints of the server, which take no time.
        down_law: distribution of the downtime.
        down_cv: standard deviation of the downtime over its mean; unused by ``constant``.
        notice_s: time between the notice of a death and the death. ``mean_s`` or ``at_s`` then
            determine the notice, and ``down_s`` counts from the death.
    """

    kind: str = setting(one_of=KINDS)
    workers: tuple[int, ...] = setting((), at_least=0, at_most=_MOST_WORKERS)
    mean_s: float | None = _interval()
    at_s: tuple[float, ...] = duration(())
    down_s: float | None = duration(None)
    probability: float = setting(0.0, at_least=0.0, at_most=0.99)
    retry_s: float | None = _interval()
    checkpoint_s: float | None = _interval()
    down_law: str = setting("constant", one_of=DOWN_LAWS)
    down_cv: float = setting(1.0, at_least=0.0, at_most=100.0)
    notice_s: float = duration()

    def trouble(self) -> tuple[str, str] | None:
        """Each kind needs its own keys."""
        if self.kind == "message":
            missing = self.retry_s is None
            return ("retry_s", "missing; needed where kind is 'message'") if missing else None
        if (self.mean_s is None) == (not self.at_s):
            return "mean_s", "exactly one of mean_s and at_s is needed"
        if list(self.at_s) != sorted(self.at_s):
            return "at_s", "instants must be in order of time"
        if self.kind == "late" and len(self.at_s) != 1:
            return "at_s", "one instant is needed where kind is 'late'"
        if self.kind == "server" and self.checkpoint_s is None:
            return "checkpoint_s", "missing; needed where kind is 'server'"
        if self.kind in ("server", "preemption") and self.down_s is None:
            return "down_s", f"missing; needed where kind is {self.kind!r}"
        if self.notice_s > 0.0 and self.kind != "death":
            return "notice_s", f"not allowed where kind is {self.kind!r}; allowed: with 'death'"
        if self.down_law == "shifted-exponential" and self.down_cv > 1.0:
            return "down_cv", f"{self.down_cv!r} is not allowed with that law; allowed: at most 1"
        return None


class Faults(NamedTuple):
    """All fault processes of a cluster, as arguments of a kernel.

    Attributes:
        kind, mean_s, down_s: [P] of each process; a mean of 0 means listed instants,
            an infinite time down means no return.
        happens: [P, N] whether the process happens to the worker (for the server: worker 0).
        at_s: [P, A] listed instants, infinite where there are fewer.
        key: of the instants' random stream.
        message_key: of the losses of messages.
        probability, retry_s: of messages.
        checkpoint_s: infinite where the server takes none.
        down_law, down_cv: [P] law of the time down.
        down_key: of its random stream.
        notice_s: [P] time from a notice to the worker's death.
    """

    kind: Any
    mean_s: Any
    down_s: Any
    happens: Any
    at_s: Any
    key: Any
    message_key: Any
    probability: float
    retry_s: float
    checkpoint_s: float
    down_law: Any
    down_cv: Any
    down_key: Any
    notice_s: Any


NEVER_AWAY = Fault("death", at_s=(0.0,))


def faults_of(faults: Sequence[Fault], workers: int, seed: int) -> Faults:
    """The processes of the first ``workers`` workers under a seed."""
    timed = [fault for fault in faults if fault.kind != "message"]
    messages = [fault for fault in faults if fault.kind == "message"]
    happens = np.zeros((len(timed), workers if timed else 0), np.bool_)
    # The last column of instants stays infinite: a process without further instants reads it.
    at_s = np.full((len(timed), max((len(f.at_s) for f in timed), default=0) + 1), math.inf)
    for place, fault in enumerate(timed):
        crew = [0] if fault.kind == "server" else list(fault.workers) or slice(None)
        happens[place, [w for w in crew if w < workers] if isinstance(crew, list) else crew] = 1
        at_s[place, : len(fault.at_s)] = fault.at_s
    away = [fault if fault.kind != "late" else NEVER_AWAY for fault in timed]
    downs = [math.inf if fault.down_s is None else fault.down_s for fault in away]
    laws_down = [fault.down_law if fault.down_s else "constant" for fault in away]
    varies = [law != "constant" for law in laws_down]
    return Faults(
        kind=np.array([KINDS.index(fault.kind) for fault in timed], np.int64),
        mean_s=np.array([fault.mean_s or 0.0 for fault in timed]),
        down_s=np.array(downs),
        happens=happens,
        at_s=at_s,
        key=laws.purpose_key(seed, "fault"),
        message_key=laws.purpose_key(seed, "message"),
        probability=1.0 - math.prod(1.0 - fault.probability for fault in messages),
        retry_s=max((fault.retry_s or 0.0 for fault in messages), default=0.0),
        checkpoint_s=min(
            (f.checkpoint_s or math.inf for f in timed if f.kind == "server"), default=math.inf
        ),
        down_law=np.array([laws.LAW_CODES[law] for law in laws_down], np.int64),
        down_cv=np.array([f.down_cv if v else 0.0 for f, v in zip(away, varies, strict=True)]),
        down_key=laws.purpose_key(seed, "down"),
        notice_s=np.array([fault.notice_s for fault in away]),
    )


@kernel
def instant_s(faults: Faults, process: int, worker: int, occurrence: int, over_s: float) -> float:
    """Instant of the next occurrence of a process at a worker, infinity if there is none.

    Args:
        faults: all processes.
        process: index of the process.
        worker: index of the worker; 0 for the server.
        occurrence: number of earlier occurrences.
        over_s: end of the last occurrence, its absence included.
    """
    if not faults.happens[process, worker]:
        return np.inf
    if faults.mean_s[process] == 0.0:
        return faults.at_s[process, min(occurrence, faults.at_s.shape[1] - 1)]
    u = laws.uniforms(faults.key, worker, occurrence, process)[0]
    return over_s - faults.mean_s[process] * np.log(u)


@kernel
def away_s(faults: Faults, process: int, worker: int, occurrence: int) -> float:
    """Seconds for which an occurrence of a process removes a worker, or the server."""
    down_s, law = faults.down_s[process], faults.down_law[process]
    if law == laws.CONSTANT or down_s == np.inf:
        return down_s
    # A law takes several draws of one step, so processes must differ in their steps.
    number = occurrence * len(faults.kind) + process
    return down_s * laws.draw_factor(faults.down_key, worker, number, law, faults.down_cv[process])


@kernel
def count_faults(faults: Faults, until_s: float) -> int:
    """Number of faults until an instant, lost messages left out; a late worker is one."""
    count = 0
    for process in range(faults.happens.shape[0]):
        for worker in range(faults.happens.shape[1]):
            times, time_s = 0, instant_s(faults, process, worker, 0, 0.0)
            if faults.kind[process] == LATE:
                count += time_s < np.inf
            while time_s <= until_s and faults.kind[process] != LATE:
                over_s = time_s + faults.notice_s[process] + away_s(faults, process, worker, times)
                times += 1
                time_s = instant_s(faults, process, worker, times, over_s)
            count += times
    return count
