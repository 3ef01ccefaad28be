"""Workers that come back, and the shards that admit them, in one process."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from harness.errors import UserError
from harness.execution.processes import rejoining
from harness.execution.processes.headers import FrameHeader, Kind
from harness.execution.processes.messages import (
    HEAD,
    Mailbox,
    Peer,
    ServerGone,
    into,
    packed,
    receive,
    send,
)
from harness.execution.processes.rejoining import Admission, admission_to, come_back, comes_late


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """That of a first group, as the environment of rank 2 names it."""
    made = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(made.port)}
    for name, value in {**named, "RANK": "2", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    return made


def test_who_comes_back_and_the_shards_hear_each_other_in_a_group_of_their_own(
    store: TCPStore,
) -> None:
    entered: queue.Queue[tuple[int, Peer]] = queue.Queue()
    absent = [True]
    for shard in (1, 0):
        Admission(shard, 2).open(lambda *who: entered.put(who), lambda worker: absent[0])
    shards = come_back(3, 2)
    peers = dict(entered.get(timeout=20.0) for _ in shards)
    assert list(peers) == [1]  # rank 3 of two shards and their workers is worker 1
    mailbox = Mailbox(FrameHeader)
    mailbox.listen(1, peers[1], into(torch.zeros(4)))
    which = next(s for s in shards if s.rank == peers[1].group.rank())
    send(FrameHeader(Kind.DONE, 7), which, torch.arange(4.0))
    arrival = mailbox.get()
    assert (arrival.sender, arrival.header) == (1, FrameHeader(Kind.DONE, 7))
    assert arrival.body.tolist() == [0.0, 1.0, 2.0, 3.0]
    body = torch.zeros(4)
    with ThreadPoolExecutor(1) as aside:
        hears = aside.submit(receive, which, FrameHeader, into(body))
        send(FrameHeader(Kind.WORK, 8), peers[1], torch.ones(4))
        assert hears.result()[0].step == 8
    assert body.tolist() == [1.0] * 4


@pytest.mark.parametrize("count", [3, 5])
def test_a_body_of_another_size_is_garbage_and_not_the_end_of_the_process(
    store: TCPStore, count: int
) -> None:
    entered: queue.Queue[tuple[int, Peer]] = queue.Queue()
    Admission(0, 1).open(lambda *who: entered.put(who))
    (server,) = come_back(1, 1)
    _, peer = entered.get(timeout=20.0)
    mailbox, kept = Mailbox(FrameHeader), torch.zeros(4)
    mailbox.listen(0, peer, into(kept))
    server.group.send([packed(FrameHeader(Kind.DONE), torch.ones(count))], server.rank, HEAD).wait()
    arrival = mailbox.get()
    assert arrival.header is None
    assert arrival.trouble == f"sent garbage: DONE with {4 * count} bytes, where 16 are due"
    assert kept.tolist() == [0.0] * 4


def test_the_number_of_a_worker_that_lives_is_not_let_in(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejoining, "NOTICED_S", 0.1)
    entered: list[object] = []
    Admission(0, 1).open(lambda *who: entered.append(who), lambda worker: False)
    with pytest.raises(UserError, match="worker 1 is not allowed; allowed: one of a worker that"):
        come_back(2, 1)
    assert not entered


def test_what_is_no_number_is_not_admitted_and_the_next_worker_is(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejoining, "NOTICED_S", 0.1)
    entered: queue.Queue[tuple[int, Peer]] = queue.Queue()
    Admission(0, 1).open(lambda *who: entered.put(who), lambda worker: worker == 1)
    store.set(f"lagbench/{store.add(rejoining.TICKETS, 1)}/worker", "a stranger")
    come_back(2, 1)
    assert entered.get(timeout=20.0)[0] == 1
    assert entered.empty()


def test_a_worker_that_comes_back_while_it_enters_waits_and_is_not_admitted_twice(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejoining, "NOTICED_S", 0.1)
    entering, go_on = threading.Event(), threading.Event()

    def enters(worker: int, peer: Peer) -> None:
        entering.set()
        go_on.wait(20.0)

    Admission(0, 1).open(enters)
    come_back(2, 1)
    assert entering.wait(20.0)
    with pytest.raises(UserError, match="worker 1 is not allowed"):
        come_back(2, 1)
    go_on.set()
    assert store.get("lagbench/1/answer").decode() == rejoining.YES


def test_who_comes_back_to_a_server_that_is_gone_hears_so(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> TCPStore:
        raise RuntimeError("closed")

    monkeypatch.setattr(rejoining, "connected", gone)
    with pytest.raises(ServerGone):
        come_back(2, 1)


def test_nobody_comes_late_under_torchrun_or_without_a_group(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not comes_late()
    store.set(rejoining.OPEN, "yes")
    assert comes_late()
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "0")
        assert not comes_late()
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_RUN_ID", "x")
        assert not comes_late()
        assert admission_to(0, 1) is None
    monkeypatch.delenv("MASTER_PORT")
    assert not comes_late()
