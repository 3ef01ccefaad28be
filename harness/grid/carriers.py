"""Job backends (carriers) of a grid: their contract, batch systems, and executors of futures.

Without ``--submit`` processes of this machine execute the runs (`harness.grid.processes`). Values
of ``--submit``:

- ``slurm`` submits job arrays with sbatch; its variables (``SBATCH_PARTITION``,
  ``SBATCH_ACCOUNT``, …) specify resources. ``local`` starts the same jobs as local processes. Both
  use submitit.
- ``dask`` uses the scheduler at ``DASK_SCHEDULER_ADDRESS``, or starts workers; ``ray`` does the
  same with ``RAY_ADDRESS``.
- ``MODULE:FUNCTION`` is called with the number of jobs and returns a `concurrent.futures.Executor`.

A job executes one run or several. Runs are written to the store as by any process, and checkpoints
survive their job. A lost job (node failure, preemption, time limit) is submitted again without
effect on others, and its finished runs are found in the store. A job that raises an error would
raise it again, so the error ends the grid.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from harness.base.errors import ProcessDied, UserError, name_error

if TYPE_CHECKING:
    from submitit import AutoExecutor

WHERE = ("slurm", "local", "dask", "ray")

NEEDS = {
    "slurm": ("submitit", "slurm"),
    "local": ("submitit", "slurm"),
    "dask": ("distributed", "dask"),
    "ray": ("ray", "ray"),
}
"""The package that each backend needs, and the extra of this project that installs it."""

MINUTES = 24 * 60
"""Time limit of a job; a longer run resumes in another job."""

EVERYTHING = 10**9
"""Value of `Carrier.at_once` for no limit."""

NOT_REQUEUED = "Job not requeued because"
"""Beginning of submitit's error in a job that has timed out or was preempted."""


Hear = Callable[[Any], object]
"""Function that receives news (see `harness.grid.grid.News`) of running work."""


class Job(Protocol):
    """A submitted job."""

    def done(self) -> bool:
        """Whether it has ended, with a result or not."""
        ...

    def result(self) -> Any:
        """Its result; raises its error, or one of its carrier's `lost`."""
        ...

    def cancel(self) -> object:
        """Cancel it, or end it if it runs."""
        ...


@dataclass(frozen=True)
class Later:
    """Result of work that another process does now: it is to be tried again after all others."""


@dataclass(frozen=True)
class Carrier:
    """A job backend.

    Args:
        start: submits one job per task, all with the same function.
        at_once: most jobs that are submitted at a time.
        lost: classes of the errors by which the result of a job shows that it was lost.
        close: called at the end of the grid, also after an error.
        failed: whether an error of a class in ``lost`` means that the job itself raised an error.
        wait: waits up to a number of seconds for a job to end, and passes news on meanwhile.
    """

    start: Callable[[Callable[..., Any], Sequence[Any]], Sequence[Job]]
    at_once: int
    lost: tuple[type[BaseException], ...]
    close: Callable[[], object] = lambda: None
    failed: Callable[[Exception], bool] = lambda error: False
    wait: Callable[[float, Hear], object] = lambda within_s, hear: time.sleep(within_s)


@dataclass(frozen=True)
class Parcel:
    """An object that is packed with cloudpickle when it leaves this process.

    Functions and classes that another process cannot import (those of a script, a notebook, a
    call) are sent by value, together with this process's ``sys.path``.

    Args:
        content: any object.
    """

    content: Any

    def __reduce__(self) -> tuple[Callable[..., Parcel], tuple[list[str], bytes]]:
        # Imported here: a command may send nothing to another process.
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

        data: bytes = cloudpickle.dumps(self.content)  # pyright: ignore[reportUnknownMemberType]
        return _unpack, (sys.path, data)


def _unpack(folders: Sequence[str], data: bytes) -> Parcel:
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return Parcel(pickle.loads(data))


def check(where: str, called: str = "--submit") -> None:
    """Reject a backend that is unknown or not usable here.

    Args:
        where: see above.
        called: the option or argument that names it.

    Raises:
        UserError: it is unknown, or its package is not installed.
    """
    if ":" in where:
        _import_executor(where, called)
        return
    if where not in WHERE:
        raise name_error(called, where, (*WHERE, "MODULE:FUNCTION"))
    package, extra = NEEDS[where]
    try:
        import_module(package)
    except ImportError as error:
        told = f"{called} {where}: needs {package}; pip install 'lagbench[{extra}]'"
        raise UserError(told) from error


def carrier(where: str, folder: Path, jobs: int) -> Carrier:
    """Create the backend that ``--submit`` names.

    Args:
        where: value of ``--submit``, see the module.
        folder: folder for scripts and logs of jobs.
        jobs: most jobs at a time.

    Raises:
        UserError: the backend cannot be used here.
    """
    check(where)
    if where in ("dask", "ray"):
        return _dask(jobs) if where == "dask" else _ray(jobs)
    if ":" in where:
        return carrier_from_executor(lambda: _import_executor(where)(jobs), jobs)
    return _submitit(where, folder, jobs)


