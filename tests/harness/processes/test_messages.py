"""The asynchronous server on real processes, whose workers are messages of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd
from harness.networks.feedforward import Dnn, Layout
from harness.processes import server
from harness.processes import server as membership
from harness.processes import worker as pace
from harness.processes.messages import FrameHeader, Kind, Mailbox, ServerGone, talking
from harness.processes.rounds import Rounds
from harness.processes.server import NoWorkersLeft, ServerExecutor
from harness.processes.transport import CLOSED, MalformedMessage
from harness.processes.worker import Pacing
from harness.simulator import Averaging
from harness.speech.frames import RunConfig

NOBODY: Any = SimpleNamespace(send=lambda words, body: None, end=lambda: None)
NET = Dnn(Layout((9, 6, 5)))
SIZE = NET.layout.parameters
GONE_AND_BACK = [
    "worker 0 is gone: its connection closed; 2 left",
    "worker 0 is back; 3 at work",
]


@pytest.fixture
def config(configure: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Of three workers nobody has to be there for."""
    monkeypatch.setattr(pace, "clock_offset", lambda *told: 0.0)
    for module in (membership, server):
        monkeypatch.setattr(module, "send", lambda header, address, body=None: None)
    monkeypatch.setattr(Mailbox, "listen", lambda self, sender, source, body_of: None)
    return configure(algorithm=AsyncSgd())


class Talk:
    """A server, and what it says.

    Args:
        config: what is run.
    """

    def __init__(self, config: RunConfig) -> None:
        self.told: list[str] = []
        minibatches: Any = SimpleNamespace(stage=0, before=0)
        self.server = ServerExecutor(
            config, torch.zeros(SIZE), minibatches, Pacing(), self.told.append
        )

    def says(self, worker: int, header: FrameHeader | None) -> None:
        """A message of a worker comes in, or its connection closes."""
        body, trouble = torch.ones(SIZE), "" if header else CLOSED
        self.server.members.mailbox.put(worker, header, trouble, body)

    def works(self, *done: tuple[int, int]) -> Any:
        """Workers hand in minibatches; the timeline of their folds."""
        for worker, step in done:
            self.says(worker, FrameHeader(Kind.DONE, step))
        return self.server.advance(3, drain=True, handing_out=None, rate=1.0)


@pytest.mark.parametrize(
    "wrong",
    [FrameHeader(Kind.PIECE, 0), FrameHeader(Kind.DONE, 7), FrameHeader(Kind.CLOCK)],
    ids=lambda header: header.kind.name,
)
def test_what_nobody_asked_a_worker_for_is_not_folded_and_its_work_goes_to_another(
    config: RunConfig, wrong: FrameHeader
) -> None:
    talk = Talk(config)
    talk.says(0, wrong)
    timeline = talk.works((0, 0), (1, 1), (2, 2), (1, 0))
    said = f"worker 0 sent garbage: {wrong.kind.name} {wrong.step}, not asked for; 2 left"
    assert talk.told == [said]
    assert sorted(timeline.folded().first_step.tolist()) == [0, 1, 2]
    assert set(timeline.folded().worker.tolist()) == {1, 2}
    assert talk.server.server.model.tolist() == [-3.0] * SIZE


def test_a_worker_that_comes_back_twice_before_it_is_taken_in_is_taken_in_once(
    config: RunConfig,
) -> None:
    talk = Talk(config)
    talk.says(0, None)
    talk.works((1, 1), (2, 2), (1, 0))
    assert talk.server.members.is_gone(0)
    talk.server.members.enter(0, NOBODY)
    assert not talk.server.members.is_gone(0)  # so a second one is not admitted
    talk.says(0, FrameHeader(Kind.BACK))
    timeline = talk.works((2, 3), (1, 4), (0, 5))
    assert talk.told == GONE_AND_BACK
    assert sorted(timeline.folded().worker.tolist()) == [0, 1, 2]


@pytest.mark.parametrize("error", [RuntimeError("closed"), MalformedMessage("no message")])
def test_trouble_while_talking_to_the_server_is_its_end(error: Exception) -> None:
    with pytest.raises(ServerGone), talking():
        raise error


def dead(rank: int) -> Callable[..., float]:
    """What asks for clocks, where one rank has died before it was asked."""

    def clock_offset(address: int, *told: object) -> float:
        if address == rank:
            raise RuntimeError("connection closed")
        return 0.0

    return clock_offset


def test_a_worker_that_died_before_the_server_was_ready_is_done_without(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "clock_offset", dead(1))
    talk = Talk(config)
    timeline = talk.works((1, 1), (2, 2), (1, 0))
    assert talk.told == GONE_AND_BACK[:1]
    assert sorted(timeline.folded().first_step.tolist()) == [0, 1, 2]


def test_rounds_whose_worker_died_before_they_begin_end_in_a_line(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    handing = Averaging(every=5).handing(3)
    rounds: Any = SimpleNamespace(workers=3, handing=handing, algorithm=config.algorithm)
    minibatches: Any = SimpleNamespace(stage=0, before=0)
    monkeypatch.setattr(pace, "clock_offset", dead(2))
    with pytest.raises(NoWorkersLeft):
        Rounds(rounds, torch.zeros(SIZE), minibatches, say=told.append)
    assert told == ["a worker is gone, and a round needs all workers"]
