"""Processes that are forks of one with everything imported, and signals that end them.

Processes that begin with everything imported. Importing torch and the executors takes a process
four seconds and 220 MB. So one process, the fork server, imports them once and does nothing else,
and all others are forks of it: they begin at once and share the memory. The fork server has
started no thread that a fork would miss. On other systems than Linux libraries do not survive a
fork, and each process imports for itself.

How a command ends when it is told to: once, whoever tells it.
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
    "interrupt_on_signals",
    "is_orphan",
    "join",
    "kill_stopped",
    "listen",
    "set_parent_death_signal",
]

SERVER = "harness.base.forkserver_preload"
"""What the fork server imports before all others."""

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>

ENDING_S = 10.0
"""How long a process that is told to end may take."""

LOOKS, LOOK_EVERY_S = 20, 1.0
"""A process that is found stopped so many times in a row is killed: after 20 s, when its peers take
it for dead (`SILENT_AFTER_S`). A count and no clock: Ctrl-Z stops the one that looks, too."""

UNKNOWN = 255
"""The exit code of a process whose fork server died before it, in `multiprocessing`."""

KILLED = "a process was killed from outside, e.g. for want of memory"

STOPPED = f"was stopped, and killed after {LOOKS * LOOK_EVERY_S:.0f} s"

_imported: list[str] = []


def context(*modules: str) -> ForkServerContext | SpawnContext:
    """What makes processes, queues and locks.

    Args:
        modules: what the processes need; imported once if named before the first one starts.
    """
    # torch reads it when it is imported: what a store says as it ends, we say in our own words.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # A process that is killed cannot give semaphores back; who does it afterwards need not warn.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    # Nor need we where it is killed itself and started again: our pipes have no names.
    warnings.filterwarnings("ignore", "resource_tracker", UserWarning)
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    _imported.extend(modules)
    made.set_forkserver_preload([SERVER, *_imported])
    return made


@contextmanager
def block_interrupts() -> Generator[None]:
    """Processes started here never see Ctrl-C: it is for the parent, which ends them.

    So is the fork server, which may begin with the first of them. A signal that arrives meanwhile
    is delivered to the parent afterwards, also one of another kind that ends it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with defer_interrupts():  # a process that is half started is nobody's
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def guard_start() -> Generator[None]:
    """Guard the start of processes: they never see Ctrl-C (`interrupts_held`).

    Raises:
        ProcessDied: see `guard_server`.
    """
    with guard_server(), block_interrupts():
        yield


@contextmanager
def guard_server() -> Generator[None]:
    """Take an error of a start for the death of the fork server.

    Raises:
        ProcessDied: it was killed meanwhile, or the process itself.
    """
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise ProcessDied(KILLED) from error


def begin_server(context: ForkServerContext | SpawnContext) -> None:
    """Have the fork server begin its imports, if there is one; the first process waits for them."""
    if context.get_start_method() == "forkserver":
        with block_interrupts():
            forkserver.ensure_running()


_of_thread = threading.local()
_preparation_data = spawn.get_preparation_data


@contextmanager
def hide_main() -> Generator[None]:
    """Processes that this thread starts within do not run the script of this one again.

    `multiprocessing` would have each of them do so, to find there what is sent by name: a script
    without the line ``if __name__ == "__main__":`` would begin everything anew in each of them.
    """
    _of_thread.hides_main = True
    try:
        yield
    finally:
        _of_thread.hides_main = False


def _prepare(name: str) -> dict[str, Any]:
    """What `multiprocessing` tells a process as it begins; of a script only if it is not hidden."""
    found = _preparation_data(name)
    hidden = getattr(_of_thread, "hides_main", False)
    return {k: v for k, v in found.items() if not (hidden and k.startswith("init_main_from"))}


spawn.get_preparation_data = _prepare


def end(processes: Collection[BaseProcess]) -> None:
    """End processes, those that are stopped too: SIGKILL is the only signal they get."""
    for process in processes:
        process.terminate()
    join(processes, ENDING_S)
    for process in processes:
        process.kill()
    join(processes, ENDING_S)


def join(processes: Iterable[BaseProcess], within_s: float) -> None:
    """Wait for the end of all, so long."""
    end_s = time.monotonic() + within_s
    for process in processes:
        process.join(max(0.0, end_s - time.monotonic()))


class Watchdog:
    """The fork server and its forks that do nothing since they got SIGSTOP (on Linux).

    One that a debugger traces is none of them, nor is a process that somebody else has started.

    Attributes:
        killed: those that were killed for it.
    """

    def __init__(self) -> None:
        self.killed: set[int] = set()
        self._looks: dict[int, int] = {}

    def look(self) -> None:
        """Look once more; kill those that were found stopped in each of the last `LOOKS`."""
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
    """Kill processes that are stopped for long meanwhile, so that no other has to wait for them.

    The fork server is one of them, and takes its forks with it.

    Raises:
        ProcessDied: instead of one that does not say that a process was stopped.
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
    """From now on, end this process as soon as the one that asked for it has, however it did.

    On Linux that one takes the fork server with it, and the fork server its forks, whatever they
    do at the time; elsewhere they notice it themselves.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        set_parent_death_signal()
        Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def is_orphan() -> bool:
    """Whether the process that asked for this one has ended."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Ctrl-C, what ends a job, and a terminal that is closed."""

_holding, _put_off = False, False


def listen() -> None:
    """From now on each of `ENDING` is a KeyboardInterrupt, and those after the first are not heard.

    A command that is told twice to end thus ends as one that is told once. What whoever started the
    command has had ignored (``nohup``) stays so.
    """
    for each in ENDING:
        if signal.getsignal(each) not in (signal.SIG_IGN, _ignore_signal):
            signal.signal(each, _interrupt)


def ignore() -> None:
    """From now on none is heard: the command is at its end, and starts no process any more."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)


def _ignore_signal(*_: object) -> None:
    """Hear nothing; a process that is started inherits SIG_IGN, and could not be ended, not this.

    It is for who has been told, and mends.
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
    """Within, who listens hears nothing; it is told at the end.

    A mask of signals does not do that: another thread may get one, and the main one hears of it.
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


@contextmanager
def interrupt_on_signals() -> Generator[None]:
    """Within, `listen`; afterwards as before. Only the main thread can hear signals.

    A process that listens anyway goes on with it.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {each: signal.getsignal(each) for each in ENDING} if here else {}
    if not here or _interrupt in before.values():
        yield
        return
    listen()
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
