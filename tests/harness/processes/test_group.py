"""The store where processes meet, and how they are started."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from harness.base import forks
from harness.base.errors import EXIT_BAD_INPUT, UserError
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


def test_what_a_group_needs_is_there_to_be_imported_once() -> None:
    assert all(map(find_spec, NEEDED))
