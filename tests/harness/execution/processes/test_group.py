"""The store where processes meet, and how they are started."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from harness import forked
from harness.errors import EXIT_BAD_INPUT, UserError
from harness.execution.processes import group as rendezvous
from harness.execution.processes import rejoining
from harness.execution.processes.command import serve
from harness.execution.processes.group import DONE, agree, begin, begun, dismiss
from harness.execution.processes.rejoining import comes_late
from harness.train import NEEDED, _kept_up, _start, main, parser
from tests.run_files import OUTER_LOOP, ROUNDS, written

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


def test_a_server_that_ended_before_its_run_began_is_not_waited_for(port, monkeypatch):
    os.close(int(os.environ.pop(rendezvous.LISTENING)))
    monkeypatch.setattr(rendezvous, "HEARD_WITHIN", timedelta(seconds=1))
    told: list[BaseException] = []

    def listen():
        try:
            begun()
        except RuntimeError as error:
            told.append(error)

    worker = threading.Thread(target=listen, daemon=True)
    worker.start()
    worker.join(30.0)
    assert told, "it still waits"


def test_the_store_listens_where_it_was_told_to_and_nowhere_else(port: int) -> None:
    store = rendezvous._served()
    socket.create_connection(("127.0.0.1", port), timeout=5.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5.0)
    store.set("key", "value")
    assert rendezvous.connected().get("key") == b"value"


def test_workers_hear_which_run_begins_and_refuse_another(port: int) -> None:
    store = rendezvous._served()
    begin("a1b2")
    assert begun() == "a1b2"
    agree("a1b2", begun(), Path("run.toml"))
    with pytest.raises(UserError, match="run c3d4 is not allowed; allowed: a1b2"):
        agree(begun(), "c3d4", Path("run.toml"))
    assert store.check(["lagbench/0/begun"])


def test_a_store_with_nothing_to_do_ends_when_everybody_has_heard(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rendezvous._served()
    heard: list[str] = []
    worker = threading.Thread(target=lambda: heard.append(begun()), daemon=True)
    worker.start()
    dismiss(2)
    assert store.check(["lagbench/0/begun/1"])
    worker.join(20.0)
    assert heard == [DONE]
    monkeypatch.setattr(rendezvous, "HEARD_WITHIN", timedelta(seconds=0.1))
    dismiss(3)  # the other one has died: nobody waits for it for long
    assert not store.check(["lagbench/0/begun/2"])


@pytest.mark.parametrize(("name", "value"), [("MASTER_PORT", "abc"), ("RANK", "x")])
def test_an_environment_that_says_nothing_is_one_line(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, value: str,
) -> None:  # fmt: skip
    store = rendezvous._served()
    monkeypatch.setenv(name, value)
    assert main(["run.toml"]) == EXIT_BAD_INPUT
    told = capsys.readouterr().err.splitlines()
    assert told == [f"error: environment: {name}={value}: allowed: a whole number"]
    del store


def test_a_server_that_never_answers_is_one_line(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise RuntimeError("timed out\nafter many lines")

    monkeypatch.setattr(rejoining, "connected", refused)
    with pytest.raises(UserError, match=f":{port}$"):
        comes_late()


def test_nobody_is_started_again_in_rounds(tmp_path: Path) -> None:
    asked = parser().parse_args([str(written(tmp_path, ROUNDS)), "--restarts", "1"])
    with pytest.raises(UserError, match=r"--restarts 1: nobody comes back to rounds"):
        serve(asked, 3)


def test_nobody_is_started_again_whose_memory_would_be_another(tmp_path: Path) -> None:
    asked = parser().parse_args([str(written(tmp_path, OUTER_LOOP)), "--restarts", "1"])
    with pytest.raises(UserError, match=r"--restarts 1: .*; allowed with DelayedNesterov: 0"):
        serve(asked, 3)


def test_a_process_that_dies_is_started_again_as_often_as_was_asked(tmp_path: Path) -> None:
    def started(rank: int) -> BaseProcess:
        command = ["sh", "-c", STARTED, str(tmp_path), str(rank)]
        process = forked.context().Process(target=subprocess.check_call, args=(command,))
        process.start()
        return process

    (tmp_path / "started").touch()
    assert _kept_up(started(0), [started(1)], started, 2) == 0
    assert (tmp_path / "started").read_text(encoding="utf-8").split() == ["1"] * 3


def test_a_group_is_started_waited_for_and_ends_with_its_servers_exit_code(tmp_path: Path) -> None:
    assert _start(3, 0, [str(tmp_path / "missing.toml")]) == EXIT_BAD_INPUT


def test_what_a_group_needs_is_there_to_be_imported_once() -> None:
    assert find_spec(NEEDED)
