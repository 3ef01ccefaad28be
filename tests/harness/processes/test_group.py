"""The store where processes meet, and how they are started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base import forks
from harness.base.errors import EXIT_BAD_INPUT, ProcessDied, UserError
from harness.processes import rendezvous
from harness.processes import transport as world_module
from harness.processes.messages import FrameHeader, Kind, line_to, pack_header, unpack_header
from harness.processes.rank_main import serve
from harness.processes.rendezvous import announce_run, await_run, check_same_run, is_joining_late
from harness.processes.transport import HEADER_BYTES, Machine, PeerConnection, Socket, use_runtime
from harness.train import NEEDED, _start, _supervise, main, parser
from tests.run_files import OUTER_LOOP, ROUNDS, written

worlds_of = threading.local()
"""Of each thread of a test, in which world it is."""
STARTED = """
cd "$0"
[ "$1" = 0 ] || { echo "$1" >> started; exit 1; }
until [ "$(wc -l < started)" -eq 3 ]; do sleep 0.05; done
sleep 0.5
"""
"""FOLDER RANK: the server ends when another process was started three times."""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """As the environment of a worker names it, bound for a store that may be served."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        free = bound.getsockname()[1]
        named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free)}
        named |= {"RANK": "1", "WORLD_SIZE": "2", rendezvous.LISTENING: str(os.dup(bound.fileno()))}
        for name, value in named.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    yield free
    if unserved := os.environ.get(rendezvous.LISTENING):
        os.close(int(unserved))


def test_the_store_listens_where_it_was_told_to_and_nowhere_else(port: int) -> None:
    store = rendezvous._serve_store()
    socket.create_connection(("127.0.0.1", port), timeout=5.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5.0)
    store.set("key", "value")
    assert rendezvous.connect_to_store().get("key") == b"value"


@pytest.fixture
def worker(port: int) -> Iterator[Machine]:
    """The world of rank 1, to which that of this test, rank 0, has a line."""
    ours, theirs = Machine(), Machine()
    here, there = socket.socketpair()
    ours.lines[1], theirs.lines[0] = PeerConnection(Socket(here)), PeerConnection(Socket(there))
    with use_runtime(ours):
        yield theirs


def test_workers_hear_which_run_begins_and_refuse_another(port: int, worker: Machine) -> None:
    store = rendezvous._serve_store()
    announce_run("a1b2")
    with use_runtime(worker):
        assert await_run() == "a1b2"
        assert await_run(late=True) == "a1b2"
    check_same_run("a1b2", "a1b2", Path("run.toml"))
    with pytest.raises(UserError, match="run c3d4 is not allowed; allowed: a1b2"):
        check_same_run("a1b2", "c3d4", Path("run.toml"))
    assert store.check(["lagbench/0/begun"])


@pytest.mark.parametrize("says", ["nothing", "garbage"])
def test_a_server_that_ended_before_its_run_began_is_not_waited_for(
    worker: Machine, says: str
) -> None:
    if says == "garbage":
        line_to(1).send(bytes(HEADER_BYTES))
    line_to(1).end()
    with use_runtime(worker), pytest.raises(RuntimeError):
        await_run()


