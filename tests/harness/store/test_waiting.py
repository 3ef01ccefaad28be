"""Whoever waits for a run hears for whom, how long, and what can be done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from harness.store import lease
from harness.store.lease import Host, Lease, Waiting

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc who lives")


class Process:
    """Another process of this host, which holds a folder."""

    def __init__(self, folder):
        self.running = subprocess.Popen(["sleep", "600"])
        began = lease._began(self.running.pid)
        self.word = f"{lease._place()}:{self.running.pid}:{began}:here"
        Lease(folder, Host(me=lambda: self.word, beats=False)).acquire()

    def stop(self):
        os.kill(self.running.pid, signal.SIGSTOP)
        while not lease.is_suspended(self.word):
            time.sleep(0.01)


@pytest.fixture
def holder(tmp_path):
    process = Process(tmp_path)
    yield process
    process.running.kill()
    process.running.wait()


def waits(folder, seconds, meanwhile=lambda now_s: None, lives=lease.is_running):
    """What is said in so many seconds to somebody who waits until the holder is killed."""
    said, clock = [], [0.0]

    def sleep(_):
        clock[0] += 1.0
        meanwhile(clock[0])
        if clock[0] > seconds:
            raise TimeoutError

    host = Host(lives=lives, now_s=lambda: clock[0], sleep=sleep, beats=False)
    with pytest.raises(TimeoutError):
        Lease(folder, host).acquire(Waiting("run ab12", said.append))
    return said


@LINUX
def test_who_is_at_work_is_waited_for(tmp_path, holder):
    beats = Lease(tmp_path, Host(me=lambda: holder.word))
    beats._number, beats._me = 1, holder.word
    lines = waits(tmp_path, 90, lambda now_s: beats.beat())
    told = f"process {holder.running.pid}, which is executing it; its result is read"
    assert [line.split(" for ")[1] for line in lines] == ["5 s", "20 s", "80 s"]
    assert all(told in line for line in lines)


@LINUX
def test_who_is_suspended_is_said_to_be_and_how_it_goes_on(tmp_path, holder):
    holder.stop()
    (line,) = waits(tmp_path, 10)
    number = holder.running.pid
    assert line == (
        f"run ab12: waiting for 5 s for process {number}, which is suspended; "
        f"kill -CONT {number} resumes it, kill -KILL {number} hands the run over"
    )


@LINUX
def test_who_lives_and_shows_no_life_is_said_to(tmp_path, holder):
    _, line = waits(tmp_path, 30)
    assert "which lives and shows no life for 20 s; kill -KILL" in line


def test_who_is_elsewhere_is_named_with_its_host(tmp_path):
    Lease(tmp_path, Host(me=lambda: "boot-1:77:5:node12", beats=False)).acquire()
    (line,) = waits(tmp_path, 10, lives=lambda word: None)
    told = "process 77 of node12, which is taken over if it shows no life for a minute"
    assert line == f"run ab12: waiting for 5 s for {told}"


def test_nothing_is_said_by_who_need_not_wait(tmp_path, capsys):
    Lease(tmp_path).acquire(Waiting("run ab12"))
    assert capsys.readouterr() == ("", "")