def carrier_from_executor(made: Callable[[], Executor], at_once: int) -> Carrier:
    """Backend of an executor of futures; a broken one loses its jobs and is replaced."""
    executor = made()

    def submit_task(work: Callable[[Any], str | None], task: Any) -> Job:
        nonlocal executor
        try:
            return executor.submit(work, task)
        except BrokenExecutor:
            executor = made()
            return executor.submit(work, task)

    def start(work: Callable[[Any], str | None], tasks: Sequence[Any]) -> Sequence[Job]:
        return [submit_task(work, task) for task in tasks]

    def close() -> None:
        executor.shutdown(wait=False, cancel_futures=True)

    return Carrier(start, at_once, (BrokenExecutor, CancelledError), close)


def _submitit(where: str, folder: Path, jobs: int) -> Carrier:
    import submitit
    from submitit.core.utils import UncompletedJobError

    executor: AutoExecutor
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=where)
    except RuntimeError as error:
        raise UserError(f"--submit {where}: {str(error).splitlines()[0]}") from error
    executor.update_parameters(name="lagbench", cpus_per_task=1, timeout_min=MINUTES)
    if where == "slurm":  # one array of all jobs, of which Slurm runs this many at a time
        executor.update_parameters(slurm_array_parallelism=jobs)
    at_once = EVERYTHING if where == "slurm" else jobs
    return Carrier(executor.map_array, at_once, (UncompletedJobError,), failed=_is_submitit_failure)


def _is_submitit_failure(error: Exception) -> bool:
    """Whether a job raised an error of its own; submitit raises a timeout within the job, too."""
    from submitit.core.utils import FailedJobError

    return isinstance(error, FailedJobError) and NOT_REQUEUED not in str(error)


def _dask(jobs: int) -> Carrier:
    import distributed

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    cluster: Any = None if address else _local_dask(jobs)
    client: Any = distributed.Client(address or cluster)

    def start(work: Callable[[Any], str | None], tasks: Sequence[Any]) -> Sequence[Job]:
        return [client.submit(work, task, pure=False) for task in tasks]

    def close() -> None:
        client.close()
        if cluster is not None:
            cluster.close()

    return Carrier(start, EVERYTHING, _dask_loss_errors(), close)


def _ray(jobs: int) -> Carrier:
    from harness.grid import ray_backend

    ray = ray_backend.begin(jobs)
    return Carrier(
        partial(ray_backend.submit_tasks, ray),
        EVERYTHING,
        ray_backend.task_loss_errors(ray),
        ray.shutdown,
    )


def _local_dask(jobs: int) -> Any:
    """A local Dask cluster that replaces lost workers."""
    import distributed

    cluster: Any = distributed.LocalCluster(
        n_workers=jobs, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    )
    cluster.adapt(minimum=jobs, maximum=jobs)  # without it, Dask gives up a worker for good
    return cluster


def _dask_loss_errors() -> tuple[type[BaseException], ...]:
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    return (KilledWorker, FutureCancelledError, CancelledError)


def _import_executor(where: str, called: str = "--submit") -> Callable[[int], Executor]:
    module, _, name = where.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{called} {where}: {error}; allowed: MODULE:FUNCTION") from error


POLL_S = 1.0

ATTEMPTS = 4
"""Lost jobs without progress in between after which tasks are given up."""

