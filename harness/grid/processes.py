"""Processes of this machine, which carry the runs of a grid where nothing else is named.

Each has a pipe of its own, by which tasks come and news and results go. So one that is
killed breaks its own pipe alone; and there is no lock or semaphore that has a name, of which the
resource tracker of `multiprocessing` would keep a list, and lose it where it is killed.
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
class ErrandResult:
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
            ended = ErrandResult(errand.work(errand.task, tell, errand.waits))
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
    """Whether a job goes on, or begins now: it has not been cancelled."""
    return job.running() or job.set_running_or_notify_cancel()


def _settle(errand: Errand, ended: ErrandResult, waiting: Queue[Errand | None]) -> None:
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
        ended = ErrandResult(work(task, tell, waits))
    except Exception as error:
        if not isinstance(error, UserError | ProcessDied):
            error.add_note(f"In a process of a grid:\n{traceback.format_exc()}")
        ended = ErrandResult(None, error)
    try:
        packed = pickle.dumps(ended)
        pickle.loads(packed)  # an error whose class takes other arguments is packed all the same
    except Exception as why:
        raised = ended.error and f"a run raised {last_line(ended.error)}"
        told = raised or f"what a run gave cannot be sent to another process: {why}"
        return pickle.dumps(ErrandResult(None, UserError(told)))
    return packed
