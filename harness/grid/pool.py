"""Worker processes of a grid, which carry out one task after the other.

Each process has a pipe of its own, by which tasks come and news and results go. So one that is
killed breaks its own pipe alone; and there is no lock or semaphore that has a name, of which the
resource tracker of `multiprocessing` would keep a list, and lose it where it is killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from harness.base import forks
from harness.base.errors import ProcessDied

Task = Callable[[], Any]

Begin = Callable[[Connection], None]
"""Sets a worker process up, given the pipe by which its news go."""


@dataclass(frozen=True)
class Ended:
    """The end of a task: what it returned, or the error that it raised."""

    result: Any
    error: Exception | None = None


class Pool:
    """So many worker processes, to be used in a ``with`` block, which ends them.

    Args:
        processes: how many.
        begin: called in each process before its first task.
        modules: what the processes need; see `forked.context`.

    Raises:
        ProcessDied: in any method: a process was killed from outside.
    """

    def __init__(self, processes: int, begin: Begin, *modules: str) -> None:
        self._processes, self._begin = processes, begin
        self._context = forks.context(*modules)
        self._members: dict[Connection, BaseProcess] = {}
        self._idle: list[Connection] = []
        self._tasks = deque[Task]()

    def __enter__(self) -> Pool:
        try:
            for _ in range(self._processes):
                self._start()
        except BaseException:
            forks.end(self._members.values())
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # else a worker may be hours from its end; its last checkpoint is on disk
            for connection in self._members:
                connection.close()  # which an idle process takes for the end
            forks.join(self._members.values(), forks.ENDING_S)
        forks.end(self._members.values())

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        with theirs, forks.guard_start():
            process = self._context.Process(target=_work, args=(theirs, self._begin))
            process.start()
            self._members[ours] = process
        self._idle.append(ours)

    @property
    def is_busy(self) -> bool:
        """Whether a task has not ended."""
        return len(self._idle) < len(self._members)

    def submit(self, task: Task) -> None:
        """Have a task carried out by the next process that is idle."""
        self._tasks.append(task)
        self._hand_out()

    def hear(self, within_s: float) -> Iterator[Any]:
        """News of the processes, and `Ended` for each task, as they come.

        Args:
            within_s: how long to wait for the first.
        """
        for connection in wait(list(self._members), within_s):
            assert isinstance(connection, Connection)
            with _guard_pipe():
                said = connection.recv()
            if isinstance(said, Ended):
                self._idle.append(connection)
                self._hand_out()
            yield said

    def _hand_out(self) -> None:
        while self._idle and self._tasks:
            with _guard_pipe():
                self._idle.pop().send(self._tasks.popleft())


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


def _work(connection: Connection, begin: Begin) -> None:
    """In a worker process: carry out tasks until there are no more."""
    forks.die_with_parent()
    begin(connection)
    with suppress(EOFError, ConnectionError):
        while True:
            task = connection.recv()
            connection.send(_end_of(task))


def _end_of(task: Task) -> Ended:
    try:
        return Ended(task())
    except Exception as error:
        return Ended(None, error)
