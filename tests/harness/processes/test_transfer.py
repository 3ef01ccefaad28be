"""Messages over a real connection: what is no message is found out."""

from __future__ import annotations

import math
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.processes.messages import (
    LARGEST,
    BodyOf,
    FrameHeader,
    Header,
    Kind,
    Mailbox,
    body_of,
    bytes_of,
    memory_from_tensor,
    pack_header,
    receive,
    reuse_buffer,
    send,
    unpack_header,
)
from harness.processes.transport import CLOSED, MalformedMessage, PeerConnection, Socket
from harness.speech.replica_worker import PartnerGone, Room, SequenceHeader, frames_of

DONE = FrameHeader(
    Kind.DONE, 7, 1, 2, 2**62, 4, 3, 8, 0.25, math.inf, version=9, began_s=1.5, ended_s=2.5
)
TAKEN = SequenceHeader(
    Kind.TAKEN, 7, 2**62, 1, 90, 12, 10, 4, 5, 0, -0.5, 1.5, version=3, ended_s=3.5
)
GARBAGE: list[tuple[Header, dict[str, Any]]] = [
    (DONE, {"kind": 99}),
    (DONE, {"step": -1}),
    (DONE, {"rate": math.nan}),
    (DONE, {"began_s": math.inf}),
    (TAKEN, {"kind": 0}),
    (TAKEN, {"version": -1}),
    (TAKEN, {"trouble": 99}),
    (TAKEN, {"read_s": math.nan}),
    (TAKEN, {"value": math.nan}),
]


@pytest.mark.parametrize("header", [DONE, TAKEN], ids=["frames", "sequence"])
def test_headers_survive_the_wire(header: Header) -> None:
    words = pack_header(header, torch.zeros(3))
    assert unpack_header(words, type(header)) == (header, 12)
    other = {FrameHeader: SequenceHeader, SequenceHeader: FrameHeader}[type(header)]
    with pytest.raises(MalformedMessage):
        unpack_header(words, other)


@pytest.mark.parametrize(("header", "wrong"), GARBAGE)
def test_a_header_with_what_cannot_be_is_garbage(header: Header, wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        unpack_header(pack_header(replace(header, **wrong)), type(header))


def test_a_value_is_no_number_where_an_utterance_has_a_trouble_and_only_there() -> None:
    troubled = SequenceHeader(Kind.TAKEN, value=math.nan, trouble=2)
    again, _ = unpack_header(pack_header(troubled), SequenceHeader)
    assert math.isnan(again.value)
    with pytest.raises(MalformedMessage, match="not finite"):
        unpack_header(pack_header(replace(troubled, trouble=0)), SequenceHeader)


@pytest.fixture
def pair() -> tuple[PeerConnection, PeerConnection]:
    """Two ends of a connection: where the first sends to, and the second."""
    ours, theirs = socket.socketpair()
    return PeerConnection(Socket(ours)), PeerConnection(Socket(theirs))


def sent(line: PeerConnection, words: bytes, body: Tensor | None = None) -> None:
    """Send what may be no message of ours."""
    line.send(words, None if body is None else bytes_of(body))


def test_a_message_arrives_with_its_tensor(pair: tuple[PeerConnection, PeerConnection]) -> None:
    ours, theirs = pair
    gradient = torch.rand(5)
    with ThreadPoolExecutor(1) as aside:
        sending = aside.submit(send, SequenceHeader(Kind.GRADIENT, 3), theirs, gradient)
        header, body = receive(ours, SequenceHeader, reuse_buffer(torch.empty(5)))
        sending.result()
    assert header == SequenceHeader(Kind.GRADIENT, 3)
    assert torch.equal(body, gradient)


@pytest.mark.parametrize(
    ("header", "floats", "body_of"),
    [
        (SequenceHeader(Kind.GRADIENT), 6, reuse_buffer(torch.empty(5))),
        (SequenceHeader(Kind.GRADIENT), 4, reuse_buffer(torch.empty(5))),
        (SequenceHeader(Kind.GRADIENT), 0, reuse_buffer(torch.empty(5))),
        (SequenceHeader(Kind.ASK), 5, reuse_buffer(torch.empty(5))),
        (SequenceHeader(Kind.DECODED, entering=2), 5, frames_of(3, 4)),
        (SequenceHeader(Kind.DECODED, entering=2**50), 5, frames_of(3, 4)),
    ],
    ids=["larger", "smaller", "none", "unexpected", "other width", "endless"],
)
def test_a_tensor_of_another_size_is_not_received(
    pair: tuple[PeerConnection, PeerConnection],
    header: SequenceHeader,
    floats: int,
    body_of: BodyOf[SequenceHeader],
) -> None:
    body = torch.zeros(floats)
    sent(pair[1], pack_header(header, body), body)
    with pytest.raises(MalformedMessage):
        receive(pair[0], SequenceHeader, body_of)


INFINITE = pack_header(SequenceHeader(Kind.ROOM, read_s=math.inf))


@pytest.mark.parametrize(
    "words", [INFINITE, pack_header(SequenceHeader(Kind.STOP))], ids=["infinite", "another kind"]
)
def test_a_decoder_that_waits_for_room_hears_of_garbage(
    pair: tuple[PeerConnection, PeerConnection], words: bytes
) -> None:
    room = Room(1, pair[0])
    room.take()
    sent(pair[1], words)
    with pytest.raises(PartnerGone, match="sent garbage: "):
        room.take()


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (INFINITE, "sent garbage: not a message of lagbench"),
        (pack_header(SequenceHeader(Kind.DECODED, entering=9)), "cannot be received: KeyError(9)"),
    ],
    ids=["infinite", "unforeseen"],
)
def test_whoever_listens_says_why_it_stops(
    pair: tuple[PeerConnection, PeerConnection], words: bytes, trouble: str
) -> None:
    def unforeseen(header: SequenceHeader) -> Tensor:
        raise KeyError(header.entering)

    mailbox = Mailbox(SequenceHeader)
    mailbox.listen(1, pair[0], unforeseen)
    sent(pair[1], words)
    arrival = mailbox.get()
    assert arrival.header is None
    assert arrival.trouble.startswith(trouble)


def test_a_connection_that_was_replaced_ends_in_silence(
    pair: tuple[PeerConnection, PeerConnection],
) -> None:
    mailbox = Mailbox(FrameHeader)
    mailbox.listen(1, pair[0], reuse_buffer(torch.empty(1)))
    mailbox.listen(1, pair[1], reuse_buffer(torch.empty(1)))
    pair[0].end()
    assert mailbox.get().trouble == CLOSED
    assert mailbox.get_before(time.monotonic() + 0.2) is None


def test_what_a_worker_remembers_has_bounds_and_is_no_garbage() -> None:
    with pytest.raises(MalformedMessage, match="a memory of 4294967297 bytes"):
        body_of(FrameHeader(Kind.MEMORY, steps=LARGEST + 1))
    with pytest.raises(MalformedMessage, match="no memory of a worker"):
        memory_from_tensor(torch.ones(100, dtype=torch.uint8), torch.device("cpu"))
