"""Messages of sequence training over a real connection: what is no message is found out."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from harness.execution.processes import notes as module
from harness.execution.processes.messages import BODY, HEAD, GarbageReceived
from harness.execution.processes.notes import (
    BodyOf,
    Note,
    Post,
    Word,
    frames_of,
    packed,
    receive,
    send,
    vectors,
)
from harness.execution.processes.replica_worker import PartnerGone, Room

PATIENCE = timedelta(seconds=20)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rank 1 of a gloo group; the module under test speaks as its rank 0."""
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as both:
        ours, theirs = both.map(lambda r: dist.ProcessGroupGloo(store, r, 2, PATIENCE), (0, 1))
    route = SimpleNamespace(
        send=lambda tensor, dst, tag: ours.send([tensor], dst, tag).wait(),
        recv=lambda tensor, src, tag: ours.recv([tensor], src, tag).wait(),
    )
    monkeypatch.setattr(module, "dist", route)
    return theirs


def sent(peer: Any, words: Tensor, body: Tensor | None = None) -> None:
    """Send to rank 0 without waiting for it to listen."""

    def go() -> None:
        with suppress(RuntimeError):  # nobody wanted it
            peer.send([words], 0, HEAD).wait()
            if body is not None:
                peer.send([body], 0, BODY).wait()

    threading.Thread(target=go, daemon=True).start()


def test_a_message_arrives_with_its_tensor_and_says_its_size(peer: Any) -> None:
    gradient, words = torch.rand(5), torch.empty(module.WORDS, dtype=torch.float64)
    came = peer.recv([words], 0, HEAD)
    with ThreadPoolExecutor(1) as aside:
        sending = aside.submit(send, Note(Word.GRADIENT, 3), 1, gradient)
        came.wait()
        body = torch.empty(5)
        peer.recv([body], 0, BODY).wait()
        sending.result()
    assert torch.equal(body, gradient)
    sent(peer, words, body)
    note, again = receive(1, vectors(5))
    assert (note.word, note.number, note.body_bytes) == (Word.GRADIENT, 3, 20)
    assert torch.equal(again, gradient)


@pytest.mark.parametrize(
    ("note", "body_of"),
    [
        (Note(Word.GRADIENT, body_bytes=24), vectors(5)),
        (Note(Word.GRADIENT, body_bytes=16), vectors(5)),
        (Note(Word.GRADIENT), vectors(5)),
        (Note(Word.ASK, body_bytes=20), vectors(5)),
        (Note(Word.DECODED, entering=2, body_bytes=20), frames_of(3, 4)),
        (Note(Word.DECODED, entering=2**50, body_bytes=2**56), frames_of(3, 4)),
    ],
    ids=["larger", "smaller", "none", "unexpected", "other width", "endless"],
)
def test_a_tensor_of_another_size_is_not_received(peer: Any, note: Note, body_of: BodyOf) -> None:
    sent(peer, packed(note), torch.zeros(6))
    with pytest.raises(GarbageReceived):
        receive(1, body_of)


def _infinite() -> Tensor:
    words = packed(Note(Word.ROOM))
    words[5] = math.inf
    return words


@pytest.mark.parametrize(
    "words", [_infinite(), packed(Note(Word.STOP))], ids=["infinite", "another word"]
)
def test_a_decoder_that_waits_for_room_hears_of_garbage(peer: Any, words: Tensor) -> None:
    room = Room(1, 1)
    room.take()
    sent(peer, words)
    with pytest.raises(PartnerGone, match="sent garbage: "):
        room.take()


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (_infinite, "sent garbage: not a message of lagbench"),
        (lambda: packed(Note(Word.DECODED, entering=9)), "cannot be heard: KeyError(9)"),
    ],
    ids=["infinite", "unforeseen"],
)
def test_whoever_listens_says_why_it_stops(
    peer: Any, words: Callable[[], Tensor], trouble: str
) -> None:
    def unforeseen(note: Note) -> Tensor:
        raise KeyError(note.entering)

    post = Post([1], unforeseen)
    sent(peer, words())
    arrival = post.get()
    assert arrival.note is None
    assert arrival.trouble.startswith(trouble)
