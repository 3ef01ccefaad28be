"""Processes that begin with everything imported.

Importing torch and the executors takes a process four seconds and 220 MB. So one process, the
fork server, imports them once and does nothing else, and all others are forks of it: they begin at
once and share the memory. The fork server has started no thread that a fork would miss. On other
systems than Linux libraries do not survive a fork, and each process imports for itself.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from threading import Thread

from harness import signals

SERVER = "harness.fork_server"
"""What the fork server imports before all others."""
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
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
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    _imported.extend(modules)
    made.set_forkserver_preload([SERVER, *_imported])
    return made


@contextmanager
def interrupts_held() -> Generator[None]:
    """Processes started here never see Ctrl-C: it is for the parent, which ends them.

    So is the fork server, which may begin with the first of them. A signal that arrives meanwhile
    is delivered to the parent afterwards, also one of another kind that ends it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with signals.held():  # a process that is half started is nobody's
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def killed_with_starter() -> None:
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
        killed_with_starter()
        Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def orphaned() -> bool:
    """Whether the process that asked for this one has ended."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()
