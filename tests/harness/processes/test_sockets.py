"""Connections over TCP: who is let in, and how silence is noticed."""

from __future__ import annotations

import errno
import hmac
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise

import pytest
import torch

from harness.processes import rendezvous
from harness.processes.console import SECRET
from harness.processes.messages import (
    NOTHING,
    UNREAD,
    FrameHeader,
    Kind,
    Mailbox,
    bytes_of,
    receive,
    reuse_buffer,
    send,
)
from harness.processes.transport import (
    BEAT,
    CLOSED,
    HEADER_BYTES,
    MARK,
    SILENT,
    SILENT_AFTER_S,
    HandshakeFailed,
    Machine,
    MalformedMessage,
    PeerConnection,
    PeerGone,
    PeerInfo,
    Socket,
    connect,
    listen,
    start_heartbeats,
    use_runtime,
)

Door = tuple[tuple[str, int], "queue.Queue[PeerInfo]"]
SECRET_OF_ALL = b"ours"
WHO = PeerInfo(3, 0, late=False)
"""Rank 3 wants rank 0."""


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    """Where rank 0 listens, whose processes share a secret, and who has come in."""
    monkeypatch.setenv(SECRET, SECRET_OF_ALL.decode())
    came: queue.Queue[PeerInfo] = queue.Queue()

    def enter(who: PeerInfo, connection: Socket) -> None:
        assert connection._socket.gettimeout() == SILENT_AFTER_S
        came.put(who)

    return listen("127.0.0.1", 0, enter), came


def knock(
    where: tuple[str, int], secret: bytes, wants: int = 0, word: bytes = b"lagbench"
) -> tuple[bytes, bytes]:
    """What an acceptor answers, written after the documents alone; and what it was told."""
    with socket.create_connection(where, 20.0) as knocks:
        theirs, ours = knocks.recv(32), bytes(32)
        said = ours + struct.pack("<8sqqq", word, 3, wants, 0)
        told = said + hmac.digest(secret, b"connects" + theirs + said, "sha256")
        knocks.sendall(told)
        return knocks.recv(32), told


def comes_in(where: tuple[str, int]) -> bool:
    """Whether an acceptor without a secret answers, as it does to who is quick enough."""
    with suppress(ConnectionError):
        return len(knock(where, b"")[0]) == 32
    return False


def test_who_knows_the_secret_comes_in(door: Door) -> None:
    where, came = door
    assert connect(where, WHO)._socket.gettimeout() == SILENT_AFTER_S
    assert came.get(timeout=20.0) == WHO
    assert len(knock(where, SECRET_OF_ALL)[0]) == 32
    assert came.get(timeout=20.0) == WHO


def test_who_does_not_know_it_or_wants_somebody_else_is_hung_up_on(door: Door) -> None:
    where, came = door
    assert knock(where, b"another")[0] == b""
    assert knock(where, b"")[0] == b""
    assert knock(where, SECRET_OF_ALL, wants=1)[0] == b""
    assert knock(where, SECRET_OF_ALL, word=b"somebody")[0] == b""
    assert came.empty()


def test_an_introduction_cannot_be_played_again(door: Door) -> None:
    where, came = door
    _, told = knock(where, SECRET_OF_ALL)
    came.get(timeout=20.0)
    with socket.create_connection(where, 20.0) as knocks:
        knocks.recv(32)
        knocks.sendall(told)
        assert knocks.recv(32) == b""
    assert came.empty()


def test_who_drips_is_hung_up_on_in_time(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.processes.transport.INTRODUCED_WITHIN_S", 0.3)
    where, came = door
    with socket.create_connection(where, 20.0) as knocks:

        def drip() -> None:
            for _ in range(90):  # bytes of the 96 that are due
                knocks.sendall(b"x")
                time.sleep(0.05)

        with pytest.raises(ConnectionError):
            drip()
    assert came.empty()


def test_who_answers_without_the_secret_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, SECRET_OF_ALL.decode())
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connected, _ = listening.accept()
            connected.sendall(bytes(32))
            connected.recv(1000)
            connected.sendall(bytes(32))

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(HandshakeFailed, match=SECRET):
            connect(listening.getsockname(), WHO)


