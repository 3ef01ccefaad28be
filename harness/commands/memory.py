"""What needs more memory than there is, is refused, and the machine not brought to a standstill."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from harness.base.errors import UserError
from harness.base.settings import format_quantity

__all__ = ["available_bytes", "refuse_beyond_memory", "within_memory"]

SPARE = 0.05
"""Part of the memory that is left to others."""
CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> float:
    """Memory that can still be taken: of the machine, and of the group of processes; or infinity.

    Only Linux says.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    known = dict(line.split(":", 1) for line in lines)
    free = 1024.0 * int(known["MemAvailable"].split()[0])
    return (1.0 - SPARE) * min(free, _left_in_group())


def _left_in_group() -> float:
    """What the control group of a container leaves."""
    try:
        most = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        cached = re.search(r"^inactive_file (\d+)$", (CGROUP / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if most == "max" else int(most) - used + int(cached[1] if cached else 0)


def refuse_beyond_memory(what: str, size: float) -> None:
    """Refuse what is known beforehand to need too much.

    Raises:
        UserError: names what it is, its size and what there is.
    """
    if size > available_bytes():
        raise UserError(
            f"{what}: needs about {format_quantity(size, 'B')} of memory; allowed: what there is,"
            f" {format_quantity(available_bytes(), 'B')}"
        )


@contextmanager
def within_memory() -> Generator[None]:
    """What is asked for beyond the available memory fails at once, instead of all else.

    Raises:
        UserError: it did; with the size that was asked for, where that is known.
    """
    there = available_bytes()
    with _limited(there):
        try:
            yield
        except MemoryError as error:
            size = re.search(r"Unable to allocate ([\d.]+ \w+)", str(error))
            asked = f"{size[1]} more" if size else "more"
            raise UserError(
                f"memory: {asked} than the {format_quantity(there, 'B')} there were are needed;"
                " allowed: fewer workers or folds"
            ) from error


@contextmanager
def _limited(more: float) -> Generator[None]:
    """The address space of this process grows by so much at most; where systems can say so."""
    if sys.platform != "linux" or more == float("inf"):
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = [int(now + more), *(edge for edge in before if edge != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
