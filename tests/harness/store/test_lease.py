"""Who holds a folder, on hosts whose clocks disagree."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread, current_thread, main_thread

import pytest

from harness.base.errors import UserError
from harness.store import Store, lease
from harness.store import lease as owner
from harness.store.lease import PATIENCE_S, Folder, Host, Lease, Leases

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc who lives")


class AwayError(Exception):
    """Whoever waits has waited enough."""


class Clocks:
    """Hosts with a clock each, far apart; time passes for all of them when somebody waits."""

    def __init__(self, waits_s):
        self.now_s, self.end_s = 0.0, waits_s
        self.meanwhile = lambda: None

    def host(self, name, apart_s):
        return Host(
            lambda: f"{name}:1", lambda word: None, lambda: self.now_s + apart_s, self.sleep, False
        )

    def sleep(self, seconds):
        self.now_s += 1.0
        self.meanwhile()
        if self.now_s > self.end_s:
            raise AwayError


@pytest.mark.parametrize("apart_s", [0.0, 1e9, -1e9])
def test_who_shows_signs_of_life_is_never_taken_over(tmp_path, apart_s):
    clocks = Clocks(20 * PATIENCE_S)
    holder = Lease(tmp_path, clocks.host("one", 0.0))
    holder.acquire()
    clocks.meanwhile = lambda: holder.beat() if clocks.now_s % 30 == 0 else None
    with pytest.raises(AwayError):
        Lease(tmp_path, clocks.host("other", apart_s)).acquire()
    assert holder.is_held()


@pytest.mark.parametrize("apart_s", [0.0, 1e9, -1e9])
def test_who_is_silent_is_taken_over_when_patience_ends_and_not_before(tmp_path, apart_s):
    clocks = Clocks(20 * PATIENCE_S)
    silent = Lease(tmp_path, clocks.host("one", apart_s))
    silent.acquire()
    Lease(tmp_path, clocks.host("other", 0.0)).acquire()
    assert PATIENCE_S < clocks.now_s <= PATIENCE_S + 2.0
    assert not silent.is_held()


def test_who_was_taken_over_disturbs_nobody(tmp_path):
    clocks = Clocks(20 * PATIENCE_S)
    stopped, other = (Lease(tmp_path, clocks.host(name, 0.0)) for name in "ab")
    stopped.acquire()
    other.acquire()
    stopped.beat()
    stopped.release()
    assert other.is_held()
    assert len(list(tmp_path.iterdir())) == 1


def test_who_waits_and_stood_still_itself_takes_nothing_from_who_lives(tmp_path):
    """However long ago it was that it read the count: it looks again first."""
    clocks = Clocks(20 * PATIENCE_S)
    holder = Lease(tmp_path, clocks.host("one", 0.0))
    holder.acquire()
    clocks.meanwhile = holder.beat

    def stood_still():
        clocks.now_s += 2 * PATIENCE_S
        return clocks.now_s

    with pytest.raises(AwayError):
        Lease(tmp_path, replace(clocks.host("other", 0.0), now_s=stood_still)).acquire()
    assert holder.is_held()


def test_a_sign_of_life_does_not_undo_that_a_lease_is_given_back(tmp_path, monkeypatch):
    mine = Lease(tmp_path, Host(beats=False))
    mine.acquire()
    under_way, write = Event(), mine._place.write

    def slow(number, text):
        if current_thread() is not main_thread():
            under_way.set()
            time.sleep(0.1)  # time enough to be given back
        write(number, text)

    monkeypatch.setattr(Folder, "write", staticmethod(slow))
    (beats := Thread(target=mine.beat)).start()
    under_way.wait()
    mine.release()
    beats.join()
    assert (tmp_path / ".lease-1").read_text() == lease.FREE


def test_a_place_that_is_away_keeps_no_other_lease_and_is_told_when_it_is_back(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(lease, "BEAT_S", 0.01)
    far = tmp_path / "far"
    far.mkdir()
    mine, away, write = Leases([Lease(tmp_path), Lease(far)]), Event(), Folder.write

    def refuses(place, number, text):
        if place.path == far and away.is_set():
            raise OSError("away")
        write(place, number, text)

    monkeypatch.setattr(Folder, "write", refuses)
    mine.acquire()
    away.set()
    mine.release()
    assert (tmp_path / ".lease-1").read_text() == lease.FREE
    assert (far / ".lease-1").read_text() != lease.FREE
    away.clear()
    Lease(far).acquire()  # it does not wait for itself


def test_an_outage_amid_taking_hold_is_no_hold(tmp_path, monkeypatch):
    far = tmp_path / "far"
    far.mkdir()
    asked, numbers = [], Folder.numbers

    def refuses(place):
        asked.append(place.path == far)
        if sum(asked) == 2:  # after the lease was made
            raise OSError("away")
        return numbers(place)

    monkeypatch.setattr(Folder, "numbers", refuses)
    with pytest.raises(OSError, match="away"):
        Leases([Lease(tmp_path), Lease(far)]).acquire()
    assert {place.joinpath(".lease-1").read_text() for place in (tmp_path, far)} == {lease.FREE}


def test_a_lease_that_was_never_written_is_waited_for_and_taken_over(tmp_path):
    clocks = Clocks(20 * PATIENCE_S)
    (tmp_path / ".lease-7").touch()
    late = Lease(tmp_path, clocks.host("one", 0.0))
    late.acquire()
    assert clocks.now_s > PATIENCE_S
    assert [path.name for path in tmp_path.iterdir()] == [".lease-8"]


def test_what_was_seen_long_ago_takes_nothing_from_who_holds_now(tmp_path):
    clocks = Clocks(1.0)
    slow, quick = (Lease(tmp_path, clocks.host(name, 0.0)) for name in "ab")
    for _ in range(3):
        quick.acquire()
        quick.release()
    quick.acquire()
    assert not slow._try_create(2)  # when it looked, 1 was the highest
    assert quick.is_held()


def test_one_at_a_time_holds_a_folder_however_many_want_it(tmp_path):
    holding, most = [], []

    def hold(_):
        mine = Lease(tmp_path)
        mine.acquire()
        holding.append(mine)
        most.append(len(holding))
        time.sleep(0.001)
        holding.remove(mine)
        mine.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hold, range(40)))
    assert most == [1] * 40


def test_a_holder_shows_signs_of_life_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_S", 0.001)
    mine = Lease(tmp_path)
    mine.acquire()
    told = set[str]()
    for _ in range(60_000):  # as long as it takes on a busy machine
        told.add((tmp_path / ".lease-1").read_text())
        if len(told) > 2:
            break
        time.sleep(0.001)
    mine.release()
    assert len(told) > 2


@LINUX
def test_who_died_on_this_host_is_taken_over_at_once(tmp_path):
    begun = "import sys; from harness.store.lease import *; Lease(Path(sys.argv[1])).acquire()"
    subprocess.run([sys.executable, "-c", begun, str(tmp_path)], check=True)
    assert "free" not in (tmp_path / ".lease-1").read_text()
    Lease(tmp_path, Host(sleep=lambda seconds: pytest.fail("it waits"))).acquire()


@LINUX
def test_the_dead_whom_nobody_has_asked_how_are_dead():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        word = f"{owner._place()}:{process.pid}:{owner._began(process.pid)}"
        assert owner.is_running(word)
        process.stdin.close()
        while owner.is_running(word):
            time.sleep(0.01)
    assert owner.is_running(word) is False
    assert owner.is_running(owner.process_id())
    assert owner.is_running(f"elsewhere-{owner.process_id()}") is None


def test_a_process_that_was_taken_over_is_told_so_in_one_line(tmp_path):
    writer = Store(tmp_path).begin({"seed": 0})
    (writer.dir / ".lease-2").write_text("elsewhere 1")
    for does in (writer.rows, writer.finish, lambda: writer.attach("a", b"")):
        with pytest.raises(UserError, match="taken over by another process"):
            does()
    with suppress(FileNotFoundError):
        writer.release()
    assert not (writer.dir / "run.json").exists()
