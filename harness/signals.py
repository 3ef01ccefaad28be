"""How a command ends when it is told to: once, whoever tells it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["ended_by_signals"]

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Ctrl-C, what ends a job, and a terminal that is closed."""


@contextmanager
def ended_by_signals() -> Generator[None]:
    """Within, each of `ENDING` is a KeyboardInterrupt, and the next ones are not heard.

    A command that is told twice to end thus ends as one that is told once. What whoever started the
    command has had ignored (``nohup``) stays so. Only the main thread can hear signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in ENDING}
    heard = [each for each, handler in before.items() if handler != signal.SIG_IGN]

    def interrupt(*_: object) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in heard:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each in heard:
            signal.signal(each, before[each])