def take(connected: socket.socket, count: int) -> bytes:
    """So many bytes."""
    words = b""
    while len(words) < count:
        words += connected.recv(count - len(words))
    return words


def test_what_a_process_has_answered_once_cannot_be_played_to_another(door: Door) -> None:
    where, _ = door
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def pass_on_and_repeat() -> None:
            first, _ = impostor.accept()
            with socket.create_connection(where, 20.0) as there:
                first.sendall(challenge := take(there, 32))
                there.sendall(take(first, 96))
                first.sendall(answer := take(there, 32))
            second, _ = impostor.accept()
            second.sendall(challenge)
            take(second, 96)
            second.sendall(answer)

        threading.Thread(target=pass_on_and_repeat, daemon=True).start()
        connect(impostor.getsockname(), WHO)
        with pytest.raises(HandshakeFailed, match=SECRET):
            connect(impostor.getsockname(), WHO)


def test_processes_that_connect_do_not_answer_each_other_for_a_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handshake of `multiprocessing.connection` is deceived so, of Python 3.11 to 3.13."""
    monkeypatch.setenv(SECRET, SECRET_OF_ALL.decode())
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def ask_one_what_the_other_wants_to_hear() -> None:
            (one, _), (other, _) = impostor.accept(), impostor.accept()
            one.sendall(bytes(32))
            other.sendall(take(one, 96)[:32])
            one.sendall(take(other, 96)[64:])
            other.close()

        threading.Thread(target=ask_one_what_the_other_wants_to_hear, daemon=True).start()
        with ThreadPoolExecutor(2) as together:
            both = [together.submit(connect, impostor.getsockname(), WHO) for _ in range(2)]
            told = [each.exception(20.0) for each in both]
    assert sorted(isinstance(each, HandshakeFailed) for each in told) == [False, True]
    assert all(isinstance(each, ConnectionError) for each in told)


def test_a_connection_on_which_nobody_answers_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.processes.transport.INTRODUCED_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with pytest.raises(TimeoutError) as kept:  # and with it all that the call has made
            connect(listening.getsockname(), WHO)
        connected, _ = listening.accept()
        with connected:
            connected.settimeout(20.0)
            assert connected.recv(1) == b""
        del kept


def test_a_door_is_at_one_address_and_no_other(door: Door) -> None:
    (_, port), _ = door
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5.0)


def pair(patience_s: float = 20.0) -> tuple[PeerConnection, PeerConnection]:
    ours, theirs = socket.socketpair()
    return PeerConnection(Socket(ours, patience_s)), PeerConnection(Socket(theirs, patience_s))


Beat = Callable[[], None]
"""Has a peer beat for half as long again as it may be silent."""
PATIENCE_S, BEATS = 1.0, 15


def until_undisturbed(attempt: Callable[[PeerConnection, PeerConnection, Beat], None]) -> None:
    """Try anew where a busy machine kept a peer from beating for as long as it may be silent."""
    for _ in range(20):
        ours, theirs = pair(PATIENCE_S)
        moments = [time.monotonic()]

        def beat(theirs: PeerConnection = theirs, moments: list[float] = moments) -> None:
            for _ in range(BEATS):
                time.sleep(1.5 * PATIENCE_S / BEATS)
                theirs.send_heartbeat()
                moments.append(time.monotonic())

        try:
            return attempt(ours, theirs, beat)
        except PeerGone:
            moments.append(time.monotonic())
            pauses = [later - earlier for earlier, later in pairwise(moments)]
            assert max(pauses) > 0.8 * PATIENCE_S
    pytest.fail("the machine is too busy for beats")


@contextmanager
def on_a_thread(does: Callable[[], None]) -> Generator[None]:
    """Do something meanwhile; to its end, or to that of its line."""

    def run() -> None:
        with suppress(PeerGone):
            does()

    (thread := threading.Thread(target=run, daemon=True)).start()
    try:
        yield
    finally:
        thread.join()


def test_a_peer_of_whom_nothing_is_heard_is_noticed_and_one_that_beats_is_not() -> None:
    ours, theirs = pair(0.3)
    with pytest.raises(PeerGone, match=SILENT):
        ours.header()
    with pytest.raises(PeerGone, match=CLOSED):  # a peer that is given up notices
        theirs.header()

    def hear(ours: PeerConnection, theirs: PeerConnection, beat: Beat) -> None:
        def say() -> None:
            beat()
            send(FrameHeader(Kind.DONE, 7), theirs, torch.ones(3))

        with on_a_thread(say):
            header, body = receive(ours, FrameHeader, reuse_buffer(torch.zeros(3)))
        assert (header.step, body.tolist()) == (7, [1.0] * 3)

    until_undisturbed(hear)


def test_a_peer_that_takes_nothing_in_is_noticed_by_who_sends() -> None:
    ours, _ = kept = pair(0.3)
    with pytest.raises(PeerGone, match=SILENT):
        send(FrameHeader(Kind.WORK), ours, torch.zeros(4_000_000))
    ours.send_heartbeat()  # to nobody
    del kept


def test_a_peer_that_is_busy_and_beats_is_waited_for_by_who_sends() -> None:
    def tell(ours: PeerConnection, theirs: PeerConnection, beat: Beat) -> None:
        def busy() -> None:
            beat()
            receive(theirs, FrameHeader, reuse_buffer(torch.zeros(4_000_000)))

        with on_a_thread(busy):
            send(FrameHeader(Kind.DONE), ours, torch.zeros(4_000_000))

    until_undisturbed(tell)


def test_a_beat_does_not_wait_for_a_message_that_is_on_its_way() -> None:
    ours, theirs = pair()
    body = torch.zeros(4_000_000)
    with on_a_thread(lambda: send(FrameHeader(Kind.DONE), ours, torch.ones(4_000_000))):
        theirs.header()
        ours.send_heartbeat()
        theirs.body(bytes_of(body))
    assert body.sum() == 4_000_000


def test_a_beat_does_not_wait_for_a_peer_that_takes_nothing_in() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ours.send(bytes(4096))
    connection = Socket(ours, 0.3)
    PeerConnection(connection).send_heartbeat()
    assert not connection.ended
    theirs.close()


def test_a_door_goes_on_when_a_process_has_no_room_for_another_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "too many open files")] * 2

    def accept_later(listening: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    came: queue.Queue[PeerInfo] = queue.Queue()
    connect(listen("127.0.0.1", 0, lambda who, connection: came.put(who)), WHO)
    assert came.get(timeout=20.0) == WHO


def test_so_many_are_at_the_door_at_a_time_and_the_others_come_in_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.processes.transport.AT_THE_DOOR", 2)
    monkeypatch.setattr("harness.processes.transport.INTRODUCED_WITHIN_S", 0.3)
    came: queue.Queue[PeerInfo] = queue.Queue()
    where = listen("127.0.0.1", 0, lambda who, connection: came.put(who))
    silent = [socket.create_connection(where, 20.0) for _ in range(5)]
    time.sleep(0.1)
    assert [thread.name for thread in threading.enumerate()].count("who is it") <= 2
    assert any(comes_in(where) for _ in range(100))  # on a busy machine 0.3 s may be too short
    assert came.get(timeout=20.0) == WHO
    for each in silent:
        each.close()


@pytest.mark.parametrize("size", [1, 16, HEADER_BYTES - 1, HEADER_BYTES + 17])
def test_a_header_of_another_size_is_garbage_or_the_lines_end_and_never_the_process(
    size: int,
) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\7" * size)
    theirs.close()
    with pytest.raises((MalformedMessage, PeerGone)):
        receive(PeerConnection(Socket(ours)), FrameHeader, reuse_buffer(torch.zeros(1)))


def test_a_worker_that_waits_to_be_let_in_hears_beats() -> None:
    place, (ours, theirs) = Machine(), socket.socketpair()
    place.late.append((1, PeerConnection(Socket(ours))))
    with use_runtime(place):
        start_heartbeats()
    theirs.settimeout(20.0)
    assert take(theirs, MARK.size) == MARK.pack(BEAT, 0)
    theirs.close()


def test_a_mailbox_holds_so_many_messages_of_a_peer_and_no_more() -> None:
    (ours, theirs), more = pair(), UNREAD + 50

    def say() -> None:
        for step in range(more):
            send(FrameHeader(Kind.PUSHED, step), theirs)

    mailbox = Mailbox(FrameHeader)
    mailbox.listen(0, ours, reuse_buffer(NOTHING))
    with on_a_thread(say):
        while mailbox._unread[0] < UNREAD:
            time.sleep(0.01)
        time.sleep(0.1)
        assert mailbox._unread[0] == UNREAD
        headers = [mailbox.get().header for _ in range(more)]
    assert [header.step for header in headers if header is not None] == list(range(more))


def test_who_listens_to_a_rank_does_not_hear_another_that_has_its_number_later() -> None:
    place, (ours, theirs), (new, others) = Machine(), pair(), pair()
    place.lines[1] = ours
    with use_runtime(place):
        mailbox = Mailbox(FrameHeader)
        mailbox.listen(1, 1, reuse_buffer(NOTHING))
        for step in range(2):
            send(FrameHeader(Kind.PUSHED, step), theirs)
            header = mailbox.get().header
            assert header is not None
            assert header.step == step
            place.lines[1] = new
        send(FrameHeader(Kind.PUSHED, 7), others)
        theirs.end()
        assert mailbox.get().trouble == CLOSED


class Noted:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.said = b""

    def send(self, *parts: bytes | memoryview) -> None:
        self.said += b"".join(map(bytes, parts))


@pytest.mark.parametrize("lacks", [1, 17, 100, 200])
def test_a_header_that_is_cut_short_is_not_filled_up_with_what_follows(lacks: int) -> None:
    noted = Noted()
    line = PeerConnection(noted)  # type: ignore[arg-type]
    send(FrameHeader(Kind.WORK, 7), line)
    first = len(noted.said)
    send(FrameHeader(Kind.WORK, 8), line)
    ours, theirs = socket.socketpair()
    theirs.sendall(noted.said[: first - lacks] + noted.said[first:])
    theirs.close()
    with pytest.raises(MalformedMessage, match="does not end where it should"):
        receive(PeerConnection(Socket(ours)), FrameHeader, reuse_buffer(torch.zeros(1)))


def test_what_a_peer_has_not_got_yet_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    ours.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += ours.send(bytes(1 << 20))
    connection = Socket(ours)
    assert 0 < connection.unread() < sent
    take(theirs, sent)
    while connection.unread():
        time.sleep(0.01)
    ours.close()
    theirs.close()


def test_nothing_is_unread_once_the_peer_has_reset_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    theirs.close()
    connection = Socket(ours)
    connection.send(b"a heartbeat after the end")
    while connection.unread():
        time.sleep(0.01)
    ours.close()


def test_a_process_that_ends_waits_until_the_others_have_got_what_it_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [3, 2, 1, 0]

    class Slow(Socket):
        def unread(self) -> int:
            return left.pop(0)

    ours, _ = kept = socket.socketpair()
    monkeypatch.setattr(rendezvous, "_kept", [Slow(ours)])
    rendezvous.leave()
    assert not left
    del kept
