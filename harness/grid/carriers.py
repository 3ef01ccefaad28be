"""Carriers of a grid's runs: processes of this machine, batch systems, executors of futures.

Without ``--submit`` a run is carried by one of so many processes of this machine (`Processes`).
Each has a pipe of its own, by which tasks come and news and results go. So one that is
killed breaks its own pipe alone; and there is no lock or semaphore that has a name, of which the
resource tracker of `multiprocessing` would keep a list, and lose it where it is killed.

Others are named by ``--submit``: batch systems through submitit, and any executor of futures.
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

import math
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty, Queue
from subprocess import SubprocessError
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from harness.base import forks
from harness.base.errors import ProcessDied, UserError, unknown

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
        _named(where)
        return
    if where not in WHERE:
        raise unknown("--submit", where, (*WHERE, "MODULE:FUNCTION"))
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
        return of_executor(lambda: _named(where)(jobs), jobs)
    return _submitit(where, folder, jobs)


def of_executor(made: Callable[[], Executor], at_once: int) -> Carrier:
    """Any executor of futures; a broken one has lost its jobs, and another is made."""
    executor = made()

    def begun(work: Callable[[Any], str | None], task: Any) -> Job:
        nonlocal executor
        try:
            return executor.submit(work, task)
        except BrokenExecutor:
            executor = made()
            return executor.submit(work, task)

    def start(work: Callable[[Any], str | None], tasks: Sequence[Any]) -> Sequence[Job]:
        return [begun(work, task) for task in tasks]

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
    return Carrier(executor.map_array, at_once, (UncompletedJobError,), failed=_failed_of_submitit)


def _failed_of_submitit(error: Exception) -> bool:
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

    return Carrier(start, EVERYTHING, _lost_by_dask(), close)


def _ray(jobs: int) -> Carrier:
    from harness.grid import ray_backend

    ray = ray_backend.begin(jobs)
    return Carrier(
        partial(ray_backend.started, ray), EVERYTHING, ray_backend.lost(ray), ray.shutdown
    )


def _local_dask(jobs: int) -> Any:
    """So many workers of this machine, also when Dask has given one up."""
    import distributed

    cluster: Any = distributed.LocalCluster(
        n_workers=jobs, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    )
    cluster.adapt(minimum=jobs, maximum=jobs)
    return cluster


def _lost_by_dask() -> tuple[type[BaseException], ...]:
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    return (KilledWorker, FutureCancelledError, CancelledError)


def _named(where: str) -> Callable[[int], Executor]:
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


def dealt(names: Sequence[str], each: int) -> list[Names]:
    """Names in jobs of so many, dealt like cards: the first job has the first, not the longest.

    Example:
        >>> dealt(["a", "b", "c", "d", "e"], 2)
        [('a', 'd'), ('b', 'e'), ('c',)]
    """
    jobs = -(-len(names) // each)
    return [tuple(names[at::jobs]) for at in range(jobs)]


def answered(
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


# -- processes of this machine ---------------------------------------------------------------


@dataclass(frozen=True)
class Later:
    """What work returns that is to be done after all that waits: another process does it now."""


@dataclass
class Errand:
    """A task of a process of this machine.

    Args:
        job: how far it is.
        work: is called with the task, what takes news, and ``waits``.
        task: of the work.
        waits: whether it waits for another process that does the same; else it returns `Later`.
    """

    job: Future[Any]
    work: Callable[..., Any]
    task: Any
    waits: bool = False


@dataclass(frozen=True)
class Ended:
    """The end of an errand: what the work returned, or the error that it raised."""

    result: Any
    error: Exception | None = None


BEGINS_S, LATEST_S, LOOK_EVERY_S = 3.0, 10.0, 0.05
"""A process needs so many seconds for its imports; beside this one it begins so late at most."""


class _Stop(BaseException):
    """What is done in this process has to end, as the work of another process has failed.

    Args:
        error: of that.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


