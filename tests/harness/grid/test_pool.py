"""Worker processes of a grid: what they are given, say and return, and how they die."""

from __future__ import annotations

import gc
import operator
import os
import signal
import sys
import time
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

import pytest

from harness.base import forks
from harness.base.errors import ProcessDied
from harness.grid.pool import Ended, Pool

SAYS = partial(Connection.send, obj="begun")
"""A worker process that has news as it begins."""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="found in /proc")


def heard(pool: Pool) -> list[object]:
    """What the processes say until all tasks have ended."""
    found: list[object] = []
    while pool.is_busy:
        found.extend(pool.hear(60.0))
    return found


def test_tasks_are_shared_among_processes_and_their_ends_and_news_are_heard() -> None:
    with Pool(2, SAYS) as pool:
        for number in range(5):
            pool.submit(partial(operator.mul, number, 2))
        found = heard(pool)
        pool.submit(partial(int, "x"))
        (error,) = (each.error for each in heard(pool) if isinstance(each, Ended))
    results = sorted(each.result for each in found if isinstance(each, Ended))
    assert results == [0, 2, 4, 6, 8]
    assert 1 <= found.count("begun") <= 2
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        pytest.param(signal.SIGKILL, forks.KILLED, id="killed"),
        pytest.param(signal.SIGSTOP, "a process was stopped", id="stopped", marks=LINUX),
    ],
)
def test_a_process_that_is_killed_or_stopped_ends_the_pool(
    number: signal.Signals, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "LOOK_EVERY_S", 0.01)
    pool = Pool(2, SAYS)

    def carry_out() -> None:
        with forks.kill_stopped(), pool:
            pool.submit(partial(exec, f"import os; os.kill(os.getpid(), {number:d})", {}))
            pool.submit(partial(time.sleep, 600.0))
            heard(pool)

    with pytest.raises(ProcessDied, match=said):
        carry_out()
    assert [process.is_alive() for process in pool._members.values()] == [False, False]


@LINUX
def test_nothing_is_missed_or_said_where_the_resource_tracker_is_killed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tracker = resource_tracker._resource_tracker

    def carry_out() -> None:
        with Pool(1, SAYS) as pool:
            tracker.ensure_running()
            os.kill(tracker._pid, signal.SIGKILL)
            pool.submit(os.getpid)
            assert len(heard(pool)) == 2
            with Pool(1, SAYS) as another:  # which has the tracker started again
                another.submit(os.getpid)
                heard(another)

    carry_out()
    gc.collect()  # names are given back when nothing refers to what has them
    tracker._stop()  # it has read everything then
    assert capfd.readouterr().err == ""
