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

DONE = FrameHeader(
    Kind.DONE, 7, 1, 2, 2**62, 4, 3, 8, 0.25, math.inf, version=9, began_s=1.5, ended_s=2.5
)
GARBAGE: list[tuple[Header, dict[str, Any]]] = [
    (DONE, {"kind": 99}),
    (DONE, {"step": -1}),
    (DONE, {"rate": math.nan}),
    (DONE, {"began_s": math.inf}),
]


def test_headers_survive_the_wire() -> None:
    assert unpack_header(pack_header(DONE, torch.zeros(3)), FrameHeader) == (DONE, 12)


@pytest.mark.parametrize(("header", "wrong"), GARBAGE)
def test_a_header_with_what_cannot_be_is_garbage(header: Header, wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        unpack_header(pack_header(replace(header, **wrong)), type(header))


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
        sending = aside.submit(send, FrameHeader(Kind.DONE, 3), theirs, gradient)
        header, body = receive(ours, FrameHeader, reuse_buffer(torch.empty(5)))
        sending.result()
    assert header == FrameHeader(Kind.DONE, 3)
    assert torch.equal(body, gradient)


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
