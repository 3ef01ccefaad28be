"""Python processes for tests, started as forks of one process that has imported everything.

A start costs a fork where a fresh interpreter costs four seconds of imports. ``run`` and
``start`` take the words that would follow ``python``: ``-m module …``, ``-c code …`` or
``script …``. Tests of imports and of start-up take `subprocess` and `sys.executable` instead.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType

from harness.base import forks
from harness.processes.group import LISTENING

PATIENCE_S = 600.0
"""What hangs fails after this; what is slow, on a machine with much to do, does not."""


class Started:
    """A process that runs, or has run, what ``python WORDS`` runs.

    Args:
        words: of the command line, without ``python``.
        environment: of the process; this one's where none is given.
        listening: a socket at the address of a group, where the process is its server.
        leads: whether the process leads a session of its own, so that signals reach it alone.
    """

    def __init__(
        self,
        words: Sequence[object],
        environment: Mapping[str, str] | None = None,
        listening: socket.socket | None = None,
        leads: bool = False,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.out, self.err = (Path(self.folder.name) / name for name in ("out", "err"))
        for file in (self.out, self.err):
            file.touch()
        self.words = list(map(str, words))
        where = str(Path.cwd()), dict(os.environ if environment is None else environment)
        self.process = forks.context().Process(
            target=_become,
            args=(self.words, *where, str(self.out), str(self.err), listening, leads),
        )
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def ended(self) -> CompletedProcess[str]:
        """Wait for its end: exit code (of a signal, less 0) and what it wrote."""
        self.process.join(PATIENCE_S)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
        assert code is not None, f"{self.words}: {PATIENCE_S} s and no end: {self.err.read_text()}"
        return CompletedProcess(self.words, code, self.out.read_text(), self.err.read_text())

    def wait_until_told(self, word: str) -> None:
        """Until there is such a word on stderr."""
        end = time.monotonic() + PATIENCE_S
        while word not in self.err.read_text():
            assert self.process.is_alive() or word in self.err.read_text(), self.err.read_text()
            assert time.monotonic() < end, f"never told: {word}"
            time.sleep(0.02)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, unless the process has ended."""
        if self.process.is_alive():
            os.kill(self.pid, number)


def start(words: Sequence[object], **choices: object) -> Started:
    """Start a process and go on; see `Started`."""
    return Started(words, **choices)  # type: ignore[arg-type]


def run(words: Sequence[object], **choices: object) -> CompletedProcess[str]:
    """Start a process and wait for its end; see `Started`."""
    return start(words, **choices).ended()


def hear_signals() -> None:
    """Be like a process started from a terminal, whatever ignores or holds signals around it.

    A fork server that began while interrupts were held hands that on to its forks.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _become(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    out: str,
    err: str,
    listening: socket.socket | None,
    leads: bool,
) -> None:
    """In the fork: do what ``python WORDS`` does, for as long as who wants it lives."""
    forks.die_with_parent()
    if leads:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if listening is not None:
        os.environ[LISTENING] = str(listening.detach())
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    hear_signals()
    how, *rest = words
    if how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = words
        runpy.run_path(how, run_name="__main__")
