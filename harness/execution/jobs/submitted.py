"""The runs of a grid as jobs of a batch system, through submitit (optional extra ``slurm``).

``slurm`` submits with sbatch, whose own variables (``SBATCH_PARTITION``, ``SBATCH_ACCOUNT``, …)
say what the jobs need; ``local`` starts the same jobs as processes of this machine. A job is one
run; it writes to the store as any process does, and what is checkpointed survives the job. A job
that is lost (its node failed, it was preempted or ran out of time) is submitted again, and no other
is disturbed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import UserError, unknown

if TYPE_CHECKING:
    from submitit import AutoExecutor, Job

WHERE = ("slurm", "local")
POLL_S = 1.0
MINUTES = 24 * 60
"""A job's limit; a longer run goes on in another job."""
ATTEMPTS = 4
"""Jobs that are submitted for one task before it is given up."""

Task = TypeVar("Task")


class JobDied(Exception):  # noqa: N818 (what happened)
    """Every job of a task ended without an answer: cancelled, out of time or of memory."""


def check(where: str) -> None:
    """Refuse a batch system that is not known or cannot be used here.

    Raises:
        UserError: it is unknown, or submitit is not installed.
    """
    if where not in WHERE:
        raise unknown("--submit", where, WHERE)
    try:
        import_module("submitit")
    except ImportError as error:
        raise UserError("--submit: needs submitit; pip install 'lagbench[slurm]'") from error


def submit(
    tasks: Mapping[str, Task],
    work: Callable[[Task], object],
    folder: Path,
    where: str,
    jobs: int,
    finish: Callable[[str], None],
    end_s: float,
) -> None:
    """Have every task done in a job of its own, at most ``jobs`` at a time.

    A task whose job is lost has another, up to `ATTEMPTS` in all, after those that still wait.

    Args:
        tasks: by name.
        work: what a job does with its task.
        folder: for submitit's scripts and logs.
        where: ``"slurm"`` or ``"local"``.
        jobs: at a time.
        finish: told of each task that is done.
        end_s: `time.monotonic` at which to stop.

    Raises:
        UserError: a job met bad input.
        JobDied: a task has lost all its jobs; the others are done, its checkpoints kept.
        KeyboardInterrupt: the budget is spent, or the user stopped; jobs are cancelled.
    """
    executor = _executor(folder, where)
    waiting = deque(tasks)
    running: dict[str, Job[str]] = {}
    lost = Counter[str]()
    try:
        while waiting or running:
            if time.monotonic() > end_s:
                raise KeyboardInterrupt("the budget is spent")
            while waiting and len(running) < jobs:
                name = waiting.popleft()
                running[name] = executor.submit(answered, work, tasks[name])
            for name in [name for name, job in running.items() if job.done()]:
                if _answered(running.pop(name)):
                    finish(name)
                    continue
                lost[name] += 1
                waiting.extend([name] if lost[name] < ATTEMPTS else [])
            time.sleep(POLL_S)
    except BaseException:
        for job in running.values():
            job.cancel()
        raise
    if given_up := [name for name, times in lost.items() if times >= ATTEMPTS]:
        raise JobDied(f"{len(given_up)} of {len(tasks)} tasks lost {ATTEMPTS} jobs each")


def _executor(folder: Path, where: str) -> AutoExecutor:
    import submitit

    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=where)
    except RuntimeError as error:
        raise UserError(f"--submit {where}: {str(error).splitlines()[0]}") from error
    executor.update_parameters(name="lagbench", cpus_per_task=1, timeout_min=MINUTES)
    return executor


def answered(work: Callable[[Task], object], task: Task) -> str:
    """What a job sends back: nothing, or the line for the user."""
    try:
        work(task)
    except UserError as error:
        return str(error)
    return ""


def _answered(job: Job[str]) -> bool:
    """Whether a job that ended did its task; not if it was lost.

    Raises:
        UserError: it met bad input.
    """
    from submitit.core.utils import UncompletedJobError

    try:
        line = job.result()
    except UncompletedJobError:
        return False
    if line:
        raise UserError(line)
    return True
