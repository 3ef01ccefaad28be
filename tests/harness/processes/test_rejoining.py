"""Workers that come back, and the shards that admit them, in one process."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from harness.base.errors import UserError
from harness.processes import rendezvous
from harness.processes.messages import (
    FrameHeader,
    Kind,
    Mailbox,
    ServerGone,
    receive,
    reuse_buffer,
    send,
)
from harness.processes.rendezvous import (
    OPEN,
    Admission,
    admission_to,
    attempt,
    come_back,
    is_joining_late,
    reach,
)
from harness.processes.transport import (
    CLOSED,
    Machine,
    PeerConnection,
    PeerGone,
    PeerInfo,
    Socket,
    current_runtime,
    listen,
    use_runtime,
)

Entered = queue.Queue[tuple[int, PeerConnection]]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[TCPStore]:
    """That of a group, as the environment of rank 2 names it, which is in a world of its own."""
    made = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(made.port)}
    for name, value in {**named, "RANK": "2", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr(rendezvous, "NOTICED_S", 0.1)
    with use_runtime(Machine()):
        yield made


def shard(store: TCPStore, which: int, shards: int, is_gone=lambda worker: True) -> Entered:
    """A shard that admits workers, in a world of its own; who has entered."""
    entered: Entered = queue.Queue()
    place = Machine()

    def comes(who: PeerInfo, connection: Socket) -> None:
        assert who.late
        with (came := place.late_arrivals()):
            place.late.append((who.rank, PeerConnection(connection)))
            came.notify_all()

    with use_runtime(place):
        host, port = listen("127.0.0.1", which, comes)
        store.set(attempt(f"at/{which}"), f"{host} {port}")
        Admission(shards).open(lambda *who: entered.put(who), is_gone)
    return entered


def test_who_comes_back_and_the_shards_hear_each_other(store: TCPStore) -> None:
    doors = [shard(store, which, 2) for which in (0, 1)]
    come_back(3, 2)
    for which, door in enumerate(doors):
        worker, line = door.get(timeout=20.0)
        assert worker == 1  # rank 3 of two shards and their workers is worker 1
        mailbox = Mailbox(FrameHeader)
        mailbox.listen(1, line, reuse_buffer(torch.zeros(4)))
        send(FrameHeader(Kind.DONE, 7), which, torch.arange(4.0))
        arrival = mailbox.get()
        assert (arrival.sender, arrival.header) == (1, FrameHeader(Kind.DONE, 7))
        assert arrival.body.tolist() == [0.0, 1.0, 2.0, 3.0]
        send(FrameHeader(Kind.WORK, 8), line, torch.ones(4))
        body = torch.zeros(4)
        assert receive(which, FrameHeader, reuse_buffer(body))[0].step == 8
        assert body.tolist() == [1.0] * 4


@pytest.mark.parametrize("count", [3, 5])
def test_a_body_of_another_size_is_garbage_and_ends_the_line_alone(
    store: TCPStore, count: int
) -> None:
    door = shard(store, 0, 1)
    come_back(1, 1)
    _, line = door.get(timeout=20.0)
    mailbox, kept = Mailbox(FrameHeader), torch.zeros(4)
    mailbox.listen(0, line, reuse_buffer(kept))
    with suppress(RuntimeError):  # it may be at its end before all is sent
        send(FrameHeader(Kind.DONE), 0, torch.ones(count))
    arrival = mailbox.get()
    assert arrival.header is None
    assert arrival.trouble == f"sent garbage: DONE with {4 * count} bytes, where 16 are due"
    assert kept.tolist() == [0.0] * 4
    with pytest.raises(RuntimeError, match=CLOSED):
        receive(0, FrameHeader, reuse_buffer(kept))


def test_the_number_of_a_worker_that_lives_is_not_let_in_and_the_next_is(store: TCPStore) -> None:
    door = shard(store, 0, 1, lambda worker: worker == 0)
    with pytest.raises(UserError, match="worker 1 is not allowed; allowed: one of a worker that"):
        come_back(2, 1)
    with pytest.raises(PeerGone):  # who is not let in is hung up on
        current_runtime().lines[0].header()
    with pytest.raises(UserError, match="worker 98 is not allowed"):
        come_back(99, 1)
    come_back(1, 1)
    assert door.get(timeout=20.0)[0] == 0
    assert door.empty()


def test_who_is_back_before_its_death_is_noticed_is_let_in(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "NOTICED_S", 20.0)
    looks = iter([False, False])
    door = shard(store, 0, 1, lambda worker: next(looks, True))
    come_back(2, 1)
    assert door.get(timeout=20.0)[0] == 1


def test_who_dies_on_the_way_in_keeps_nobody_out(store: TCPStore) -> None:
    place, (ours, _) = Machine(), (kept := socket.socketpair())
    place.late.append((1, dead := PeerConnection(Socket(ours))))
    dead.end()
    place.late.append((2, PeerConnection(Socket((others := socket.socketpair())[0]))))
    entered = queue.Queue[tuple[int, PeerConnection]]()
    with use_runtime(place):
        Admission(1).open(lambda *who: entered.put(who), lambda worker: True)
        assert entered.get(timeout=20.0)[0] == 1
    del kept, others


def test_a_place_that_is_none_is_one_line(store: TCPStore) -> None:
    store.set(attempt("at/0"), "nonsense")
    with pytest.raises(RuntimeError, match="rank 0 has no valid address: 'nonsense'"):
        reach(store, PeerInfo(1, 0, late=True))


def test_a_worker_that_comes_back_while_it_enters_is_not_admitted_twice(store: TCPStore) -> None:
    entering, go_on = threading.Event(), threading.Event()
    gone = {1}

    def is_gone(worker: int) -> bool:
        return worker in gone

    door = shard(store, 0, 1, is_gone)
    original = door.put

    def enters(who: tuple[int, PeerConnection]) -> None:
        gone.discard(who[0])
        entering.set()
        go_on.wait(20.0)
        original(who)

    door.put = enters  # type: ignore[method-assign, assignment]
    come_back(2, 1)
    assert entering.wait(20.0)
    threading.Timer(0.3, go_on.set).start()
    with pytest.raises(UserError, match="worker 1 is not allowed"):
        come_back(2, 1)
    assert door.get(timeout=20.0)[0] == 1
    assert door.empty()


def test_who_comes_back_to_a_server_that_is_gone_hears_so(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> TCPStore:
        raise RuntimeError("closed")

    monkeypatch.setattr(rendezvous, "connect_to_store", gone)
    with pytest.raises(ServerGone):
        come_back(2, 1)


def test_nobody_comes_late_under_torchrun_or_without_a_group(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_joining_late()
    store.set(OPEN, "yes")
    assert is_joining_late()
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "0")
        assert not is_joining_late()
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_RUN_ID", "x")
        assert not is_joining_late()
        assert admission_to(1) is None
    monkeypatch.delenv("MASTER_PORT")
    assert not is_joining_late()
