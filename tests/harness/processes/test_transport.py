"""Connections over ZeroMQ: who is let in, what a relay sees, and how ends are noticed."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import torch
import zmq

from harness.base.errors import UserError
from harness.processes import transport
from harness.processes.group import Group
from harness.processes.transport import (
    CLOSED,
    Header,
    Hub,
    Kind,
    Link,
    MalformedMessage,
    Message,
    ServerGone,
    fill,
    private_key,
    public_key,
    read_frames,
)
from harness.processes.worker import memory_from_body

GROUP = Group(0, 3, "127.0.0.1", 0, "ours", "job")


@pytest.fixture
def hub() -> Iterator[Hub]:
    """The server of a group of three."""
    with closing(Hub(GROUP)) as made:
        yield made


def worker(hub: Hub, rank: int = 1, **choices: Any) -> Link:
    """A worker that connects."""
    choices = {"rank": rank, "port": hub.port, **choices}
    return Link(GROUP._replace(**choices))


def received(hub: Hub) -> Message:
    """The next message, which has to come."""
    message = hub.receive(hub.now_s() + 20.0)
    assert message is not None
    return message


def test_messages_arrive_with_their_tensors_and_the_rank_that_the_key_proves(hub: Hub) -> None:
    with closing(worker(hub, 2)) as link:
        assert hub.meet(0.5) == {0}
        hub.announce("a1b2")
        hub.send(1, Header(Kind.WORK, 7, rate=0.5), torch.arange(4.0))
        header, body = link.receive()
        assert (header.kind, bytes(body)) == (Kind.RUN, b"a1b2")
        header, body = link.receive()
        assert header == Header(Kind.WORK, 7, rate=0.5)
        assert fill(torch.zeros(4), header, body).tolist() == [0.0, 1.0, 2.0, 3.0]
        link.send(Header(Kind.DONE, 7), torch.ones(3))
        answer = received(hub)
        assert (answer.worker, answer.header) == (1, Header(Kind.DONE, 7))
        assert answer.header is not None
        with pytest.raises(MalformedMessage, match="DONE with 12 bytes, where 20 are due"):
            fill(torch.zeros(5), answer.header, answer.body)


@pytest.mark.parametrize("secret", ["another", ""])
def test_who_has_not_the_secret_is_refused_at_once_and_in_a_line(hub: Hub, secret: str) -> None:
    with pytest.raises(UserError, match=rf"RANK=1: the server at .*:{hub.port} has another LAGB"):
        worker(hub, secret=secret)
    assert hub.meet(0.2) == {0, 1}
    assert hub.strangers > 0


def test_a_rank_that_the_server_does_not_have_is_refused(hub: Hub) -> None:
    with pytest.raises(UserError, match="RANK=3: the server"):
        worker(hub, rank=3, ranks=4)


def test_where_nobody_answers_a_worker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECTED_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(UserError, match=f"RANK=1: no server answers at .*:{port} within"):
            Link(GROUP._replace(rank=1, port=port))


def test_two_jobs_on_one_port_are_told_so(hub: Hub) -> None:
    with pytest.raises(UserError, match=rf"MASTER_PORT={hub.port}: cannot be listened at .*in use"):
        Hub(GROUP._replace(port=hub.port))
    with pytest.raises(UserError, match="is of another job"):
        worker(hub, job="another")


class Relay:
    """Passes bytes between a worker and a server, as somebody without the secret may."""

    def __init__(self, port: int) -> None:
        self.seen, self.flows = bytearray(), threading.Event()
        self.flows.set()
        self._to, self._listening = port, socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listening.accept()
                theirs = socket.create_connection(("127.0.0.1", self._to))
                for ends in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while words := source.recv(65536):
                self.flows.wait()
                self.seen += words
                target.sendall(self.change(words))
            target.close()

    def change(self, words: bytes) -> bytes:
        """What it passes on."""
        return words


@contextmanager
def relayed(hub: Hub) -> Iterator[tuple[Relay, Link]]:
    """A worker that a relay stands before."""
    relay = Relay(hub.port)
    with closing(worker(hub, port=relay.port)) as link:
        assert hub.meet(0.5) == {1}
        yield relay, link


def test_a_relay_sees_no_model_and_what_it_changes_ends_the_connection(hub: Hub) -> None:
    with relayed(hub) as (relay, link):
        hub.send(0, Header(Kind.WORK), torch.full((1000,), 3.0))
        assert len(link.receive()[1]) == 4000
        assert len(relay.seen) > 4000
        assert torch.full((4,), 3.0).numpy().tobytes() not in relay.seen
        relay.change = lambda words: words[:-1] + bytes([words[-1] ^ 1])  # type: ignore[method-assign]
        link.send(Header(Kind.DONE), torch.zeros(1000))
        assert received(hub) == Message(0, None, reason=CLOSED)
        with pytest.raises(ServerGone, match=CLOSED):
            link.receive()


def test_a_connection_without_a_sign_of_life_ends_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HEARTBEAT_S", 0.1)
    monkeypatch.setattr(transport, "SILENT_AFTER_S", 0.5)
    with closing(Hub(GROUP)) as hub, relayed(hub) as (relay, link):
        assert hub.receive(hub.now_s() + 1.0) is None  # nothing is said, and heartbeats are heard
        relay.flows.clear()
        assert received(hub) == Message(0, None, reason=CLOSED)
        with pytest.raises(ServerGone, match=CLOSED):
            link.receive()
        relay.flows.set()


def test_what_a_worker_said_before_its_end_is_read_and_then_its_end(hub: Hub) -> None:
    link = worker(hub)
    hub.meet(0.5)
    link.send(Header(Kind.READY))
    link.close()
    assert received(hub) == Message(0, Header(Kind.READY))
    assert received(hub) == Message(0, None, reason=CLOSED)
    with closing(worker(hub)):
        assert received(hub).header == Header(Kind.HELLO, 3)
        assert hub.connected() == {0}


def test_who_is_dropped_hears_why_and_is_not_heard_any_more(hub: Hub) -> None:
    with closing(worker(hub)) as link:
        hub.meet(0.5)
        hub.drop(0, "is late")
        hub.send(0, Header(Kind.STOP))
        link.send(Header(Kind.READY))
        with pytest.raises(UserError, match="worker 0 is late"):
            link.receive()
        assert hub.receive(hub.now_s() + 0.3) is None
        assert hub.connected() == set()


def raw(hub: Hub, rank: int, *frames: bytes) -> zmq.Socket[bytes]:
    """A process that has the secret and sends what it likes."""
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.curve_secretkey, dealer.curve_publickey = (
        key(GROUP, rank) for key in (private_key, public_key)
    )
    dealer.curve_serverkey, dealer.linger = public_key(GROUP, 0), 0
    dealer.connect(f"tcp://127.0.0.1:{hub.port}")
    dealer.send_multipart(transport.frames_of(Header(Kind.HELLO, 3), None))
    hub.meet(1.0)
    dealer.send_multipart(frames)
    return dealer


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"", b""),
        (b"x" * 80, b""),
        (bytes(80), b""),
        (transport.pack_header(Header(Kind.DONE)),),
        (transport.pack_header(Header(Kind.DONE)), b"", b""),
        (transport.pack_header(Header(Kind.DONE, loss=float("inf"), rate=float("nan"))), b""),
        (transport.pack_header(Header(Kind.DONE, -1)), b""),
    ],
    ids=["nothing", "empty", "letters", "zeros", "no body", "two bodies", "no rate", "negative"],
)
def test_a_peer_that_sends_no_message_is_given_up_and_told(
    hub: Hub, frames: tuple[bytes, ...]
) -> None:
    with raw(hub, 1, *frames) as dealer:
        message = received(hub)
        assert (message.worker, message.header) == (0, None)
        assert message.reason.startswith("sent garbage: ")
        header, body = read_frames(dealer.recv_multipart())
        assert header.kind is Kind.REFUSED
        assert b"worker 0 sent garbage" in body


def test_one_rank_cannot_speak_for_another(hub: Hub) -> None:
    with closing(worker(hub, 1)) as one, closing(worker(hub, 2)):
        assert hub.meet(0.5) == set()
        one._socket.send_multipart([b"2", transport.pack_header(Header(Kind.DONE)), b""])
        assert received(hub).worker == 0


def test_the_server_tells_its_time_while_others_wait(hub: Hub) -> None:
    from harness.processes.worker import clock_offset_s

    with closing(worker(hub)) as link, ThreadPoolExecutor(1) as aside:
        hub.meet(0.5)
        asked = aside.submit(clock_offset_s, link)
        serve: Callable[[], object] = lambda: hub.receive(hub.now_s() + 0.1)  # noqa: E731
        while not asked.done():
            serve()
        offset = asked.result()
        assert offset is not None
        assert abs(offset) < 0.5


def test_what_is_no_memory_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="no memory of a worker"):
        memory_from_body(bytes(100), False, torch.device("cpu"))
