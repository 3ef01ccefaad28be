"""Processes that are forks of one that has imported everything."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import forked
from tests.processes import Started, run

CLUSTER = Path(__file__).parents[2] / "reproductions" / "clusters" / "k20m-server.toml"
STARTS = """
import sys, time
from harness import forked
waits = '''
import pathlib, time
from harness.forked import orphaned
while not orphaned():
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
from harness import forked

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
    process = forked.context().Process(target=exec, args=(code, {}))
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
    assert not forked.orphaned()
