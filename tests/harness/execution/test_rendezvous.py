"""The store where processes meet, and how they are started."""

from __future__ import annotations

import socket
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from harness.errors import EXIT_BAD_INPUT, UserError
from harness.execution import rejoining, rendezvous
from harness.execution.rejoining import comes_late
from harness.execution.rendezvous import DONE, agree, begin, begun, dismiss
from harness.train import _free_port, _serve, _start, main, parser

ROUNDS = """
corpus = "parametric"
hidden = [32]
cluster = "cluster.toml"
workers = 2
passes = 2
evaluations = 2
[protocol]
every = 5
[algorithm]
is = "ModelAveraging"
restart = "pass"
outer = { is = "BlockMomentum" }
[algorithm.descent]
inputs = { rank = 10, period = 4 }
outputs = { rank = 10, period = 4 }
[schedule]
is = "Exponential"
rate = 0.5
passes = 2
[[stages]]
minibatch = 32
timed_minibatch = 32
share = 0.1
"""
CLUSTER = """
name = "slow"
[[workers]]
count = 2
device = "slow"
[devices.slow]
"""
STARTED = """#!/bin/sh
# -m harness.train FOLDER: the server ends when another process was started three times.
cd "$3"
[ "$RANK" = 0 ] || { echo "$RANK" >> started; exit 1; }
until [ "$(wc -l < started)" -eq 3 ]; do sleep 0.05; done
sleep 0.5
"""


def test_a_server_that_ended_before_its_run_began_is_not_waited_for(monkeypatch):
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(_free_port()))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "1")
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


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """As the environment of a worker names it."""
    free = _free_port()
    named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free), "RANK": "1", "WORLD_SIZE": "2"}
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    return free


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
    (tmp_path / "cluster.toml").write_text(CLUSTER, encoding="utf-8")
    (tmp_path / "run.toml").write_text(ROUNDS, encoding="utf-8")
    asked = parser().parse_args([str(tmp_path / "run.toml"), "--restarts", "1"])
    with pytest.raises(UserError, match="--restarts 1: nobody comes back to rounds"):
        _serve(asked, 3)


def test_a_process_that_dies_is_started_again_as_often_as_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text(STARTED, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    (tmp_path / "started").touch()
    assert _start(2, 2, [str(tmp_path)]) == 0
    assert (tmp_path / "started").read_text(encoding="utf-8").split() == ["1"] * 3
