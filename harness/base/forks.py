"""Processes that are forks of one with everything imported, and signals that end a command.

Importing torch and the executors takes a process four seconds and 220 MB. So one process, the fork
server of `multiprocessing`, imports them once, and all others are forks of it: they start at once
and share the memory. On other systems than Linux, libraries do not survive a fork, and each process
imports for itself.

A command ends once: the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, later ones are
ignored.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from threading import Thread
from types import ModuleType

from harness.base.errors import ProcessDied

SERVER = "harness.base.fork_server"
"""The module that the fork server imports before all others."""

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>

ENDING_S = 10.0
"""Seconds that a process may take to end after SIGTERM, before it gets SIGKILL."""

_imported: list[str] = []


def context(*modules: str) -> ForkServerContext | SpawnContext:
    """The `multiprocessing` context that makes processes, queues and locks.

    Args:
        modules: modules that the processes need; the fork server imports them once, if they are
            named before its first fork.
    """
    # A killed process cannot release its semaphores; the resource tracker does, without warning.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker:UserWarning")
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    forking = multiprocessing.get_context("forkserver")
    _imported.extend(modules)
    forking.set_forkserver_preload([SERVER, *_imported])
    return forking


@contextmanager
def guard_start() -> Generator[None]:
    """Start processes that never receive Ctrl-C: the parent does, and ends them.

    This includes the fork server, which may start with the first of them.

    Raises:
        ProcessDied: the fork server, or the new process, was killed meanwhile.
    """
    # Children inherit the mask. A Ctrl-C that arrives meanwhile reaches the parent afterwards.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    except (EOFError, ConnectionError) as error:  # the pipe to the fork server is broken
        raise ProcessDied("a process was killed from outside, e.g. for want of memory") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def hide_main() -> Generator[None]:
    """Keep processes that are started here from running the main script again.

    `multiprocessing` runs it in each child to find objects that are pickled by name: a script
    without the line ``if __name__ == "__main__":`` would start all its work again in every child.
    """
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def end(processes: Collection[BaseProcess], within_s: float = 0.0) -> None:
    """End processes that do not end by themselves in ``within_s`` seconds; SIGKILL comes last."""
    join(processes, within_s)
    for process in processes:
        process.terminate()
        if process.pid is not None:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(process.pid, signal.SIGCONT)  # a stopped process acts on no SIGTERM
    join(processes, ENDING_S)
    for process in processes:
        process.kill()
    join(processes, ENDING_S)


def join(processes: Iterable[BaseProcess], within_s: float) -> None:
    """Wait until all processes have ended, at most ``within_s`` seconds in all."""
    end_s = time.monotonic() + within_s
    for process in processes:
        process.join(max(0.0, end_s - time.monotonic()))


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


ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Signals that end a command: Ctrl-C, a scheduler's SIGTERM, a closed terminal."""


def listen() -> None:
    """From now on the first signal of `ENDING` raises KeyboardInterrupt; later ones are ignored.

    A command that gets two signals thus ends like one that gets one. A signal that was ignored when
    the command started (``nohup``) stays ignored.
    """
    for number in ENDING:
        if signal.getsignal(number) not in (signal.SIG_IGN, _ignore_signal):
            signal.signal(number, _interrupt)


def ignore() -> None:
    """Ignore all of `ENDING`: the command is at its end and starts no further process."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def _ignore_signal(*_: object) -> None:
    """Handler that does nothing, used while an interrupted command cleans up.

    A child process would inherit SIG_IGN and could not be ended; it does not inherit a handler.
    """


def _interrupt(*_: object) -> None:
    for number in ENDING:
        if signal.getsignal(number) == _interrupt:
            signal.signal(number, _ignore_signal)
    raise KeyboardInterrupt
