"""A server's state as messages: its vectors one by one, and its numbers after them."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.algorithms.contract import Server
from harness.execution.processes.headers import FrameHeader, GarbageReceived, Kind
from harness.execution.processes.messages import Address, BodyOf, like, send
from harness.execution.replay.state import vectors_of


def send_state(server: Server, to: Address) -> None:
    """Send all of a server's vectors and numbers.

    Raises:
        RuntimeError: the peer is gone.
    """
    for place, vector in enumerate(vectors_of(server).values()):
        send(FrameHeader(Kind.STATE, place, version=server.version), to, vector)
    send_numbers(server, to)


def send_numbers(server: Server, to: Address) -> None:
    """Send a server's numbers alone, in the order of their names."""
    send(FrameHeader(Kind.NUMBERS), to, _numbers(server))


def take_state(server: Server, header: FrameHeader, body: Tensor) -> None:
    """Take over what one message of `send_state` says.

    Raises:
        GarbageReceived: it says nothing of a state.
    """
    vectors = list(vectors_of(server).values())
    if header.kind is Kind.STATE and header.step < len(vectors):
        vectors[header.step].copy_(body)
        server.version = header.version
    elif header.kind is not Kind.NUMBERS:
        raise GarbageReceived(f"{header.kind.name} {header.step} in a state")
    else:
        server.numbers = dict(zip(sorted(server.numbers), map(float, body), strict=True))


def bodies(server: Server) -> BodyOf[FrameHeader]:
    """Where what one peer sends to or for a server lands.

    Messages of a state follow each other at once, so each has a tensor of its own. A worker sends
    nothing more before its contribution is folded, so all contributions of one have the same.
    """
    numbers, contribution = _numbers(server), like(server.model)
    vectors = dict(enumerate(vectors_of(server).values()))

    def body(header: FrameHeader) -> Tensor:
        if header.kind is Kind.NUMBERS:
            return like(numbers)
        if header.kind is Kind.STATE:
            return like(vectors.get(header.step, contribution))
        return contribution

    return body


def _numbers(server: Server) -> Tensor:
    return torch.tensor([server.numbers[n] for n in sorted(server.numbers)], dtype=torch.float64)