class Processes:
    """Carries out work in so many processes of this machine, forks of one that has imported all.

    They begin as there is work for them. A thread each starts a process, hands it one errand after
    the other and hears what it says, so that none waits for what this process does meanwhile.

    With ``here`` this process is one of them: it carries out an errand whenever it waits. So work
    begins at once, and what a single process does is never sent anywhere. The others begin once
    the rest takes this process longer than the seconds that another needs for its imports.

    Args:
        jobs: how many processes.
        begin: called in each with what takes its news, before its first errand.
        modules: what the processes need; see `forks.context`.
        here: whether this process is one of them.
    """

    def __init__(self, jobs: int, begin: Callable[[Hear], object], *modules: str, here: bool):
        self._others, self._here, self._begin = jobs - here, here, begin
        self._context = forks.context(*modules)
        self._waiting, self._news = Queue[Errand | None](), Queue[Any]()
        self._jobs, self._members = list[Future[Any]](), list[_Member]()
        self._began_s = math.nan

    @property
    def carrier(self) -> Carrier:
        """The same as a carrier: a process that dies ends the grid, so no job is lost."""
        return Carrier(self.start, EVERYTHING, (), self.close, wait=self.wait)

    def start(self, work: Callable[..., Any], tasks: Sequence[Any]) -> Sequence[Future[Any]]:
        """See `Carrier`; each process takes the next task as soon as it has none."""
        errands = [Errand(Future(), work, task) for task in tasks]
        for errand in errands:
            self._waiting.put(errand)
        if not self._jobs:
            self._began_s = time.monotonic()
        self._jobs += [errand.job for errand in errands]
        left = sum(not job.done() for job in self._jobs)
        for _ in range(min(self._others, left - self._here) - len(self._members)):
            if not self._here:
                forks.begin_server(self._context)
            begin = self._context, self._begin, self._is_worth_another
            self._members.append(_Member(*begin, self._waiting, self._news))
            self._members[-1].start()
        return [errand.job for errand in errands]

    def _is_worth_another(self) -> bool:
        """Whether the rest takes this process longer than another takes to begin."""
        spent_s, done = time.monotonic() - self._began_s, sum(job.done() for job in self._jobs)
        rest_s = spent_s / done * (len(self._jobs) - done) if done else math.inf
        return not self._here or spent_s > LATEST_S or min(spent_s, rest_s) > BEGINS_S

    def wait(self, within_s: float, hear: Hear) -> None:
        """Carry out an errand here, or hear for so long whether another process has done one.

        Raises:
            ProcessDied: a process was killed from outside.
            Exception: of an errand, whichever process has raised it.
        """
        if self._here and not self._waiting.empty():
            with suppress(Empty):  # another process was faster
                self._carry_out(self._waiting.get_nowait(), hear)
                within_s = 0.0
        with suppress(Empty):
            self._hear(self._news.get(within_s > 0.0, within_s), hear)
            while True:
                self._hear(self._news.get_nowait(), hear)

    def _hear(self, news: Any, hear: Hear) -> None:
        if isinstance(news, Exception):
            raise news
        if news is not None:
            hear(news)

    def _carry_out(self, errand: Errand | None, hear: Hear) -> None:
        """Do an errand in this process, and hear the others whenever it has news."""

        def tell(news: Any) -> None:
            hear(news)
            try:
                while not self._news.empty():
                    self._hear(self._news.get(), hear)
            except Exception as error:  # of another process, and nothing that the errand has done
                raise _Stop(error) from None

        assert errand is not None  # which is put there for the others, at the end
        if not _is_wanted(errand.job):
            return
        try:
            ended = Ended(errand.work(errand.task, tell, errand.waits))
        except _Stop as stop:
            raise stop.error from None
        _settle(errand, ended, self._waiting)

    def close(self) -> None:
        """End the processes: an idle one by itself, a busy one at once: its checkpoint is on disk.

        One that has not begun yet ends as soon as it has, and is not waited for.
        """
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        for _ in self._members:
            self._waiting.put(None)
        for member in self._members:
            member.end()


