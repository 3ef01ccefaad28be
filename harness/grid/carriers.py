"""Carriers of a grid's runs: their contract, batch systems, and executors of futures.

Without ``--submit`` processes of this machine carry them (`harness.grid.processes`). Others are
named by it: batch systems through submitit, and any executor of futures.
``slurm`` submits job arrays with sbatch, whose own variables (``SBATCH_PARTITION``,
``SBATCH_ACCOUNT``, …) say what the jobs need; ``local`` starts the same jobs as processes of this
machine. ``dask`` asks the scheduler that ``DASK_SCHEDULER_ADDRESS`` names, or workers of its own;
``ray`` does the same with ``RAY_ADDRESS``. ``MODULE:FUNCTION`` is called with the number of jobs
and gives a `concurrent.futures.Executor`.

The runs of a grid as jobs that somebody else carries (`carriers`), one run or several a job. A run
writes to the store as in any process, and what is checkpointed survives its job. A job that is
lost (its node failed, it was preempted or ran out of time) is submitted again, and no other is
disturbed; what it had finished is found in the store. A job that raises something would raise it
again: it ends the grid in a line.
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
"""The package that each needs, and the extra of ours that brings it."""

MINUTES = 24 * 60
"""A job's limit; a longer run goes on in another job."""

EVERYTHING = 10**9

NOT_REQUEUED = "Job not requeued because"
"""What submitit has a job raise when its time is up or somebody else wants its place."""


Hear = Callable[[Any], object]
"""Takes news of work under way, as it comes."""


class Job(Protocol):
    """Work under way elsewhere."""

    def done(self) -> bool:
        """Whether it has ended, however."""
        ...

    def result(self) -> Any:
        """What it gave; raises what it raised, or one of its carrier's `lost`."""
        ...

    def cancel(self) -> object:
        """Have it not done, or ended."""
        ...


@dataclass(frozen=True)
class Later:
    """What work returns that is to be done after all that waits: another process does it now."""


@dataclass(frozen=True)
class Carrier:
    """Takes work and does it elsewhere.

    Args:
        start: begins the same work on each of several tasks.
        at_once: how many jobs it is handed at a time.
        lost: what the result of a job that was lost raises.
        close: at the end, whatever the end.
        failed: of what `lost` would count, what means that the job itself raised something.
        wait: waits so many seconds for a job to end, and hands on what is heard meanwhile.
    """

    start: Callable[[Callable[..., Any], Sequence[Any]], Sequence[Job]]
    at_once: int
    lost: tuple[type[BaseException], ...]
    close: Callable[[], object] = lambda: None
    failed: Callable[[Exception], bool] = lambda error: False
    wait: Callable[[float, Hear], object] = lambda within_s, hear: time.sleep(within_s)


@dataclass(frozen=True)
class Parcel:
    """Something that is packed where it leaves this process, and nowhere else.

    Functions and classes that another process cannot import (those of a script, a notebook, a
    call) travel by value, and with them the folders from which this process imports.

    Args:
        content: any object.
    """

    content: Any

    def __reduce__(self) -> tuple[Callable[..., Parcel], tuple[list[str], bytes]]:
        # At the first thing that is sent: a command may send none.
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

        data: bytes = cloudpickle.dumps(self.content)  # pyright: ignore[reportUnknownMemberType]
        return _unpack, (sys.path, data)


def _unpack(folders: Sequence[str], data: bytes) -> Parcel:
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return Parcel(pickle.loads(data))


def check(where: str) -> None:
    """Refuse a carrier that is not known or cannot be used here.

    Raises:
        UserError: it is unknown, or its package is not installed.
    """
    if ":" in where:
        _import_executor(where)
        return
    if where not in WHERE:
        raise name_error("--submit", where, (*WHERE, "MODULE:FUNCTION"))
    package, extra = NEEDS[where]
    try:
        import_module(package)
    except ImportError as error:
        told = f"--submit {where}: needs {package}; pip install 'lagbench[{extra}]'"
        raise UserError(told) from error


