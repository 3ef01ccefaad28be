"""What the server of sequence training answers, message by message, without processes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.stale import DelayCompensated, StalenessAware
from harness.processes import worker
from harness.processes.messages import Arrival, Kind
from harness.processes.server import NoWorkersLeft
from harness.processes.transport import CLOSED
from harness.processes.worker import Pacing
from harness.simulator import LOST
from harness.speech import sequence_server as module
from harness.speech.replica_worker import SequenceHeader, decoder_rank, trainer_rank
from harness.speech.sequence import Setup
from harness.speech.sequence_server import SequenceServerExecutor

NOTHING = torch.empty(0)
WHOLE = 28
"""Training utterances of the corpus."""


def taken(given: SequenceHeader, entering: int = 0, **more: int) -> SequenceHeader:
    """What a trainer says of an utterance that its decoder was given."""
    said = {"kind": Kind.TAKEN, "frames": 9, "entering": entering, "kept": entering, **more}
    return replace(given, **said)


class Script:
    """In place of a process group: what arrives is written down, so is what is sent."""

    def __init__(self) -> None:
        self.arrivals: deque[Arrival] = deque()
        self.sent: list[tuple[int, SequenceHeader, Tensor | None]] = []
        self.dead: set[int] = set()

    def listen(self, *whom: object) -> None:
        """Nobody is there."""

    def get(self) -> Arrival:
        return self.arrivals.popleft()

    def send(self, header: SequenceHeader, rank: int, body: Tensor | None = None) -> None:
        if rank in self.dead:
            raise RuntimeError
        self.sent.append((rank, header, None if body is None else body.clone()))

    def last(self, rank: int) -> SequenceHeader:
        return [header for to, header, _ in self.sent if to == rank][-1]


class Played:
    """A server, and what its replicas say to it."""

    def __init__(
        self, server: SequenceServerExecutor, script: Script, told: list[str], size: int
    ) -> None:
        self.server, self.script, self.told, self.size = server, script, told, size

    def hear(
        self, rank: int, header: SequenceHeader | None, body: Tensor = NOTHING, why: str = ""
    ) -> bool:
        return self.server._take_in(Arrival(rank, header, body, why), 0.5)

    def decode(self, replica: int, entering: int) -> SequenceHeader:
        """A decoder asks, and its trainer takes what it gets."""
        self.hear(decoder_rank(replica), SequenceHeader(Kind.ASK))
        given = self.script.last(decoder_rank(replica))
        self.hear(trainer_rank(replica), taken(given, entering))
        return given

    def read(self, replica: int, frames: int) -> SequenceHeader:
        self.hear(trainer_rank(replica), SequenceHeader(Kind.READ, frames=frames))
        return self.script.last(trainer_rank(replica))

    def push(self, replica: int, value: float = 1.0) -> bool:
        gradient = torch.full((self.size,), value)
        asked = self.script.last(trainer_rank(replica)).number
        return self.hear(trainer_rank(replica), SequenceHeader(Kind.GRADIENT, asked), gradient)


@pytest.fixture
def play(sequence, corpus, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    def make(dead: tuple[int, ...] = (), **choices: object) -> Played:
        config = sequence(**{"replicas": 2, "passes": 1, **choices})
        script, told = Script(), list[str]()
        script.dead.update(dead)
        monkeypatch.setattr(worker, "clock_offset", lambda *told: 0.0)
        monkeypatch.setattr(module, "send", script.send)
        monkeypatch.setattr(module, "Mailbox", lambda of: script)
        initial = torch.zeros(config.start.network(corpus).layout.parameters)
        setup = Setup.from_config(config, corpus, initial)
        server = SequenceServerExecutor(config, setup, initial, Pacing(), told.append)
        return Played(server, script, told, setup.part.numel())

    return make


def test_everybody_is_told_the_start_and_a_decoder_gets_utterance_and_model(play) -> None:
    game = play()
    assert [(rank, header.kind) for rank, header, _ in game.script.sent] == [
        (rank, Kind.START) for rank in (1, 2, 3, 4)
    ]
    first, second = game.decode(0, 3), game.decode(1, 3)
    assert (first.kind, first.number, second.number) == (Kind.DECODE, 0, 1)
    assert first.utterance != second.utterance


def test_an_utterance_is_told_of_when_it_enters_a_minibatch_or_is_empty(play) -> None:
    game = play()
    game.decode(0, 0)
    game.decode(0, 5)
    assert [row.entering for row in game.server.record.rows] == [0]
    model = game.read(0, 2)
    assert (model.kind, model.version, model.number) == (Kind.MODEL, 0, 0)
    assert [row.entering for row in game.server.record.rows] == [0, 5]
    assert game.server.replicas[0].left == 3


def test_gradients_are_folded_in_the_order_they_come_and_the_record_says_how_stale(play) -> None:
    game = play()
    for replica in (0, 1):
        game.decode(replica, 4)
        game.read(replica, 2)
    assert game.push(1, 2.0)
    assert game.push(0, 1.0)
    assert game.server.server.model.tolist() == [-1.5] * game.size
    timeline = game.server._recorder.segment([])
    assert timeline.staleness().tolist() == [0, 1]
    assert timeline.folded().worker.tolist() == [1, 0]
    assert timeline.decodes.steps.tolist() == [4, 4]


# At rate 0.5: three gradients of 1 of replica 0, then one of 4 of replica 1, three folds late.
@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        (AsyncSgd(), -1.5 - 2.0),
        (StalenessAware(), -1.5 - 2.0 / 3.0),
        (DelayCompensated(0.125, 4), -1.5 - 0.5 * (4.0 + 0.125 * 16.0 * -1.5)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_stale_gradient_is_folded_as_the_algorithm_has_it(play, algorithm, model) -> None:
    game = play(algorithm=algorithm)
    game.decode(1, 2)
    game.read(1, 2)
    game.decode(0, 6)
    for _ in range(3):
        game.read(0, 2)
        game.push(0, 1.0)
    arrays, facts = game.server.capture()
    again = play(algorithm=algorithm).server
    again.reinstate(arrays, json.loads(json.dumps(facts)))
    for name, kept in game.server.server.tensors.items():
        assert torch.equal(kept, again.server.tensors[name])
    game.push(1, 4.0)
    torch.testing.assert_close(game.server.server.model, torch.full((game.size,), model))


def test_a_checkpoint_of_before_servers_had_numbers_is_gone_on_from(play) -> None:
    arrays, facts = play().server.capture()
    del facts["numbers"]
    (again := play().server).reinstate(arrays, json.loads(json.dumps(facts)))
    assert again.server.numbers == {}


@pytest.mark.parametrize(
    "header",
    [
        SequenceHeader(Kind.GRADIENT),
        SequenceHeader(Kind.MODEL),
        SequenceHeader(Kind.READ, frames=1),
        SequenceHeader(Kind.TAKEN, 99, entering=1),
    ],
    ids=lambda header: header.kind.name,
)
def test_what_makes_no_sense_now_costs_its_replica(play, header: SequenceHeader) -> None:
    game = play()
    game.hear(trainer_rank(1), header)
    assert game.server.replicas[1].gone
    assert game.told[0].startswith("replica 1: its trainer sent garbage: ")
    game.hear(trainer_rank(1), SequenceHeader(Kind.READ, frames=1))
    assert game.script.last(trainer_rank(1)).kind is Kind.STOP


@pytest.mark.parametrize(
    "wrong",
    [{"utterance": 99}, {"version": 1}, {"slot": 2}, {"entering": 23}, {"number": 1}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_cannot_be_said_of_an_utterance_costs_its_replica(play, wrong: dict[str, int]) -> None:
    game = play()
    game.hear(decoder_rank(0), SequenceHeader(Kind.ASK))
    game.hear(trainer_rank(0), taken(game.script.last(decoder_rank(0)), **wrong))
    assert game.told[0].startswith("replica 0: its trainer sent garbage: TAKEN")
    assert not game.server.record.rows


def test_an_utterance_that_is_taken_twice_costs_its_replica(play) -> None:
    game = play()
    game.hear(trainer_rank(0), taken(game.decode(0, 4), 4))
    assert game.told[0].startswith("replica 0: its trainer sent garbage: TAKEN")
    assert len(game.server._orphans) == WHOLE // 2


@pytest.mark.parametrize(
    "header",
    [
        SequenceHeader(Kind.READ),
        SequenceHeader(Kind.READ, frames=3),
        SequenceHeader(Kind.READ, frames=1, version=1),
    ],
    ids=["no frames", "more than slots", "of the future"],
)
def test_a_read_that_cannot_be_costs_its_replica(play, header: SequenceHeader) -> None:
    game = play()
    game.decode(0, 8)
    game.hear(trainer_rank(0), header)
    assert game.told[0].startswith("replica 0: its trainer sent garbage: READ")
    assert not len(game.server._recorder.segment([]).decodes)


def test_a_gradient_of_another_minibatch_costs_its_replica(play) -> None:
    game = play()
    game.decode(0, 8)
    game.read(0, 2)
    assert not game.hear(trainer_rank(0), SequenceHeader(Kind.GRADIENT, 1), torch.ones(game.size))
    assert game.told[0].startswith("replica 0: its trainer sent garbage: GRADIENT")
    assert not game.server.server.model.any()


def test_what_a_dead_replica_had_goes_to_a_decoder_that_waits(play) -> None:
    game = play()
    server, mine = game.server, len(game.server.replicas[0].todo)
    for _ in range(mine):
        game.decode(0, 0)
    game.hear(decoder_rank(0), SequenceHeader(Kind.ASK))
    assert game.script.last(decoder_rank(0)).kind is Kind.PAUSE
    lost = game.decode(1, 4)
    game.read(1, 1)
    open_one = game.decode(1, 4)
    game.hear(decoder_rank(1), None, why=CLOSED)
    assert "3 frames lost" not in game.told[0]
    assert "4 frames lost" in game.told[0]
    given = game.script.last(decoder_rank(0))
    assert (given.kind, given.utterance) == (Kind.DECODE, open_one.utterance)
    assert lost.utterance not in server._orphans
    assert server._recorder.segment([]).contributions.fold.tolist() == [LOST]
    again = 1
    while server._orphans:
        game.hear(trainer_rank(0), taken(given))
        game.hear(decoder_rank(0), SequenceHeader(Kind.ASK))
        given, again = game.script.last(decoder_rank(0)), again + 1
    game.hear(trainer_rank(0), taken(given))
    assert server.advance(0.5, Fraction(10**9)).ended
    assert len({row.utterance for row in server.record.rows}) == mine + again + 1


def test_without_replicas_the_run_stops_and_numbers_that_are_none_end_it(play) -> None:
    game = play()
    for rank in (1, 4):
        game.script.arrivals.append(Arrival(rank, None, NOTHING, CLOSED))
    with pytest.raises(NoWorkersLeft):
        game.server.advance(0.5, Fraction(10, WHOLE))
    game = play()
    game.hear(decoder_rank(0), SequenceHeader(Kind.ASK))
    spoilt = taken(game.script.last(decoder_rank(0)), trouble=2)
    game.script.arrivals.append(Arrival(1, spoilt, NOTHING, ""))
    step = game.server.advance(0.5, Fraction(10, WHOLE))
    assert step.ended
    assert step.seen[0].trouble == "not finite"


def test_within_a_fetch_interval_a_decoder_keeps_its_model(play) -> None:
    game = play(fetch_s=1e6)
    assert game.decode(0, 4).kind is Kind.DECODE
    game.read(0, 1)
    game.push(0)
    kept = game.decode(0, 4)
    assert (kept.kind, kept.version) == (Kind.AGAIN, 0)
    assert game.decode(1, 4).version == 1


def test_a_server_that_goes_on_gives_up_what_was_in_slots_and_hands_out_the_rest(play) -> None:
    game = play()
    entered = game.decode(0, 4)
    game.read(0, 1)
    game.push(0, 3.0)
    game.read(0, 1)
    handed = game.decode(0, 4)
    arrays, facts = game.server.capture()
    later = play()
    later.server.reinstate(arrays, facts)
    assert later.server.server.model.tolist() == [-1.5] * later.size
    assert later.server.record.lost_frames == 3
    assert later.server.record.restarts == [2]
    assert later.server.replicas[0].todo[0] == handed.utterance
    assert entered.utterance not in later.server.replicas[0].todo
    rows = later.server._recorder.segment([]).contributions
    assert (rows.fold.tolist(), rows.first_step.tolist()) == ([LOST], [1])
    later.decode(0, 2)
    assert later.read(0, 2).number == 2


def test_what_a_replica_had_that_died_before_a_server_goes_on_is_handed_out(play) -> None:
    game = play()
    entered = game.decode(1, 4)
    game.read(1, 1)
    arrays, facts = game.server.capture()
    later = play(dead=(3,))
    later.server.reinstate(arrays, facts)
    assert later.told == [
        f"replica 1: its trainer {CLOSED}; 0 frames lost, 14 utterances for others; 1 left"
    ]
    for _ in range(WHOLE - 1):
        later.decode(0, 0)
    assert later.server.advance(0.5, Fraction(10**9)).ended
    told = [row.utterance for row in later.server.record.rows]
    assert sorted(told) == list(range(WHOLE))
    assert told[0] == entered.utterance
