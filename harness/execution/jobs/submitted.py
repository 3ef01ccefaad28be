"""The runs of a grid as jobs of a batch system, through submitit (optional extra ``slurm``).

``slurm`` submits with sbatch, whose own variables (``SBATCH_PARTITION``, ``SBATCH_ACCOUNT``, …)
say what the jobs need; ``local`` starts the same jobs as processes of this machine. A job is one
run; it writes to the store as any process does, and what is checkpointed survives the job.
"""

from __future__ import annotations

import time
from collections import deque
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
"""A job's limit; a longer run goes on in a job of the next submission."""

Task = TypeVar("Task")


class JobDied(Exception):  # noqa: N818 (what happened)
    """A job ended without an answer: it was cancelled, ran out of time or of memory."""


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
        JobDied: a job was lost; what it checkpointed is kept.
        KeyboardInterrupt: the budget is spent, or the user stopped; jobs are cancelled.
    """
    executor = _executor(folder, where)
    waiting = deque(tasks.items())
    running: dict[str, Job[str]] = {}
    try:
        while waiting or running:
            if time.monotonic() > end_s:
                raise KeyboardInterrupt("the budget is spent")
            while waiting and len(running) < jobs:
                name, task = waiting.popleft()
                running[name] = executor.submit(answered, work, task)
            for name in [name for name, job in running.items() if job.done()]:
                _judge(running.pop(name))
                finish(name)
            time.sleep(POLL_S)
    except BaseException:
        for job in running.values():
            job.cancel()
        raise


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


def _judge(job: Job[str]) -> None:
    from submitit.core.utils import UncompletedJobError

    try:
        line = job.result()
    except UncompletedJobError as error:
        raise JobDied(f"job {job.job_id}") from error
    if line:
        raise UserError(line)
