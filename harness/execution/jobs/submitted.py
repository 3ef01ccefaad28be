"""The runs of a grid as jobs that somebody else carries (`carriers`), one run or several a job.

A run writes to the store as in any process, and what is checkpointed survives its job. A job
that is lost (its node failed, it was preempted or ran out of time) is submitted again, and no other
is disturbed; what it had finished is found in the store.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from subprocess import SubprocessError
from typing import TypeVar

from harness.errors import UserError
from harness.execution.jobs.carriers import Carrier, Job

POLL_S = 1.0
ATTEMPTS = 4
"""Jobs that are submitted for the same tasks before they are given up."""

Task = TypeVar("Task")
Names = tuple[str, ...]
"""The tasks of one job."""


class JobDied(Exception):  # noqa: N818 (what happened)
    """Every job of a task ended without an answer: cancelled, out of time or of memory."""


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
) -> None:
    """Have every task done by some job.

    Tasks whose job is lost have another, up to `ATTEMPTS` in all, after those that still wait.

    Args:
        tasks: by name, in the order in which they are begun.
        work: what is done with each.
        carried: who does it.
        finish: told of each task that is done.
        end_s: `time.monotonic` at which to stop.
        runs_a_job: tasks of one job.

    Raises:
        UserError: a job met bad input.
        JobDied: some tasks have lost all their jobs; the others are done, all checkpoints kept.
        KeyboardInterrupt: the budget is spent, or the user stopped; jobs are cancelled.
    """
    waiting, lost = deque(dealt(list(tasks), runs_a_job)), Counter[Names]()
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
                if _answered(running.pop(names), carried.lost):
                    for name in names:
                        finish(name)
                    continue
                lost[names] += 1
                waiting.extend([names] if lost[names] < ATTEMPTS else [])
            time.sleep(POLL_S)
    finally:
        for job in running.values():
            with suppress(OSError, SubprocessError):  # scancel knows it no more
                job.cancel()
        carried.close()
    given_up = [name for names, times in lost.items() if times >= ATTEMPTS for name in names]
    if given_up:
        raise JobDied(f"{len(given_up)} of {len(tasks)} tasks lost {ATTEMPTS} jobs each")


def dealt(names: Sequence[str], each: int) -> list[Names]:
    """Names in jobs of so many, dealt like cards: the first job has the first, not the longest.

    Example:
        >>> dealt(["a", "b", "c", "d", "e"], 2)
        [('a', 'd'), ('b', 'e'), ('c',)]
    """
    jobs = -(-len(names) // each)
    return [tuple(names[at::jobs]) for at in range(jobs)]


def answered(work: Callable[[Task], object], tasks: Sequence[Task]) -> str:
    """What a job sends back: nothing, or the line for the user."""
    try:
        for task in tasks:
            work(task)
    except UserError as error:
        return str(error)
    return ""


def _answered(job: Job, lost: tuple[type[BaseException], ...]) -> bool:
    """Whether a job that ended did its tasks; not if it was lost.

    Raises:
        UserError: it met bad input.
    """
    try:
        line = job.result()
    except lost:
        return False
    if line:
        raise UserError(line)
    return True