class _Member(Thread):
    """The thread that has a process carry out errands.

    Args:
        context: makes processes.
        begin: see `Processes`.
        is_wanted: whether the process begins; asked until it says so.
        waiting: errands; None for the end.
        news: gets what the process says, None at the end of an errand, and errors.
    """

    def __init__(
        self,
        context: Any,
        begin: Callable[[Hear], object],
        is_wanted: Callable[[], bool],
        waiting: Queue[Errand | None],
        news: Queue[Any],
    ) -> None:
        super().__init__(daemon=True, name="a process of a grid")
        self._is_wanted, self._waiting, self._news = is_wanted, waiting, news
        self._begun, self._closed, self._busy = Event(), Event(), False
        self._ours, self._theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(self._theirs, begin))

    def run(self) -> None:
        """Start the process, hand it one errand after the other, and end it."""
        # The process inherits it: Ctrl-C is for this one, which ends the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with self._ours:  # a process takes its end for its own
                while not (is_wanted := self._is_wanted()) and not self._closed.wait(LOOK_EVERY_S):
                    pass
                with self._theirs, forks.guard_server(), forks.main_hidden():
                    if is_wanted:
                        self.process.start()
                        self._begun.set()
                while is_wanted and (errand := self._waiting.get()) is not None:
                    if _is_wanted(errand.job):
                        self._busy = True
                        self._carry_out(errand)
                        self._busy = False
        except Exception as error:
            self._news.put(error)
        if self._begun.is_set():
            forks.join([self.process], 0.0 if self._busy else forks.ENDING_S)
            forks.end([self.process])

    def _carry_out(self, errand: Errand) -> None:
        try:
            data = pickle.dumps((errand.work, errand.task, errand.waits))
        except Exception as error:
            ended = Ended(None, UserError(f"a run cannot be sent to another process: {error}"))
        else:
            with _guard_pipe():
                self._ours.send_bytes(data)
            while not isinstance(ended := self._said(), Ended):
                self._news.put(ended)
        _settle(errand, ended, self._waiting)
        self._news.put(ended.error)

    def _said(self) -> Any:
        with _guard_pipe():
            data = self._ours.recv_bytes()
        return pickle.loads(data)

    def end(self) -> None:
        """End the process if it is busy, and wait for its end if it has begun."""
        self._closed.set()
        if self._begun.is_set():
            if self._busy:
                self.process.terminate()
            self.join()


def _is_wanted(job: Future[Any]) -> bool:
    """Whether a job goes on, or begins now: it has not been cancelled."""
    return job.running() or job.set_running_or_notify_cancel()


def _settle(errand: Errand, ended: Ended, waiting: Queue[Errand | None]) -> None:
    """Take note of an end: of the job, or of a first look at what another process does now."""
    if isinstance(ended.result, Later):
        waiting.put(replace(errand, waits=True))
    elif ended.error is not None:
        errand.job.set_exception(ended.error)
    else:
        errand.job.set_result(ended.result)


@contextmanager
def _guard_pipe() -> Generator[None]:
    """Take an error of a pipe for the death of the process at its other end.

    Raises:
        ProcessDied: so.
    """
    try:
        yield
    except (EOFError, OSError) as error:
        raise ProcessDied(forks.KILLED) from error


def _serve(connection: Connection, begin: Callable[[Hear], object]) -> None:
    """In a process: carry out errands until there are no more."""
    forks.die_with_parent()
    alone = threading.Lock()  # threads of a run have lines for the user, too

    def tell(news: Any) -> None:
        with alone:
            connection.send(news)

    begin(tell)
    with suppress(EOFError, ConnectionError):
        while True:
            ended = _carry_out(connection.recv_bytes(), tell)
            with alone:
                connection.send_bytes(ended)


def _carry_out(data: bytes, tell: Hear) -> bytes:
    """An errand's end, packed; of what cannot be packed, a line."""
    try:
        work, task, waits = pickle.loads(data)
        ended = Ended(work(task, tell, waits))
    except Exception as error:
        if not isinstance(error, UserError | ProcessDied):
            error.add_note(f"In a process of a grid:\n{traceback.format_exc()}")
        ended = Ended(None, error)
    try:
        packed = pickle.dumps(ended)
        pickle.loads(packed)  # an error whose class takes other arguments is packed all the same
    except Exception as why:
        raised = ended.error and f"a run raised {_last_line(ended.error)}"
        told = raised or f"what a run gave cannot be sent to another process: {why}"
        return pickle.dumps(Ended(None, UserError(told)))
    return packed
