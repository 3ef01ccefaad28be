"""How a command ends when it is told to: once, whoever tells it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["ended_by_signals", "held", "ignore", "listen"]

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
        if signal.getsignal(each) not in (signal.SIG_IGN, _deaf):
            signal.signal(each, _interrupt)


def ignore() -> None:
    """From now on none is heard: the command is at its end, and starts no process any more."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)


def _deaf(*_: object) -> None:
    """Hear nothing; a process that is started inherits SIG_IGN, and could not be ended, not this.

    It is for who has been told, and mends.
    """


def _interrupt(*_: object) -> None:
    global _put_off
    for each in ENDING:
        if signal.getsignal(each) == _interrupt:
            signal.signal(each, _deaf)
    _put_off = _holding
    if not _holding:
        raise KeyboardInterrupt


@contextmanager
def held() -> Generator[None]:
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
def ended_by_signals() -> Generator[None]:
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
