"""A process in one word, and whether the process of such a word lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def me() -> str:
    """This process: where it is, its number, and when it began, for numbers are given again.

    The name of its host is for people.
    """
    return f"{_place()}:{os.getpid()}:{_began(os.getpid())}:{_host()}"


def lives(word: str) -> bool | None:
    """Whether a process lives; None if it is elsewhere, or nothing is known of it here."""
    place, pid, began, _ = _parts(word)
    if place != _place() or not began or not pid.isdecimal():
        return None
    return _began(int(pid)) == began


def stopped(word: str) -> bool:
    """Whether a process of this host is suspended."""
    return _stat(int(number(word)))[:1] in (["T"], ["t"])


def number(word: str) -> str:
    """By which its host knows a process."""
    return _parts(word)[1]


def host(word: str) -> str:
    """The name of a process's host."""
    return _parts(word)[3] or "another host"


def _parts(word: str) -> list[str]:
    """Place, number, beginning and host; what a word does not say is empty."""
    return [*word.split(":"), "", "", "", ""][:4]


def _host() -> str:
    return socket.gethostname().replace(":", "-").replace(" ", "-")


def _place() -> str:
    """What numbers of processes are of: one start of one kernel, one space of its numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # no Linux: nothing says who lives
        return f"{_host()}-unknown"


def _began(pid: int) -> str:
    """When a process began, in ticks of its machine; empty if it is not there, or dead."""
    state, *fields = _stat(pid) or "Z"
    return "" if state in "ZX" else fields[18]


def _stat(pid: int) -> list[str]:
    """What a Linux machine says of a process from its state on; nothing if it is not there."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return told.rpartition(")")[2].split()  # the name before it may hold anything
