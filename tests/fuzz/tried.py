"""One damaged input, read with everything forbidden that a reader of data has no business with."""

import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from tests.fuzz.kinds import Input

SECONDS = 10
"""Of processor time; what takes longer hangs."""
MEMORY = 1 << 30
"""Bytes that a reader may take beyond what the process has."""
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class")
_watched: list[tuple[Path, list[str]]] = []
_watching = False


class Forbidden(BaseException):
    """A reader did what no reader may: no `except Exception` hides it."""


class Hangs(BaseException):
    """A reader does not end."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched:
        return
    folder, seen = _watched[-1]
    if event in FORBIDDEN:
        seen.append(f"{event} {arguments[:1]}")
        raise Forbidden(event)
    if event == "open" and isinstance(arguments[0], str | os.PathLike | bytes):
        writes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        place = Path(os.path.realpath(os.fsdecode(arguments[0])))
        if writes and folder not in place.parents and place != Path(os.devnull):
            seen.append(f"writes {place}")
            raise Forbidden(str(place))


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Nothing is started, unpickled or written outside the folder; what was is listed."""
    global _watching
    if not _watching:
        sys.addaudithook(_audit)
        _watching = True
    seen: list[str] = []
    _watched.append((folder.resolve(), seen))
    try:
        yield seen
    finally:
        _watched.pop()


@contextmanager
def bounded() -> Iterator[None]:
    """So much processor time and memory, and no more."""

    def ring(number: int, frame: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGVTALRM, ring)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


class Bench:
    """A folder where inputs of one kind are tried.

    Args:
        kind: of input.
    """

    def __init__(self, kind: Input) -> None:
        self.kind, self._above = kind, Path(tempfile.mkdtemp())
        self._folder = self._above / "folder"
        self._folder.mkdir()
        kind.around(self._folder)
        self.good = kind.good(self._folder)
        found = sorted(self._folder.glob(kind.file))
        self._path = found[0] if found else self._folder / kind.file

    def close(self) -> None:
        """Nothing is left."""
        shutil.rmtree(self._above)

    def tried(self, content: bytes) -> str:
        """What is wrong with how some content is read; nothing if it is read, or refused well."""
        self._path.write_bytes(content)
        with watched(self._folder) as seen:
            wrong = self._read()
        if seen:
            return f"forbidden: {seen[0]}"
        if [path.name for path in self._above.iterdir()] != ["folder"]:
            return "something lies outside the folder"
        return wrong

    def _read(self) -> str:
        try:
            with bounded():
                self.kind.read(self._folder)
        except UserError as error:
            told = str(error)
            return "" if len(told.splitlines()) == 1 and len(told) < 4000 else f"line: {told!r}"
        except Hangs:
            return "hang"
        except Forbidden as error:
            return f"forbidden: {error}"
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"traceback: {error!r:.120} in {Path(last.filename).name}:{last.lineno}"
        return ""
