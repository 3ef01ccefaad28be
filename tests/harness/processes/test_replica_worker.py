"""How a replica begins: it waits for its server, and both execute the same."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.processes import messages
from harness.processes.messages import NOTHING, Kind, ServerGone
from harness.processes.rank_main import _identity
from harness.processes.rendezvous import check_same_run
from harness.processes.transport import CLOSED, MalformedMessage
from harness.processes.worker import Pacing
from harness.speech import replica_worker as module
from harness.speech.replica_worker import SequenceHeader
from harness.speech.sequence import Setup
from harness.train import parser

Conversation = Callable[[list[SequenceHeader], Exception], list[SequenceHeader]]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Conversation:
    """In place of the server: what it sends is given, what it hears is returned."""

    def sends(headers: list[SequenceHeader], raises: Exception) -> list[SequenceHeader]:
        coming, answers = deque(headers), list[SequenceHeader]()

        def receive(*whom: object) -> tuple[SequenceHeader, Tensor]:
            if not coming:
                raise raises
            return coming.popleft(), NOTHING

        monkeypatch.setattr(messages, "receive", receive)
        monkeypatch.setattr(messages, "send", lambda header, rank: answers.append(header))
        return answers

    return sends


def test_questions_for_the_time_are_answered_on_the_way_to_an_order(
    server: Conversation,
) -> None:
    asked = [Kind.CLOCK, Kind.CLOCK, Kind.START]
    answers = server([SequenceHeader(kind) for kind in asked], RuntimeError())
    header, _ = messages.receive_order(0, SequenceHeader, messages.reuse_buffer(NOTHING))
    assert header.kind is Kind.START
    assert [answer.kind for answer in answers] == [Kind.CLOCK] * 2
    assert 0.0 < answers[0].began_s <= answers[1].began_s <= time.monotonic()


@pytest.mark.parametrize(
    ("raises", "why"),
    [(RuntimeError(), CLOSED), (MalformedMessage("noise"), "sent garbage: noise")],
    ids=["gone", "garbage"],
)
def test_a_server_that_is_gone_or_sends_garbage_is_said_so(
    server: Conversation, raises: Exception, why: str
) -> None:
    server([SequenceHeader(Kind.CLOCK)], raises)
    with pytest.raises(ServerGone, match=why):
        messages.receive_order(0, SequenceHeader, messages.reuse_buffer(NOTHING))


@pytest.mark.parametrize(
    "choices", [{"seed": 1}, {"slots": 3}, {"layers": "last"}], ids=lambda c: next(iter(c))
)
def test_a_replica_of_another_run_file_is_refused(sequence, choices: dict[str, object]) -> None:
    asked = parser().parse_args(["sequence"])
    begun, own = (_identity(each, asked) for each in (sequence(), sequence(**choices)))
    with pytest.raises(UserError, match=f"run {own} is not allowed; allowed: {begun}, as the"):
        check_same_run(begun, own, asked.file)


def test_a_server_that_begins_with_another_word_sends_garbage(
    sequence, corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sequence()
    parameters = torch.zeros(config.start.network(corpus).layout.parameters)
    came = SequenceHeader(Kind.MODEL), parameters
    monkeypatch.setattr(messages, "receive", lambda rank, of, body_of: came)
    with pytest.raises(ServerGone, match="sent garbage: MODEL at the wrong time"):
        module.contribute(config, corpus, 1, Pacing())


def test_what_is_compared_differs_between_a_paced_run_and_another(sequence) -> None:
    asked = [parser().parse_args(["sequence", *more]) for more in ([], ["--paced"])]
    assert len({_identity(sequence(), each) for each in asked}) == 2


def test_a_decoder_that_is_given_an_utterance_nobody_has_says_so(
    sequence, corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sequence()
    setup = Setup.from_config(
        config, corpus, torch.zeros(config.start.network(corpus).layout.parameters)
    )
    monkeypatch.setattr(module, "Room", lambda places, trainer: None)
    monkeypatch.setattr(module, "send", lambda header, rank, body: None)
    given = SequenceHeader(Kind.DECODE, utterance=28), setup.part
    monkeypatch.setattr(messages, "receive", lambda rank, of, body_of: given)
    with pytest.raises(ServerGone, match="sent garbage: utterance 28 of 28"):
        module.decode(config, setup, 0, Pacing())