LEAVES = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""Signals that batch systems send shortly before they end a job."""

_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit)(:|$)")

Task = TypeVar("Task")

Names = tuple[str, ...]
"""Names of the tasks of one job."""


class _Leaves(BaseException):
    """The batch system ends this job soon. A BaseException: no handler of errors may catch it."""


class _JobLost(Exception):  # noqa: N818 (what happened)
    """A job ended without a result: cancelled, out of time or of memory."""


@dataclass(frozen=True)
class Submission:
    """Values of ``--submit`` and ``--runs-per-job``.

    Args:
        where: name of the backend, see the module.
        runs_a_job: number of runs that each job executes, one after the other.
    """

    where: str
    runs_a_job: int = 1


def submit(
    tasks: Mapping[str, Task],
    work: Callable[..., object],
    carried: Carrier,
    finish: Callable[[str], None],
    end_s: float,
    runs_a_job: int = 1,
    reached: Callable[[str], float] = lambda name: 0.0,
    hear: Hear = lambda news: None,
) -> None:
    """Execute every task in some job.

    The tasks of a lost job are submitted again, behind those that still wait, until `ATTEMPTS` jobs
    in a row were lost without progress.

    Args:
        tasks: tasks by name, in the order in which they begin.
        work: function of a task; in a process of this machine called as `Errand` says.
        carried: the backend; the caller closes it.
        finish: called with the name of each finished task.
        end_s: `time.monotonic` at which to stop.
        runs_a_job: number of tasks per job.
        reached: progress of a task, in any increasing measure.
        hear: receives news of running tasks, if the backend passes any on.

    Raises:
        UserError: a job met bad input, or raised another error.
        ProcessDied: some tasks lost all their jobs; the others are done, all checkpoints kept.
        KeyboardInterrupt: the budget is spent, or the user interrupted; jobs are cancelled.
    """
    waiting, losses = deque(split_into_jobs(list(tasks), runs_a_job)), _Losses(reached)
    running: dict[Names, Job] = {}
    try:
        while waiting or running:
            if time.monotonic() > end_s:
                raise KeyboardInterrupt("the budget is spent")
            # All fresh jobs in one call: Slurm gets them as one array.
            free = min(len(waiting), carried.at_once - len(running))
            fresh = [waiting.popleft() for _ in range(free)]
            handed = [[tasks[name] for name in names] for names in fresh]
            started = carried.start(partial(run_tasks, work), handed) if fresh else ()
            running.update(zip(fresh, started, strict=True))
            for names in [names for names, job in running.items() if job.done()]:
                try:
                    _check_answer(running.pop(names), carried)
                except _JobLost:
                    waiting.extend([names] if losses.worth_another(names) else [])
                    continue
                for name in names:
                    finish(name)
            if running:
                carried.wait(POLL_S, hear)
    finally:
        for job in running.values():
            with suppress(OSError, SubprocessError):  # e.g. scancel of a job that has ended
                job.cancel()
    if losses.given_up:
        lost = f"{len(losses.given_up)} of {len(tasks)} runs lost {ATTEMPTS} jobs each"
        raise ProcessDied(f"{lost}; not submitted again")


class _Losses:
    """Counts the jobs that tasks have lost since their last progress.

    Args:
        reached: progress of a task.

    Attributes:
        given_up: names of the tasks that are not submitted again.
    """

    def __init__(self, reached: Callable[[str], float]) -> None:
        self._reached, self._furthest = reached, dict[str, float]()
        self._lost, self.given_up = Counter[Names](), list[str]()

    def worth_another(self, names: Names) -> bool:
        """Count a lost job; False if its tasks are given up."""
        now = {name: self._reached(name) for name in names}
        moved = any(place > self._furthest.get(name, 0.0) for name, place in now.items())
        self._furthest |= now
        self._lost[names] = 0 if moved else self._lost[names] + 1
        if self._lost[names] < ATTEMPTS:
            return True
        self.given_up.extend(names)
        return False


def split_into_jobs(names: Sequence[str], each: int) -> list[Names]:
    """Split names into jobs of at most ``each``, dealt like cards, so that lengths are balanced.

    Example:
        >>> split_into_jobs(["a", "b", "c", "d", "e"], 2)
        [('a', 'd'), ('b', 'e'), ('c',)]
    """
    jobs = -(-len(names) // each)
    return [tuple(names[at::jobs]) for at in range(jobs)]


def run_tasks(
    work: Callable[..., object],
    tasks: Sequence[Task],
    tell: Hear | None = None,
    waits: bool = True,
) -> str | Later | None:
    """Execute the tasks of a job, in the job.

    Args:
        work: function of a task.
        tasks: the tasks; exactly one in a process of this machine.
        tell: receives news in a process of this machine; None in any other job.
        waits: see `Errand`.

    Returns:
        Result of the job: an empty string, or an error for the user; None if it had to end early;
        in a process of this machine `Later` if the work returns it.
    """
    if tell is not None:
        return found if isinstance(found := work(tasks[0], tell, waits), Later) else ""
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
    """Raise `_Leaves` on each signal of `LEAVES` within the block; on a main thread only.

    Submitit's own handler would raise an error amid a run, which would count as the run's.
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
    """Check that a job that has ended finished its tasks.

    Raises:
        _JobLost: it was lost.
        UserError: it met bad input, or raised another error.
    """
    try:
        line = job.result()
    except ProcessDied:
        raise
    except Exception as error:
        if isinstance(error, carried.lost) and not carried.failed(error):
            raise _JobLost from error
        raise UserError(f"a job raised {last_line(error)}; not submitted again") from error
    if line is None:
        raise _JobLost
    if line:
        raise UserError(line)


def last_line(error: Exception) -> str:
    """Class and message of a job's error, also if its text contains a whole traceback."""
    said = [line for line in str(error).splitlines() if _ERROR.match(line)]
    return said[-1] if said else f"{type(error).__name__}: {error}".splitlines()[0]
