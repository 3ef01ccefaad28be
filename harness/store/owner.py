"""A process in one word, and whether the process of such a word lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def me() -> str:
    """This process: where it is, its number, and when it began, for numbers are given again."""
    return f"{_place()}:{os.getpid()}:{_began(os.getpid())}"


def lives(word: str) -> bool | None:
    """Whether a process lives; None if it is elsewhere, or nothing is known of it here."""
    place, _, process = word.partition(":")
    number, _, began = process.partition(":")
    if place != _place() or not began or not number.isdecimal():
        return None
    return _began(int(number)) == began


def _place() -> str:
    """What numbers of processes are of: one start of one kernel, one space of its numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # no Linux: nothing says who lives
        return f"{socket.gethostname()}-unknown".replace(":", "-").replace(" ", "-")


def _began(number: int) -> str:
    """When a process began, in ticks of its machine; empty if it is not there, or dead."""
    try:
        told = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = told.rpartition(")")[2].split()  # the name before it may hold anything
    return "" if state in "ZX" else fields[18]