def test_three_processes_have_lines_to_each_other_and_what_was_said_arrives(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rendezvous._serve_store()
    worlds = [Machine() for _ in range(3)]

    def meet(rank: int) -> None:
        worlds_of.place = worlds[rank]
        rendezvous._meet(store if rank == 0 else rendezvous.connect_to_store(), rank, 3)

    real = world_module.current_runtime()  # that of the threads by which lines beat
    monkeypatch.setattr(rendezvous, "current_runtime", lambda: worlds_of.place)
    monkeypatch.setattr(world_module, "current_runtime", lambda: getattr(worlds_of, "place", real))
    with ThreadPoolExecutor(3) as together:
        list(together.map(meet, range(3)))
    for rank, place in enumerate(worlds):
        assert sorted(place.lines) == [other for other in range(3) if other != rank]
        for other, line in place.lines.items():
            line.send(pack_header(FrameHeader(Kind.DONE, 10 * rank + other)))
    for rank, place in enumerate(worlds):
        for other, line in place.lines.items():
            header, _ = unpack_header(line.header(), FrameHeader)
            assert header.step == 10 * other + rank


@pytest.mark.parametrize(("name", "value"), [("MASTER_PORT", "abc"), ("RANK", "x")])
def test_an_environment_that_says_nothing_is_one_line(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, name: str, value: str,
) -> None:  # fmt: skip
    store = rendezvous._serve_store()
    monkeypatch.setenv(name, value)
    assert main([str(written(tmp_path, ROUNDS))]) == EXIT_BAD_INPUT
    told = capsys.readouterr().err.splitlines()
    assert told == [f"error: environment: {name}={value}: allowed: a whole number"]
    del store


def test_a_server_that_never_answers_is_one_line(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise RuntimeError("timed out\nafter many lines")

    monkeypatch.setattr(rendezvous, "connect_to_store", refused)
    with pytest.raises(UserError, match=f":{port}$"):
        is_joining_late()


def test_nobody_is_started_again_in_rounds(tmp_path: Path) -> None:
    asked = parser().parse_args([str(written(tmp_path, ROUNDS)), "--restarts", "1"])
    with pytest.raises(UserError, match=r"--restarts 1: workers cannot rejoin rounds"):
        serve(asked, 3)


def test_nobody_is_started_again_whose_memory_would_be_another(tmp_path: Path) -> None:
    asked = parser().parse_args([str(written(tmp_path, OUTER_LOOP)), "--restarts", "1"])
    with pytest.raises(UserError, match=r"--restarts 1: .*; allowed with DelayedNesterov: 0"):
        serve(asked, 3)


def test_a_process_that_dies_is_started_again_as_often_as_was_asked(tmp_path: Path) -> None:
    def started(rank: int) -> BaseProcess:
        command = ["sh", "-c", STARTED, str(tmp_path), str(rank)]
        process = forks.context().Process(target=subprocess.check_call, args=(command,))
        process.start()
        return process

    (tmp_path / "started").touch()
    assert _supervise(started(0), [started(1)], started, 2) == 0
    assert (tmp_path / "started").read_text(encoding="utf-8").split() == ["1"] * 3


def test_a_group_is_started_waited_for_and_ends_with_its_servers_exit_code(tmp_path: Path) -> None:
    assert _start(3, 0, [str(tmp_path / "missing.toml")]) == EXIT_BAD_INPUT


@pytest.fixture
def group_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[BaseProcess]]:
    """Has the next group consist of processes that do other things, by rank; returns them."""

    def instead(*codes: str) -> list[BaseProcess]:
        found = [context.Process(target=exec, args=(code, {})) for code in codes]
        left = iter(found)
        replaced = SimpleNamespace(Process=lambda **_: next(left))
        monkeypatch.setattr(forks, "context", lambda *_: replaced)
        return found

    context = forks.context()
    return instead


STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
WAITS = """
import os, time
from harness.base import forks
while not (os.path.exists({name!r}) and (pid := open({name!r}).read())):
    time.sleep(0.01)
while not forks._is_stopped(int(pid)):
    time.sleep(0.01)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="found in /proc")
def test_a_worker_that_is_stopped_is_not_waited_for(
    group_of: Callable[..., list[BaseProcess]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(forks, "ENDING_S", 0.1)
    name = str(tmp_path / "pid")
    tells = f"import os; open({name!r}, 'w').write(str(os.getpid())); "
    _, worker = group_of(WAITS.format(name=name), tells + STOPS)
    assert _start(2, 0, []) == 0
    worker.join(60.0)
    assert worker.exitcode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="found in /proc")
def test_a_server_that_is_stopped_ends_the_run(
    group_of: Callable[..., list[BaseProcess]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "LOOK_EVERY_S", 0.01)
    server, _ = group_of(STOPS, "")
    late = threading.Timer(60.0, lambda: os.kill(server.pid, signal.SIGCONT))  # rather than hang
    late.start()
    with pytest.raises(ProcessDied, match="the server was stopped"):
        _start(2, 0, [])
    late.cancel()


def test_a_group_whose_fork_server_has_died_ends(
    group_of: Callable[..., list[BaseProcess]],
) -> None:
    group_of("import time; time.sleep(60)", f"import os; os._exit({forks.UNKNOWN})")
    with pytest.raises(ProcessDied, match=forks.KILLED):
        _start(2, 0, [])


def test_what_a_group_needs_is_there_to_be_imported_once() -> None:
    assert all(map(find_spec, NEEDED))
