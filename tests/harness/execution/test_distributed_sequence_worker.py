"""How a replica begins: it waits for its server, and both execute the same."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness.errors import UserError
from harness.execution.processes import replica as replica
from harness.execution.processes import replica_worker as module
from harness.execution.processes.messages import GarbageReceived, Head, Kind
from harness.execution.processes.notes import CLOSED, Note, Word
from harness.execution.processes.replica import kept_waiting, sign_of
from harness.execution.processes.server import CLOCK_ROUNDS, ServerGone
from harness.execution.training.setup import Setup

SIGN, QUESTION = Head(Kind.CLOCK, rounds=1), Head(Kind.CLOCK)


def test_while_a_server_is_not_ready_it_says_so_to_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signs: list[tuple[Head, int]] = []

    def send(head: Head, rank: int) -> None:
        if rank == 2:
            raise RuntimeError
        signs.append((head, rank))

    monkeypatch.setattr(replica, "answer", send)
    monkeypatch.setattr(replica, "SIGN_EVERY_S", 0.001)
    with kept_waiting(2):
        while len(signs) < 6:
            time.sleep(0.001)
    given = len(signs)
    assert signs[:6] == [(SIGN, rank) for rank in (1, 3, 4)] * 2
    time.sleep(0.01)
    assert len(signs) == given


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Head]]:
    """In place of the server: what it sends is written down; what it hears is returned."""

    def sends(heads: list[Head], raises: Exception) -> list[Head]:
        coming, answers = deque(heads), list[Head]()

        def hear(rank: int, into: Tensor) -> Head:
            if not coming:
                raise raises
            return coming.popleft()

        monkeypatch.setattr(module, "hear", hear)
        monkeypatch.setattr(module, "answer", lambda head, rank: answers.append(head))
        return answers

    return sends


def test_signs_of_life_are_not_answered_and_questions_for_the_time_are(server) -> None:
    answers = server([SIGN, SIGN, *[QUESTION] * CLOCK_ROUNDS], RuntimeError())
    assert module._clock_is_set()
    assert len(answers) == CLOCK_ROUNDS


@pytest.mark.parametrize(
    ("raises", "why"),
    [(RuntimeError(), CLOSED), (GarbageReceived("noise"), "sent garbage: noise")],
    ids=["gone", "garbage"],
)
def test_a_server_that_is_gone_or_sends_garbage_is_said_so(
    server, raises: Exception, why: str
) -> None:
    server([QUESTION], raises)
    with pytest.raises(ServerGone, match=why):
        module._clock_is_set()


@pytest.mark.parametrize(
    "choices", [{"seed": 1}, {"slots": 3}, {"layers": "last"}], ids=lambda c: next(iter(c))
)
def test_a_replica_of_another_run_file_is_refused(
    sequence, corpus, monkeypatch: pytest.MonkeyPatch, choices: dict[str, object]
) -> None:
    config, other = sequence(), sequence(**choices)
    start = Note(Word.START, sign_of(config, paced=False))
    monkeypatch.setattr(module, "_clock_is_set", lambda: True)
    monkeypatch.setattr(module, "receive", lambda rank, body_of: (start, body_of(start)))
    with pytest.raises(UserError, match="needed: the same run file, --seed and --paced"):
        module.contribute(other, corpus, 1, None)


def test_a_server_that_begins_with_another_word_sends_garbage(
    sequence, corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sequence()
    parameters = torch.zeros(config.start.network(corpus).layout.parameters)
    monkeypatch.setattr(module, "_clock_is_set", lambda: True)
    monkeypatch.setattr(module, "receive", lambda rank, into: (Note(Word.MODEL), parameters))
    with pytest.raises(ServerGone, match="sent garbage: MODEL at the wrong time"):
        module.contribute(config, corpus, 1, None)


def test_what_is_compared_differs_between_a_paced_run_and_another(sequence) -> None:
    signs = {sign_of(sequence(), paced=paced) for paced in (False, True)}
    assert len(signs) == 2
    assert max(signs) < 2**48


def test_a_decoder_that_is_given_an_utterance_nobody_has_says_so(
    sequence, corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sequence()
    setup = Setup.of(config, corpus, torch.zeros(config.start.network(corpus).layout.parameters))
    monkeypatch.setattr(module, "Room", lambda places, trainer: None)
    monkeypatch.setattr(module, "send", lambda note, rank, body: None)
    given = Note(Word.DECODE, utterance=28), setup.part
    monkeypatch.setattr(module, "receive", lambda rank, into: given)
    with pytest.raises(ServerGone, match="sent garbage: utterance 28 of 28"):
        module.decode(config, setup, 0, None)
