"""The claim on a run: one process executes it, and whoever died or fell silent is taken over."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from harness.base.errors import UserError
from harness.store import Store
from harness.store import store as stores
from harness.store.store import CLAIM, STALE_S, Claim, has_ended, is_claimed, process_id


class Clock:
    """A clock on which somebody waits; ``meanwhile`` happens each second."""

    def __init__(self, monkeypatch, meanwhile=lambda: None):
        self.now_s, self.meanwhile = 0.0, meanwhile
        clock = {**vars(time), "monotonic": lambda: self.now_s, "sleep": self.sleep}
        monkeypatch.setattr(stores, "time", SimpleNamespace(**clock))

    def sleep(self, seconds):
        self.now_s += 1.0
        self.meanwhile()


def elsewhere(folder):
    """Another host's claim."""
    (folder / CLAIM).write_text("node12-77 0123")


def test_a_run_is_executed_by_one_process_at_a_time(tmp_path):
    held = []

    def execute(number):
        (mine := Claim(tmp_path)).acquire()
        held.append(number)
        assert mine.is_held()
        assert held == [number]
        held.remove(number)
        mine.release()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(execute, range(40)))
    assert not is_claimed(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_claim_is_renewed_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "RENEW_S", 0.001)
    (mine := Claim(tmp_path)).acquire()
    os.utime(tmp_path / CLAIM, (0, 0))
    while (tmp_path / CLAIM).stat().st_mtime == 0.0:
        time.sleep(0.001)
    mine.release()


def test_a_claim_that_is_renewed_is_waited_for_and_its_process_named(tmp_path, monkeypatch, capsys):
    clock = Clock(monkeypatch)

    def meanwhile():
        if clock.now_s % 30 == 0:
            os.utime(tmp_path / CLAIM, (clock.now_s, clock.now_s))
        if clock.now_s > 5 * STALE_S:
            (tmp_path / CLAIM).unlink()

    clock.meanwhile = meanwhile
    elsewhere(tmp_path)
    Claim(tmp_path).acquire()
    assert clock.now_s > 5 * STALE_S
    assert capsys.readouterr().err.endswith(": waiting for process node12-77\n")


def test_a_silent_claim_is_taken_over_when_it_is_stale_and_not_before(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    elsewhere(tmp_path)
    assert is_claimed(tmp_path)
    (mine := Claim(tmp_path)).acquire()
    assert STALE_S < clock.now_s < STALE_S + 3
    assert mine.is_held()


def test_a_waiter_that_was_suspended_itself_does_not_count_that_time(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)

    def meanwhile():
        clock.now_s += 2 * STALE_S if clock.now_s == 3.0 else 0.0
        os.utime(tmp_path / CLAIM, (clock.now_s, clock.now_s))
        if clock.now_s > 4 * STALE_S:
            (tmp_path / CLAIM).unlink()

    clock.meanwhile = meanwhile
    elsewhere(tmp_path)
    Claim(tmp_path).acquire()
    assert clock.now_s > 4 * STALE_S


def test_a_process_that_died_on_this_host_is_taken_over_at_once(tmp_path, monkeypatch):
    begun = "import sys; from harness.store.store import *; Claim(Path(sys.argv[1])).acquire()"
    subprocess.run([sys.executable, "-c", begun, str(tmp_path)], check=True)
    assert (tmp_path / CLAIM).exists()
    assert not is_claimed(tmp_path)
    clock = Clock(monkeypatch)
    Claim(tmp_path).acquire()
    assert clock.now_s == 0.0


@pytest.mark.parametrize("process", ["node12-77", "", "-", "x", "own x"])
def test_a_process_that_nobody_here_knows_may_live(process):
    assert not has_ended(process.replace("own ", process_id()))
    assert not has_ended(process_id())


def test_a_process_that_was_taken_over_is_told_so_in_one_line(tmp_path):
    writer = Store(tmp_path).begin({"seed": 0})
    elsewhere(writer.dir)
    for does in (writer.rows, writer.finish, lambda: writer.attach("a", b"")):
        with pytest.raises(UserError, match="taken over by another process"):
            does()
    writer.release()
    assert not (writer.dir / "run.json").exists()
    assert is_claimed(writer.dir)  # the other's claim stays
