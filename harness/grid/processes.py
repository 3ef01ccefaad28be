"""Processes of this machine, which execute the runs of a grid by default.

Each process has a pipe of its own for tasks, news and results, so a killed one breaks its own pipe
alone. There are no named locks or semaphores, which `multiprocessing` would register with its
resource tracker, and leak if that is killed.
"""

from __future__ import annotations

import math
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any

from harness.base import forks
from harness.base.errors import ProcessDied, UserError
from harness.grid.carriers import EVERYTHING, Carrier, Hear, Later, last_line


@dataclass
class Errand:
    """A task for a process of this machine.

    Args:
        job: future of the result.
        work: called as ``work(task, tell, waits)``, where ``tell`` receives its news.
        task: argument of the work.
        waits: whether to wait for another process that executes the same run; if not, the work
            returns `Later`.
    """

    job: Future[Any]
    work: Callable[..., Any]
    task: Any
    waits: bool = False


@dataclass(frozen=True)
class ErrandResult:
    """End of an errand: the result of its work, or its error."""

    result: Any
    error: Exception | None = None


BEGINS_S, LATEST_S, LOOK_EVERY_S = 3.0, 10.0, 0.05
"""Seconds that a new process needs for its imports; seconds after which one begins in any case
beside this process; seconds between two looks at whether one is to begin."""


class _Stop(BaseException):
    """Ends the work in this process after an error in another one.

    Args:
        error: error of the other process.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


class Processes:
    """Executes errands in processes of this machine, forks of one with all modules imported.

    Processes begin when there is work for them. One thread per process starts it, sends it one
    errand after the other and receives its news, so that no process waits for this one.

    With ``here`` this process executes errands too, whenever `wait` is called: work begins at once,
    and with a single process nothing is sent. The others begin once this process would need longer
    for the remaining errands than another one for its imports.

    Args:
        jobs: number of processes, this one included.
        begin: called in each process before its first errand, with the function for its news.
        modules: modules that the processes need; see `forks.context`.
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
        """The backend of these processes. The death of a process ends the grid: no job is lost."""
        return Carrier(self.start, EVERYTHING, (), self.close, wait=self.wait)

    def start(self, work: Callable[..., Any], tasks: Sequence[Any]) -> Sequence[Future[Any]]:
        """See `Carrier`; each process takes the next task when it has finished one."""
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
        """Whether another process is worth its imports: the rest takes longer in this one."""
        spent_s, done = time.monotonic() - self._began_s, sum(job.done() for job in self._jobs)
        rest_s = spent_s / done * (len(self._jobs) - done) if done else math.inf
        return not self._here or spent_s > LATEST_S or min(spent_s, rest_s) > BEGINS_S

    def wait(self, within_s: float, hear: Hear) -> None:
        """Execute an errand here, or wait for news of the other processes.

        Raises:
            ProcessDied: a process was killed from outside.
            Exception: error of an errand in any process.
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
        """Execute an errand in this process, and handle news of the others whenever it has news."""

        def tell(news: Any) -> None:
            hear(news)
            try:
                while not self._news.empty():
                    self._hear(self._news.get(), hear)
            # A BaseException: the work in this process must not take it for an error of its own.
            except Exception as error:
                raise _Stop(error) from None

        assert errand is not None  # None ends a member, and is put there by `close` only
        if not _is_wanted(errand.job):
            return
        try:
            ended = ErrandResult(errand.work(errand.task, tell, errand.waits))
        except _Stop as stop:
            raise stop.error from None
        _settle(errand, ended, self._waiting)

    def close(self) -> None:
        """End the processes: idle ones by `None`, busy ones by a signal; checkpoints are on disk.

        A process that has not begun yet ends after its start, and is not waited for.
        """
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        for _ in self._members:
            self._waiting.put(None)
        for member in self._members:
            member.end()


class _Member(Thread):
    """The thread that starts a process and sends it errands.

    Args:
        context: context of `multiprocessing`.
        begin: see `Processes`.
        is_wanted: whether to start the process; polled until it is true.
        waiting: queue of errands; None for the end.
        news: queue for the process's news, errors, and None at the end of each errand.
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
        """Start the process, send it errands, and end it."""
        # Inherited by the process: Ctrl-C reaches the parent alone, which ends the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with self._ours:  # closed at the end, by which the process finds that it is to end
                while not (is_wanted := self._is_wanted()) and not self._closed.wait(LOOK_EVERY_S):
                    pass
                with self._theirs, forks.guard_server(), forks.hide_main():
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
            ended = ErrandResult(
                None, UserError(f"a run cannot be sent to another process: {error}")
            )
        else:
            with _guard_pipe():
                self._ours.send_bytes(data)
            while not isinstance(ended := self._receive(), ErrandResult):
                self._news.put(ended)
        _settle(errand, ended, self._waiting)
        self._news.put(ended.error)

    def _receive(self) -> Any:
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
    """Whether a job runs, or begins now; False if it has been cancelled."""
    return job.running() or job.set_running_or_notify_cancel()


def _settle(errand: Errand, ended: ErrandResult, waiting: Queue[Errand | None]) -> None:
    """Set the result of a job; an errand that returned `Later` goes back into the queue."""
    if isinstance(ended.result, Later):
        waiting.put(replace(errand, waits=True))
    elif ended.error is not None:
        errand.job.set_exception(ended.error)
    else:
        errand.job.set_result(ended.result)


@contextmanager
def _guard_pipe() -> Generator[None]:
    """Raise errors of a pipe as the death of the process at its other end.

    Raises:
        ProcessDied: the pipe is broken.
    """
    try:
        yield
    except (EOFError, OSError) as error:
        raise ProcessDied(forks.KILLED) from error


def _serve(connection: Connection, begin: Callable[[Hear], object]) -> None:
    """Main function of a process: execute errands until the pipe closes."""
    forks.die_with_parent()
    alone = threading.Lock()  # threads of a run send lines for the user, too

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
    """Execute a packed errand; returns its packed end, or an error if that cannot be packed."""
    try:
        work, task, waits = pickle.loads(data)
        ended = ErrandResult(work(task, tell, waits))
    except Exception as error:
        if not isinstance(error, UserError | ProcessDied):
            error.add_note(f"In a process of a grid:\n{traceback.format_exc()}")
        ended = ErrandResult(None, error)
    try:
        packed = pickle.dumps(ended)
        # Some errors can be packed but not unpacked: their class takes other arguments.
        pickle.loads(packed)
    except Exception as why:
        raised = ended.error and f"a run raised {last_line(ended.error)}"
        told = raised or f"what a run gave cannot be sent to another process: {why}"
        return pickle.dumps(ErrandResult(None, UserError(told)))
    return packed
