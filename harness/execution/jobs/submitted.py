"""The runs of a grid as jobs that somebody else carries (`carriers`), one run or several a job.

A run writes to the store as in any process, and what is checkpointed survives its job. A job
that is lost (its node failed, it was preempted or ran out of time) is submitted again, and no other
is disturbed; what it had finished is found in the store. A job that raises something would raise it
again: it ends the grid in a line.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from subprocess import SubprocessError
from typing import TypeVar

from harness.base.errors import ProcessDied, UserError
from harness.execution.jobs.carriers import Carrier, Job

POLL_S = 1.0
ATTEMPTS = 4
"""Jobs that the same tasks lose without having gone further before they are given up."""
LEAVES = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""What batch systems say shortly before they end a job."""

_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit)(:|$)")

Task = TypeVar("Task")
Names = tuple[str, ...]
"""The tasks of one job."""


class _Leaves(BaseException):
    """A job has to end soon; nothing in it may take that for an error."""


class _Lost(Exception):  # noqa: N818 (what happened)
    """A job ended without an answer: cancelled, out of time or of memory."""


@dataclass(frozen=True)
class Submission:
    """What ``--submit`` and ``--runs-per-job`` ask for.

    Args:
        where: see `carriers`.
        runs_a_job: executed one after the other by each job.
    """

    where: str
    runs_a_job: int = 1


def submit(
    tasks: Mapping[str, Task],
    work: Callable[[Task], object],
    carried: Carrier,
    finish: Callable[[str], None],
    end_s: float,
    runs_a_job: int = 1,
    reached: Callable[[str], float] = lambda name: 0.0,
) -> None:
    """Have every task done by some job.

    Tasks whose job is lost have another, after those that still wait, until `ATTEMPTS` jobs have
    brought none of them further.

    Args:
        tasks: by name, in the order in which they are begun.
        work: what is done with each.
        carried: who does it.
        finish: told of each task that is done.
        end_s: `time.monotonic` at which to stop.
        runs_a_job: tasks of one job.
        reached: how far a task is, more for further.

    Raises:
        UserError: a job met bad input, or raised something else.
        ProcessDied: some tasks lost all their jobs; the others are done, all checkpoints kept.
        KeyboardInterrupt: the budget is spent, or the user stopped; jobs are cancelled.
    """
    waiting, losses = deque(dealt(list(tasks), runs_a_job)), _Losses(reached)
    running: dict[Names, Job] = {}
    try:
        while waiting or running:
            if time.monotonic() > end_s:
                raise KeyboardInterrupt("the budget is spent")
            free = min(len(waiting), carried.at_once - len(running))
            fresh = [waiting.popleft() for _ in range(free)]
            handed = [[tasks[name] for name in names] for names in fresh]
            started = carried.start(partial(answered, work), handed) if fresh else ()
            running.update(zip(fresh, started, strict=True))
            for names in [names for names, job in running.items() if job.done()]:
                try:
                    _check_answer(running.pop(names), carried)
                except _Lost:
                    waiting.extend([names] if losses.worth_another(names) else [])
                    continue
                for name in names:
                    finish(name)
            time.sleep(POLL_S)
    finally:
        for job in running.values():
            with suppress(OSError, SubprocessError):  # scancel knows it no more
                job.cancel()
        carried.close()
    if losses.given_up:
        told = (
            f"{len(losses.given_up)} of {len(tasks)} runs lost {ATTEMPTS} jobs each, none further"
        )
        raise ProcessDied(told)


class _Losses:
    """Which tasks have lost how many jobs since they last went further.

    Args:
        reached: how far a task is.

    Attributes:
        given_up: names of tasks.
    """

    def __init__(self, reached: Callable[[str], float]) -> None:
        self._reached, self._furthest = reached, dict[str, float]()
        self._lost, self.given_up = Counter[Names](), list[str]()

    def worth_another(self, names: Names) -> bool:
        """Whether the tasks of a job that was lost have another."""
        now = {name: self._reached(name) for name in names}
        moved = any(place > self._furthest.get(name, 0.0) for name, place in now.items())
        self._furthest |= now
        self._lost[names] = 0 if moved else self._lost[names] + 1
        if self._lost[names] < ATTEMPTS:
            return True
        self.given_up.extend(names)
        return False


def dealt(names: Sequence[str], each: int) -> list[Names]:
    """Names in jobs of so many, dealt like cards: the first job has the first, not the longest.

    Example:
        >>> dealt(["a", "b", "c", "d", "e"], 2)
        [('a', 'd'), ('b', 'e'), ('c',)]
    """
    jobs = -(-len(names) // each)
    return [tuple(names[at::jobs]) for at in range(jobs)]


def answered(work: Callable[[Task], object], tasks: Sequence[Task]) -> str | None:
    """What a job sends back: nothing, or the line for the user; None if it had to end early."""
    try:
        with _leaving_in_time():
            for task in tasks:
                work(task)
    except UserError as error:
        return str(error)
    except _Leaves:
        return None
    return ""


@contextmanager
def _leaving_in_time() -> Generator[None]:
    """Within, each of `LEAVES` is `_Leaves`; only a main thread can hear them.

    Submitit would raise an error of its own amid a run, which would be taken for the run's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(each, signal.signal(each, _leave)) for each in LEAVES]
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)


def _leave(*_: object) -> None:
    raise _Leaves


def _check_answer(job: Job, carried: Carrier) -> None:
    """Whether a job that ended did its tasks.

    Raises:
        _Lost: it was lost.
        UserError: it met bad input, or raised something else.
    """
    try:
        line = job.result()
    except Exception as error:
        if isinstance(error, carried.lost) and not carried.failed(error):
            raise _Lost from error
        raise UserError(f"a job raised {_last_line(error)}; it would do so again") from error
    if line is None:
        raise _Lost
    if line:
        raise UserError(line)


def _last_line(error: Exception) -> str:
    """Of what a job raised: its kind and what it says, also where an error brings a whole trace."""
    said = [line for line in str(error).splitlines() if _ERROR.match(line)]
    return said[-1] if said else f"{type(error).__name__}: {error}".splitlines()[0]
