"""Processes that are forks of one with everything imported, and signals that end them.

Importing torch and the executors takes a process four seconds and 220 MB. So one process, the fork
server, imports them once and does nothing else, and all others are forks of it: they start at once
and share the memory. The fork server has started no thread that a fork would miss. On other systems
than Linux, libraries do not survive a fork, and each process imports for itself.

A command ends once: the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, later ones are
ignored.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, spawn
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

from harness.base.errors import ProcessDied

__all__ = [
    "Watchdog",
    "begin_server",
    "block_interrupts",
    "context",
    "defer_interrupts",
    "die_with_parent",
    "end",
    "guard_server",
    "guard_start",
    "hide_main",
    "ignore",
    "is_orphan",
    "join",
    "kill_stopped",
    "listen",
    "set_parent_death_signal",
]

SERVER = "harness.base.forkserver_preload"
"""The module that the fork server imports before all others."""

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>

ENDING_S = 10.0
"""Seconds that a process may take to end after SIGTERM, before it gets SIGKILL."""

LOOKS, LOOK_EVERY_S = 20, 1.0
"""A process that is found stopped in this many looks in a row is killed: after 20 s, the time after
which its peers take it for dead (`SILENT_AFTER_S`). A count and not a clock, because Ctrl-Z stops
the watching process, too."""

UNKNOWN = 255
"""Exit code that `multiprocessing` reports for a process if its fork server died first."""

KILLED = "a process was killed from outside, e.g. for want of memory"

STOPPED = f"was stopped, and killed after {LOOKS * LOOK_EVERY_S:.0f} s"

_imported: list[str] = []


def context(*modules: str) -> ForkServerContext | SpawnContext:
    """The `multiprocessing` context that makes processes, queues and locks.

    Args:
        modules: modules that the processes need; the fork server imports them once, if they are
            named before its first fork.
    """
    # Read by torch at import: it would print a stack trace when a store ends, which we report.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # A killed process cannot release its semaphores; the resource tracker does, without warning.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    # The same if the tracker itself is killed and started again: our pipes have no names.
    warnings.filterwarnings("ignore", "resource_tracker", UserWarning)
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    _imported.extend(modules)
    made.set_forkserver_preload([SERVER, *_imported])
    return made


@contextmanager
def block_interrupts() -> Generator[None]:
    """Start processes that never receive Ctrl-C: the parent does, and ends them.

    This includes the fork server, which may start with the first of them. A signal that arrives
    meanwhile is delivered to the parent afterwards, SIGTERM and SIGHUP included.
    """
    # Children inherit the mask, so they start with SIGINT blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with defer_interrupts():  # a half-started process is in no list of processes to end
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def guard_start() -> Generator[None]:
    """Guard the start of processes: they never receive Ctrl-C (`block_interrupts`).

    Raises:
        ProcessDied: see `guard_server`.
    """
    with guard_server(), block_interrupts():
        yield


@contextmanager
def guard_server() -> Generator[None]:
    """Report a broken connection during a start as the death of the fork server.

    Raises:
        ProcessDied: the fork server or the new process was killed meanwhile.
    """
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise ProcessDied(KILLED) from error


def begin_server(context: ForkServerContext | SpawnContext) -> None:
    """Start the fork server and its imports, if there is one; the first process waits for them."""
    if context.get_start_method() == "forkserver":
        with block_interrupts():
            forkserver.ensure_running()


_of_thread = threading.local()
_preparation_data = spawn.get_preparation_data


@contextmanager
def hide_main() -> Generator[None]:
    """Keep processes started by this thread from running the main script again.

    `multiprocessing` runs it in each child to find objects that are pickled by name: a script
    without the line ``if __name__ == "__main__":`` would start all its work again in every child.
    """
    _of_thread.hides_main = True
    try:
        yield
    finally:
        _of_thread.hides_main = False


def _prepare(name: str) -> dict[str, Any]:
    """Preparation data of `multiprocessing` for a child, without the main script if hidden."""
    found = _preparation_data(name)
    hidden = getattr(_of_thread, "hides_main", False)
    return {k: v for k, v in found.items() if not (hidden and k.startswith("init_main_from"))}


spawn.get_preparation_data = _prepare


def end(processes: Collection[BaseProcess]) -> None:
    """End processes by SIGTERM, then SIGKILL, the only signal that a stopped process acts on."""
    for process in processes:
        process.terminate()
    join(processes, ENDING_S)
    for process in processes:
        process.kill()
    join(processes, ENDING_S)


def join(processes: Iterable[BaseProcess], within_s: float) -> None:
    """Wait until all processes have ended, at most ``within_s`` seconds in all."""
    end_s = time.monotonic() + within_s
    for process in processes:
        process.join(max(0.0, end_s - time.monotonic()))


class Watchdog:
    """Kills the fork server and those of its forks that stay stopped by SIGSTOP (on Linux).

    Processes traced by a debugger, and processes of other programs, are left alone.

    Attributes:
        killed: process ids of the killed processes.
    """

    def __init__(self) -> None:
        self.killed: set[int] = set()
        self._looks: dict[int, int] = {}

    def look(self) -> None:
        """Look once; kill processes that were found stopped in each of the last `LOOKS` looks."""
        server = cast(Any, forkserver)._forkserver._forkserver_pid  # None before its first fork
        ours = [] if server is None else [server, *_descendants_of(server)]
        found = [pid for pid in ours if _is_stopped(pid)]
        self._looks = {pid: self._looks.get(pid, 0) + 1 for pid in found}
        for pid, looks in self._looks.items():
            if looks >= LOOKS:
                self.killed.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def kill_stopped() -> Generator[Watchdog]:
    """Run a thread that kills processes stopped for long, so that no other has to wait for them.

    The fork server is watched too; its forks end with it.

    Raises:
        ProcessDied: one from the body, with the reason that a process was stopped.
    """
    stopped, done = Watchdog(), Event()

    def watch() -> None:
        while not done.wait(LOOK_EVERY_S):
            stopped.look()

    Thread(target=watch, daemon=True, name="stopped processes").start()
    try:
        yield stopped
    except ProcessDied as error:
        if stopped.killed:
            raise ProcessDied(f"a process {STOPPED}") from error
        raise
    finally:
        done.set()


def _descendants_of(pid: int) -> Iterator[int]:
    """The children of a process, and theirs; `proc_tid_children(5)`."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended meanwhile
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants_of(child)


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal; `proc_pid_stat(5)`."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def set_parent_death_signal() -> None:
    """Have the kernel kill this process as soon as the one that forked it has ended (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def die_with_parent() -> None:
    """From now on, end this process as soon as its parent has ended, for whatever reason.

    On Linux the kernel kills the fork server with the parent, and the forks with the fork server,
    even in the middle of a computation; elsewhere a thread waits for the parent's end.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        set_parent_death_signal()
        Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def is_orphan() -> bool:
    """Whether the parent of this process has ended."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Signals that end a command: Ctrl-C, a scheduler's SIGTERM, a closed terminal."""

