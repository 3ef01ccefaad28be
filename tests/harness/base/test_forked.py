"""Processes that are forks of one that has imported everything."""

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
from tests.processes import run

CLUSTER = Path(__file__).parents[3] / "reproductions" / "clusters" / "k20m-server.toml"
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


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="found in /proc")


@pytest.fixture
def sleepers() -> Iterator[list[BaseProcess]]:
    """Two processes that do nothing, of which the first is stopped."""
    both = [forks.context().Process(target=time.sleep, args=(600.0,)) for _ in range(2)]
    for each in both:
        each.start()
    os.kill(both[0].pid, signal.SIGSTOP)
    while " T " not in Path(f"/proc/{both[0].pid}/stat").read_text():
        time.sleep(0.001)
    yield both
    for each in both:
        each.kill()


@LINUX
def test_processes_end_when_they_have_to_also_one_that_is_stopped(
    sleepers: list[BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "ENDING_S", 0.1)
    forks.end(sleepers)
    forks.join(sleepers, 60.0)
    assert all(process.exitcode in (-signal.SIGTERM, -signal.SIGKILL) for process in sleepers)


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError, ConnectionResetError])
def test_a_fork_server_that_is_killed_during_a_start_is_one_line(error):
    with pytest.raises(ProcessDied, match="killed from outside"), forks.guard_start():
        raise error