def carrier(where: str, folder: Path, jobs: int) -> Carrier:
    """What ``--submit`` names.

    Args:
        where: see above.
        folder: for scripts and logs of jobs.
        jobs: at a time.

    Raises:
        UserError: it cannot be used here.
    """
    check(where)
    if where in ("dask", "ray"):
        return _dask(jobs) if where == "dask" else _ray(jobs)
    if ":" in where:
        return carrier_from_executor(lambda: _import_executor(where)(jobs), jobs)
    return _submitit(where, folder, jobs)


def carrier_from_executor(made: Callable[[], Executor], at_once: int) -> Carrier:
    """Any executor of futures; a broken one has lost its jobs, and another is made."""
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
    if where == "slurm":  # all of them are one array, of which Slurm lets so many run
        executor.update_parameters(slurm_array_parallelism=jobs)
    at_once = EVERYTHING if where == "slurm" else jobs
    return Carrier(executor.map_array, at_once, (UncompletedJobError,), failed=_is_submitit_failure)


def _is_submitit_failure(error: Exception) -> bool:
    """Whether a job raised something; that it ran out of time is raised within it too."""
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
    """So many workers of this machine, also when Dask has given one up."""
    import distributed

    cluster: Any = distributed.LocalCluster(
        n_workers=jobs, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    )
    cluster.adapt(minimum=jobs, maximum=jobs)
    return cluster


def _dask_loss_errors() -> tuple[type[BaseException], ...]:
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    return (KilledWorker, FutureCancelledError, CancelledError)


def _import_executor(where: str) -> Callable[[int], Executor]:
    module, _, name = where.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--submit {where}: {error}; allowed: MODULE:FUNCTION") from error


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


class _JobLost(Exception):  # noqa: N818 (what happened)
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
    work: Callable[..., object],
    carried: Carrier,
    finish: Callable[[str], None],
    end_s: float,
    runs_a_job: int = 1,
    reached: Callable[[str], float] = lambda name: 0.0,
    hear: Hear = lambda news: None,
) -> None:
    """Have every task done by some job.

    Tasks whose job is lost have another, after those that still wait, until `ATTEMPTS` jobs have
    brought none of them further.

    Args:
        tasks: by name, in the order in which they are begun.
        work: what is done with each: ``work(task)``, or `Errand` in a process of this machine.
        carried: who does it; its owner closes it.
        finish: told of each task that is done.
        end_s: `time.monotonic` at which to stop.
        runs_a_job: tasks of one job.
        reached: how far a task is, more for further.
        hear: takes news of tasks under way, of carriers that have any.

    Raises:
        UserError: a job met bad input, or raised something else.
        ProcessDied: some tasks lost all their jobs; the others are done, all checkpoints kept.
        KeyboardInterrupt: the budget is spent, or the user stopped; jobs are cancelled.
    """
    waiting, losses = deque(split_into_jobs(list(tasks), runs_a_job)), _Losses(reached)
    running: dict[Names, Job] = {}
    try:
        while waiting or running:
            if time.monotonic() > end_s:
                raise KeyboardInterrupt("the budget is spent")
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
            with suppress(OSError, SubprocessError):  # scancel knows it no more
                job.cancel()
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


def split_into_jobs(names: Sequence[str], each: int) -> list[Names]:
    """Names in jobs of so many, dealt like cards: the first job has the first, not the longest.

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
    """Do the tasks of a job.

    Args:
        work: what is done with each.
        tasks: one or several; of a process of this machine, one.
        tell: takes the news of a process of this machine; None in any other job.
        waits: see `Errand`.

    Returns:
        What a job sends back: nothing, or the line for the user; None if it had to end early; in a
        process of this machine `Later`, if the work gives that.
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
    except ProcessDied:
        raise
    except Exception as error:
        if isinstance(error, carried.lost) and not carried.failed(error):
            raise _JobLost from error
        raise UserError(f"a job raised {last_line(error)}; it would do so again") from error
    if line is None:
        raise _JobLost
    if line:
        raise UserError(line)


def last_line(error: Exception) -> str:
    """Of what a job raised: its kind and what it says, also where an error brings a whole trace."""
    said = [line for line in str(error).splitlines() if _ERROR.match(line)]
    return said[-1] if said else f"{type(error).__name__}: {error}".splitlines()[0]