_holding, _put_off = False, False


def listen() -> None:
    """From now on the first signal of `ENDING` raises KeyboardInterrupt; later ones are ignored.

    A command that gets two signals thus ends like one that gets one. A signal that was ignored when
    the command started (``nohup``) stays ignored.
    """
    for each in ENDING:
        if signal.getsignal(each) not in (signal.SIG_IGN, _ignore_signal):
            signal.signal(each, _interrupt)


def ignore() -> None:
    """Ignore all of `ENDING`: the command is at its end and starts no further process."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)


def _ignore_signal(*_: object) -> None:
    """Handler that does nothing, used while an interrupted command cleans up.

    A child process would inherit SIG_IGN and could not be ended; it does not inherit a handler.
    """


def _interrupt(*_: object) -> None:
    global _put_off
    for each in ENDING:
        if signal.getsignal(each) == _interrupt:
            signal.signal(each, _ignore_signal)
    _put_off = _holding
    if not _holding:
        raise KeyboardInterrupt


@contextmanager
def defer_interrupts() -> Generator[None]:
    """Defer the KeyboardInterrupt of a signal to the end of the block.

    A signal mask would not do: another thread may receive the signal, and Python then runs the
    handler in the main thread.
    """
    global _holding, _put_off
    _holding = True
    try:
        yield
    finally:
        _holding = False
        if _put_off:
            _put_off = False
            raise KeyboardInterrupt
