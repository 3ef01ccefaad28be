"""How a command is disturbed, and what must be seen of it then."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import EXIT_INTERRUPTED
from tests.processes import Started


@dataclass(frozen=True)
class Way:
    """One kind of disturbance.

    Args:
        does: it, to a command that leads a session of its own.
        code: with which the command ends then; None if it goes on.
    """

    does: Callable[[Started], None]
    code: int | None = EXIT_INTERRUPTED


def _to_group(*numbers: int, every_s: float = 0.05) -> Callable[[Started], None]:
    def does(command: Started) -> None:
        for number in numbers:
            with suppress(ProcessLookupError):  # the first one was enough
                os.killpg(command.pid, number)
            time.sleep(every_s if len(numbers) > 1 else 0.0)

    return does


def _to_parent(number: int) -> Callable[[Started], None]:
    return lambda command: command.kill(number)


WAYS = {
    "group killed": Way(_to_group(signal.SIGKILL), -signal.SIGKILL),
    "parent killed": Way(_to_parent(signal.SIGKILL), -signal.SIGKILL),
    "Ctrl-C": Way(_to_group(signal.SIGINT)),
    "Ctrl-C twice": Way(_to_group(signal.SIGINT, signal.SIGINT)),
    "SIGTERM": Way(_to_parent(signal.SIGTERM)),
    "SIGTERM to all": Way(_to_group(signal.SIGTERM)),
    "SIGHUP": Way(_to_parent(signal.SIGHUP)),
    "terminal closed": Way(_to_group(signal.SIGHUP)),
    "suspended": Way(_to_group(signal.SIGSTOP, signal.SIGCONT, every_s=0.3), None),
}
SEMAPHORE = "/dev/shm/sem."


def session(command: Started) -> list[int]:
    """The processes of a command that live, whoever is whose parent."""
    found = (path for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [int(path.name) for path in found if _lives_in(path, command.pid)]


def semaphores(command: Started) -> set[Path]:
    """The named ones that its processes have; who ends on purpose removes them."""
    maps = (Path(f"/proc/{each}/maps") for each in session(command))
    return {Path(line.split()[-1]) for file in maps for line in _lines(file) if SEMAPHORE in line}


def cpu_s(command: Started) -> float:
    """Processor seconds of those that live."""
    ticks = sum(sum(map(int, _stat(Path(f"/proc/{each}"))[11:13])) for each in session(command))
    return ticks / os.sysconf("SC_CLK_TCK")


def hears(command: Started) -> bool:
    """Whether it has begun to listen to signals."""
    try:
        told = Path(f"/proc/{command.pid}/status").read_text()
    except FileNotFoundError:
        return False
    caught = next(line.split()[1] for line in told.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


def _lives_in(path: Path, session: int) -> bool:
    stat = _stat(path)
    return stat[3] == str(session) and stat[0] not in "ZX"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # it has ended
        return []


def _stat(path: Path) -> list[str]:
    """What /proc says after the process's name; that of nobody if it has gone."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", *"0" * 40]
