"""Processes that are forks of one that has imported everything."""

from __future__ import annotations

import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from harness.base import forks
from harness.base.errors import ProcessDied
from tests.processes import Started, run

CLUSTER = Path(__file__).parents[3] / "reproductions" / "clusters" / "k20m-server.toml"
STARTS = """
import sys, time
from harness.base import forks as forked
waits = '''
import pathlib, time
from harness.base.forks import is_orphan
while not is_orphan():
    time.sleep(0.01)
pathlib.Path({told!r}).touch()
'''
forked.context().Process(target=exec, args=(waits.format(told=sys.argv[1]), {})).start()
print("started", file=sys.stderr, flush=True)
time.sleep(600)
"""

TWO_THREADS = """
import os, threading, time
from concurrent.futures import ProcessPoolExecutor
from harness.base import forks as forked

other_has_begun = threading.Event()

def use():
    with ProcessPoolExecutor(1, forked.context()) as pool:
        pool.submit(os.getpid).result()
        begun.set()
        other_has_begun.wait()

begun = threading.Event()
(first := threading.Thread(target=use)).start()
begun.wait()
with ProcessPoolExecutor(1, forked.context()) as pool:
    pool.submit(os.getpid).result()
    other_has_begun.set()
    first.join()
    time.sleep(0.2)
    print(pool.submit(int, "7").result())
"""


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "harness", "simulate", CLUSTER, "--workers", "2", "--folds", "50"],
        ["-m", "harness", "simulate", "missing.toml"],
        ["-m", "harness.train", "missing.toml"],
    ],
    ids=["done", "refused", "a process of a group"],
)
def test_a_fork_does_what_a_fresh_interpreter_does(words: list[object]) -> None:
    command = [sys.executable, *map(str, words)]
    fresh = subprocess.run(command, capture_output=True, text=True, check=False)
    fork = run(words)
    assert (fork.returncode, fork.stdout) == (fresh.returncode, fresh.stdout)
    assert fork.stderr.splitlines()[-1:] == fresh.stderr.splitlines()[-1:]


@pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
def test_a_process_begins_with_what_was_named_imported() -> None:
    code = "import sys; sys.exit(5 if 'torch' in sys.modules else 6)"
    process = forks.context().Process(target=exec, args=(code, {}))
    process.start()
    process.join(120.0)
    assert process.exitcode == 5


@pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")
def test_processes_of_a_thread_outlive_another_thread_that_began_the_fork_server() -> None:
    command = [sys.executable, "-c", TWO_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_a_process_hears_that_the_one_that_asked_for_it_was_killed(tmp_path: Path) -> None:
    told = tmp_path / "told"
    parent = Started(["-c", STARTS, told])
    parent.wait_until_told("started")
    time.sleep(0.2)
    assert not told.exists()
    parent.kill()
    parent.ended()
    end = time.monotonic() + 60.0
    while not told.exists():
        assert time.monotonic() < end, "never told"
        time.sleep(0.01)
    assert not forks.is_orphan()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="found in /proc")


@pytest.fixture
def sleepers() -> Iterator[list[BaseProcess]]:
    """Two processes that do nothing, of which the first is stopped."""
    both = [forks.context().Process(target=time.sleep, args=(600.0,)) for _ in range(2)]
    for each in both:
        each.start()
    send(both[0], signal.SIGSTOP)
    yield both
    for each in both:
        each.kill()


def send(process: BaseProcess, number: signal.Signals) -> None:
    """Stop a process, or have it go on; returns once it has."""
    os.kill(process.pid, number)
    while forks._is_stopped(process.pid) != (number == signal.SIGSTOP):
        time.sleep(0.001)


@LINUX
def test_a_process_that_is_found_stopped_again_and_again_is_killed(
    sleepers: list[BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "LOOKS", 3)
    (first, second), stopped = sleepers, forks.Watchdog()
    stopped.look()
    stopped.look()
    send(first, signal.SIGCONT)
    stopped.look()  # forgets what was counted before
    send(first, signal.SIGSTOP)
    stopped.look()
    stopped.look()
    assert stopped.killed == set()
    stopped.look()
    first.join(60.0)
    assert stopped.killed == {first.pid}
    assert (first.exitcode, second.exitcode) == (-signal.SIGKILL, None)


@LINUX
def test_a_stopped_process_that_somebody_else_started_is_left_alone(
    sleepers: list[BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "LOOKS", 1)
    theirs, stopped = subprocess.Popen(["sleep", "600"]), forks.Watchdog()
    theirs.send_signal(signal.SIGSTOP)
    while not forks._is_stopped(theirs.pid):
        time.sleep(0.001)
    stopped.look()
    assert stopped.killed == {sleepers[0].pid}
    assert theirs.poll() is None
    theirs.kill()
    theirs.wait()


@LINUX
def test_processes_end_when_they_have_to_also_one_that_is_stopped(
    sleepers: list[BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "ENDING_S", 0.1)
    forks.end(sleepers)
    forks.join(sleepers, 60.0)
    assert sleepers[0].exitcode == -signal.SIGKILL
    assert sleepers[1].exitcode in (-signal.SIGTERM, -signal.SIGKILL)


@LINUX
def test_a_fork_server_that_is_killed_before_it_answers_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = multiprocessing.forkserver.ForkServer()  # of this test alone
    server.set_forkserver_preload([])
    read = multiprocessing.forkserver.read_signed

    def kill_and_read(descriptor: int) -> int:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        return read(descriptor)

    server.ensure_running()
    os.kill(server._forkserver_pid, signal.SIGSTOP)  # so it does not answer
    monkeypatch.setattr("multiprocessing.forkserver.read_signed", kill_and_read)
    monkeypatch.setattr(
        "multiprocessing.forkserver.connect_to_new_process", server.connect_to_new_process
    )
    with pytest.raises(ProcessDied, match=forks.KILLED), forks.guard_start():
        forks.context().Process(target=os.getpid).start()
