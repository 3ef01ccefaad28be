"""Processes of this machine as a carrier: what they are given, say and return, how they die."""

from __future__ import annotations

import gc
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

import pytest

from harness.base import forks
from harness.base.errors import ProcessDied, UserError
from harness.grid import processes as room
from harness.grid.carriers import Later, Parcel
from harness.grid.processes import Processes
from tests.processes import Started


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes begin beside this one as soon as there is work for them."""
    monkeypatch.setattr(room, "LATEST_S", 0.0)


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="found in /proc")


def say(tell: Callable[[object], object]) -> None:
    """A process that has news as it begins."""
    tell("begun")


def do(task: Any, tell: Callable[[object], object], waits: bool) -> object:
    """Work of which each task is a call, packed or not."""
    return (task.content if isinstance(task, Parcel) else task)()


@contextmanager
def processes(jobs: int, here: bool = False) -> Iterator[Processes]:
    pool = Processes(jobs, say, here=here)
    try:
        yield pool
    finally:
        pool.close()


def hear(pool: Processes, jobs: Sequence[Future[Any]]) -> list[object]:
    """What the processes say until all jobs have ended."""
    found: list[object] = []
    while not all(job.done() for job in jobs):
        pool.wait(60.0, found.append)
    return found


@pytest.mark.parametrize("here", [False, True])
def test_tasks_are_shared_among_processes_and_their_ends_and_news_are_heard(here: bool) -> None:
    with processes(2, here) as pool:
        jobs = pool.start(do, [partial(operator.mul, number, 2) for number in range(5)])
        found = hear(pool, jobs)
        assert [job.result() for job in jobs] == [0, 2, 4, 6, 8]
        assert found.count("begun") <= 2 - here
        (job,) = pool.start(do, [partial(int, "x")])
        with pytest.raises(ValueError, match="invalid literal"):
            hear(pool, [job])


def test_the_only_process_is_this_one_and_what_it_does_is_sent_nowhere() -> None:
    held = threading.Lock()  # which cannot be sent
    with processes(1, here=True) as pool:
        jobs = pool.start(do, [lambda: (os.getpid(), held.locked())] * 2)
        assert hear(pool, jobs) == []
        assert [job.result() for job in jobs] == [(os.getpid(), False)] * 2


def test_what_waits_for_another_process_comes_after_the_rest() -> None:
    done: list[str] = []

    def work(task: str, tell: object, waits: bool) -> object:
        if task == "made elsewhere" and not waits:
            return Later()
        return done.append(task)

    with processes(1, here=True) as pool:
        hear(pool, pool.start(work, ["made elsewhere", "ours"]))
    assert done == ["ours", "made elsewhere"]


def test_no_other_process_begins_for_what_this_one_has_done_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "LATEST_S", 600.0)
    monkeypatch.setattr(room, "BEGINS_S", 300.0)
    with processes(2, here=True) as pool:
        jobs = pool.start(do, [os.getpid] * 3)
        assert hear(pool, jobs) == []
    assert {job.result() for job in jobs} == {os.getpid()}


class OddError(Exception):
    """An error that is made of two values, and so cannot be unpacked by its message."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{why} ({code})")


def raise_odd() -> None:
    raise OddError(7, "no such thing")


def raise_held() -> None:
    error = ValueError("with a lock")
    error.held = threading.Lock()  # type: ignore[attr-defined]
    raise error


@pytest.mark.parametrize(
    ("call", "told"),
    [
        pytest.param(
            raise_odd, r"a run raised .*OddError: no such thing \(7\)", id="two arguments"
        ),
        pytest.param(raise_held, "a run raised ValueError: with a lock", id="unpackable error"),
        pytest.param(threading.Lock, "what a run gave cannot be sent", id="unpackable result"),
        pytest.param(Parcel(lambda: 0).content, "a run cannot be sent", id="unpackable task"),
    ],
)
def test_what_cannot_be_packed_is_one_line_and_kills_nothing(
    call: Callable[[], object], told: str
) -> None:
    with processes(1) as pool:
        with pytest.raises(UserError, match=told) as error:
            hear(pool, pool.start(do, [call]))
        assert "\n" not in str(error.value)
        (job,) = pool.start(do, [os.getpid])
        hear(pool, [job])
        assert job.result() != os.getpid()


def test_functions_that_another_process_cannot_import_travel_by_value() -> None:
    held = 21
    with processes(1) as pool:
        (job,) = pool.start(do, [Parcel(lambda: 2 * held)])
        hear(pool, [job])
    assert job.result() == 42


def test_an_error_of_another_process_ends_what_this_one_does() -> None:
    def work(task: str, tell: Callable[[object], object], waits: bool) -> object:
        while task == "long":
            time.sleep(0.01)
            tell("on")
        return None

    heard: list[object] = []
    with processes(2, here=True) as pool:
        pool.start(work, ["long"])
        pool._news.put(ProcessDied("another one died"))  # as a thread of another process does
        with pytest.raises(ProcessDied, match="another one died"):
            pool.wait(60.0, heard.append)
    assert heard == ["on"]


def test_a_script_is_not_run_again_by_its_processes_and_its_functions_reach_them(tmp_path) -> None:
    """Without the line ``if __name__ == "__main__":``, too."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import os
from harness.grid.carriers import Parcel
from harness.grid.processes import Processes
from tests.harness.grid.test_pool import do, hear, say

print("the script runs", flush=True)

def own():
    return os.getpid()

pool = Processes(1, say, here=False)
jobs = pool.start(do, [Parcel(own), Parcel(own)])
hear(pool, jobs)
pool.close()
print(len({job.result() for job in jobs} - {os.getpid()}))
""",
        encoding="utf-8",
    )
    ended = Started([script]).ended()
    assert (ended.stdout, ended.returncode) == ("the script runs\n1\n", 0), ended.stderr


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
    members: list[Any] = []

    def carry_out() -> None:
        with forks.kill_stopped(), processes(2) as pool:
            ends = partial(exec, f"import os; os.kill(os.getpid(), {number:d})", {})
            jobs = pool.start(do, [ends, partial(time.sleep, 600.0)])
            members.extend(pool._members)
            hear(pool, jobs)

    with pytest.raises(ProcessDied, match=said):
        carry_out()
    assert [member.process.is_alive() for member in members] == [False, False]


@LINUX
def test_nothing_is_missed_or_said_where_the_resource_tracker_is_killed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tracker = resource_tracker._resource_tracker

    def carry_out() -> None:
        with processes(1) as pool:
            tracker.ensure_running()
            os.kill(tracker._pid, signal.SIGKILL)
            assert hear(pool, pool.start(do, [os.getpid])) == ["begun"]
            with processes(1) as another:  # which has the tracker started again
                hear(another, another.start(do, [os.getpid]))

    carry_out()
    gc.collect()  # names are given back when nothing refers to what has them
    tracker._stop()  # it has read everything then
    assert capfd.readouterr().err == ""
