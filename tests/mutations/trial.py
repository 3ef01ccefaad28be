"""Trying mutations: a copy of the tree, one wrong line, and the tests that must see it.

Each copy has a cache folder of its own, and every trial begins with what the unmutated tree left
in both: nothing that a mutant compiled or stored is seen by another trial, or by a user.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import current_process
from pathlib import Path
from typing import NoReturn

import pytest

from tests.mutations.declared import PACKAGES, ROOT, Mutation, module_of, mutated, paths_of

PRELOADED = ("numba", "pyarrow.parquet", "safetensors", "scipy.stats", "torch")

PASSED, FAILED, NEVER_RAN = 0, 1, 3
"""Exit codes of pytest; every other than the first two says that tests could not be run."""
NO_MUTANT = ("SyntaxError", "ImportError", "ModuleNotFoundError", "NameError", "TypingError")
"""What fails with one of these is no program, and shows nothing about the tests."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutation.

    Args:
        verdict: ``caught``, ``survived``, ``timed out``, or ``broken`` if it is no program.
        seconds: of wall time.
        word: the line that pytest ends with.
    """

    verdict: str
    seconds: float
    word: str

    @property
    def is_caught(self) -> bool:
        """Whether a test saw it."""
        return self.verdict in ("caught", "timed out")


class Copy:
    """A copy of the tree to try mutations in, one after the other.

    All trials use one path, as what Python compiles does.

    Args:
        folder: where it lies; made here.
        root: the tree to copy.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._root, self._work, self._clean = root, folder / "work", folder / "clean"
        self._tree = self._work / "tree"
        for path in _files(root):
            (self._tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, self._tree / path)

    def begin(self, mutations: Sequence[Mutation], limit_s: float) -> Outcome:
        """Run the tests of all these mutations without any; what they compile is kept."""
        tests = sorted({test for each in mutations for test in paths_of(each, self._root)})
        outcome = self._run(tests, limit_s)
        shutil.copytree(self._work, self._clean)
        return outcome

    def tried(self, mutation: Mutation, limit_s: float) -> Outcome:
        """What the mutation's tests say to it."""
        shutil.rmtree(self._work)
        shutil.copytree(self._clean, self._work)
        path = self._tree / module_of(mutation, self._root)
        later = path.stat().st_mtime + 2.0  # Python compiles what has another time
        path.write_text(mutated(mutation, self._root), encoding="utf-8")
        os.utime(path, (later, later))
        return self._run(paths_of(mutation, self._root), limit_s)

    def _run(self, tests: Sequence[str], limit_s: float) -> Outcome:
        own = {
            "PYTHONPATH": str(self._tree),
            "XDG_CACHE_HOME": str(self._work / "cache"),
            "COLUMNS": "1000",  # pytest cuts its reasons to the width of the terminal
        }
        options = ["-x", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
        words = [*options, "-o", "addopts=--import-mode=importlib", *tests]
        told, begun = self._work / "told", time.monotonic()
        child = os.fork()
        if child == 0:
            _be_pytest(words, self._tree, told, own)
        code = _code_of(child, limit_s)
        seconds = time.monotonic() - begun
        if code is None:
            return Outcome("timed out", seconds, f"after {limit_s:g} s")
        return _judged(code, told.read_text(encoding="utf-8"), seconds)


def preload() -> None:
    """Import what most tests need once; a trial is then a fork, and half of its time is saved."""
    for name in PRELOADED:
        import_module(name)


def _be_pytest(words: Sequence[str], tree: Path, told: Path, own: Mapping[str, str]) -> NoReturn:
    """Become a process that runs pytest on the packages of a tree, and end."""
    code = NEVER_RAN
    try:
        os.setsid()
        current_process().daemon = False  # as what forked it is: tests start processes
        for stream in (1, 2):
            os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
        os.chdir(tree)
        os.environ.update(own)
        sys.path.insert(0, str(tree))
        for name in list(sys.modules):
            if name.partition(".")[0] in (*PACKAGES, "tests"):
                del sys.modules[name]
        code = int(pytest.main(list(words)))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _code_of(child: int, limit_s: float) -> int | None:
    """The exit code of a process; None if it did not end in time, and was killed."""
    end = time.monotonic() + limit_s
    try:
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it started, too
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def _judged(code: int, told: str, seconds: float) -> Outcome:
    lines = told.strip().splitlines()
    last = lines[-1] if lines else ""
    word = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), last)
    if code == PASSED:
        return Outcome("survived", seconds, word)
    reason = word.partition(" - ")[2]
    is_program = code == FAILED and not reason.partition(":")[0].endswith(NO_MUTANT)
    return Outcome("caught" if is_program else "broken", seconds, word)


def _files(root: Path) -> list[str]:
    """What a fresh clone would have, and what is not yet added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in told.split("\0") if name and (root / name).is_file()]
