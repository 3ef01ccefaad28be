"""The server on real processes, whose workers are messages of the test's own."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import ModelAveraging
from harness.experiment.experiment import Experiment
from harness.networks.feedforward import Dnn, Layout
from harness.processes.rounds import Rounds
from harness.processes.server import FIRST_WITHIN_S, WITHIN_S, NoWorkersLeft, ServerExecutor
from harness.processes.transport import Connections, Header, Kind, frames_of, read_frames
from harness.processes.worker import Pacing
from harness.simulator.protocols.averaging import Averaging
from harness.speech.task import Frames

SIZE = Dnn(Layout((9, 6, 5))).layout.parameters


class Script(Connections):
    """Connections on which a test speaks for the workers; what they hear is kept."""

    def __init__(self, workers: int) -> None:
        super().__init__(1 + workers)
        self.time_s, self.coming = 0.0, list[Callable[[], None]]()
        self.sent = list[tuple[bytes, Kind, str]]()

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds

    def says(
        self, worker: int, header: Header, size: int = SIZE, place: int = 0, value: float = 1.0
    ) -> None:
        """A message of a worker comes in, from one of its connections."""
        body = torch.ones(size) if header.kind is Kind.DONE else None
        if body is not None:
            body[-1] = value
        number = 10 * place + worker
        where, frames = (b"%d" % number, number), frames_of(header, body)
        self.coming.append(lambda: self._take_in(worker, where, frames))

    def ends(self, worker: int) -> None:
        """Its first connection closes."""
        self.coming.append(lambda: self._end(worker))

    def _carry(self, until_s: float) -> bool:
        if self.coming:
            self.coming.pop(0)()
            return True
        assert until_s < math.inf, "it waits for ever"
        self.time_s = max(self.time_s, until_s)
        return False

    def _route(self, address: bytes, words: bytes, body: Any) -> None:
        text = "" if len(body) > 200 else bytes(body).decode(errors="replace")
        self.sent.append((address, Kind(words[0]), text))


class Talk:
    """A server of three workers that are ready, and what it says."""

    def __init__(
        self, config: Experiment[Frames], kind: type[Any] = ServerExecutor, ready: int = 3
    ) -> None:
        self.told, self.peers = list[str](), Script(3)
        for worker in range(3):
            self.peers.says(worker, Header(Kind.HELLO, 4))
        assert self.peers.meet(1.0) == set()
        for worker in range(ready):
            self.peers.says(worker, Header(Kind.READY))
        minibatches: Any = SimpleNamespace(stage=0, before=0)
        parts = torch.zeros(SIZE), minibatches, self.peers, Pacing(), self.told.append
        self.server = kind(config, *parts)

    def done(self, *done: tuple[int, int]) -> None:
        """Workers hand in minibatches."""
        for worker, step in done:
            self.peers.says(worker, Header(Kind.DONE, step))

    def folds(self, count: int = 3) -> Any:
        """The timeline of so many folds."""
        return self.server.advance(count, handing_out=None, rate=1.0)


@pytest.fixture
def config(configure: Callable[..., Experiment[Frames]]) -> Experiment[Frames]:
    return configure(algorithm=AsyncSgd())


@pytest.mark.parametrize(
    ("wrong", "size", "said"),
    [
        (Header(Kind.MEMORY), SIZE, "MEMORY, not asked for"),
        (Header(Kind.READY), SIZE, "READY, not asked for"),
        (Header(Kind.DONE, 7), SIZE, "DONE 7, not asked for"),
        (Header(Kind.DONE, 0), 3, f"DONE with 12 bytes, where {4 * SIZE} are due"),
        (Header(Kind.DONE, 0, began_s=math.nan), SIZE, "DONE with numbers that cannot be"),
        (Header(Kind.DONE, -1), SIZE, "DONE with numbers that cannot be"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_was_not_asked_for_is_not_folded_and_its_work_goes_to_another(
    config: Experiment[Frames], wrong: Header, size: int, said: str
) -> None:
    talk = Talk(config)
    talk.peers.says(0, wrong, size)
    talk.done((0, 0), (1, 1), (2, 2), (1, 0))
    timeline = talk.folds()
    assert talk.told == [f"worker 0 sent garbage: {said}; 2 left"]
    assert talk.peers.sent[-2][2] in ("", f"worker 0 sent garbage: {said}")
    assert sorted(timeline.folded().first_step.tolist()) == [0, 1, 2]
    assert set(timeline.folded().worker.tolist()) == {1, 2}
    assert talk.server.server.model.tolist() == [-3.0] * SIZE


def test_a_second_answer_changes_nothing_that_was_folded(config: Experiment[Frames]) -> None:
    talk = Talk(config)
    talk.done((0, 0), (0, 0), (1, 1), (2, 2))
    timeline = talk.folds()
    assert timeline.folded().first_step.tolist() == [0, 1, 2]
    assert talk.server.server.model.tolist() == [-3.0] * SIZE
    talk.done((1, 3), (2, 4), (1, 5))
    talk.folds()
    assert talk.told == ["worker 0 sent garbage: DONE, not asked for; 2 left"]


def test_a_worker_that_gives_signs_of_life_and_no_answer_is_given_up(
    config: Experiment[Frames],
) -> None:
    talk = Talk(config)
    talk.done((1, 1), (2, 2))
    with pytest.raises(NoWorkersLeft):
        talk.folds()
    assert talk.told[0] == f"worker 0 has not sent DONE for {WITHIN_S:.0f} s; 2 left"


def test_with_no_answer_so_far_the_first_one_is_waited_for_longer(
    config: Experiment[Frames],
) -> None:
    talk = Talk(config)
    with pytest.raises(NoWorkersLeft, match="no worker is left"):
        talk.folds()
    assert talk.told[0] == f"worker 0 has not sent DONE for {FIRST_WITHIN_S:.0f} s; 2 left"
    assert talk.peers.now_s() == FIRST_WITHIN_S


def test_a_worker_that_is_back_has_work_and_a_second_one_of_its_rank_is_refused(
    config: Experiment[Frames],
) -> None:
    talk = Talk(config)
    talk.peers.ends(0)
    for place in (1, 2):
        talk.peers.says(0, Header(Kind.HELLO, 4), place=place)
    talk.peers.says(0, Header(Kind.READY), place=1)
    talk.peers.says(0, Header(Kind.DONE, 0), place=2)  # of the one that was refused
    talk.done((1, 1), (2, 2))
    talk.peers.says(0, Header(Kind.DONE, 0), place=1)
    timeline = talk.folds()
    assert talk.told == [
        "worker 0 is gone: its connection closed; 2 left",
        "worker 0 is back; 3 at work",
    ]
    assert sorted(timeline.folded().worker.tolist()) == [0, 1, 2]
    told = "RANK=1: in use by another process; allowed: that of a worker that is gone"
    assert (b"20", Kind.REFUSED, told) in talk.peers.sent


def test_a_worker_that_died_before_it_was_ready_is_done_without(config: Experiment[Frames]) -> None:
    talk = Talk(config, ready=2)
    assert talk.told == [f"worker 2 has not sent READY for {WITHIN_S:.0f} s; 2 left"]
    talk.done((0, 0), (1, 1), (0, 2))
    assert sorted(talk.folds().folded().first_step.tolist()) == [0, 1, 2]


def test_who_knows_of_another_number_of_processes_is_refused() -> None:
    peers = Script(3)
    peers.says(0, Header(Kind.HELLO, 3))
    assert peers.meet(1.0) == {0, 1, 2}
    assert peers.sent == [(b"0", Kind.REFUSED, "WORLD_SIZE=3: allowed: 4, as the server has it")]


def test_who_comes_later_hears_which_run_it_is_unless_nobody_may_come_any_more() -> None:
    peers = Script(3)
    peers.announce("a1b2")
    peers.says(1, Header(Kind.HELLO, 4))
    assert peers.meet(1.0) == {0, 2}
    assert peers.sent == [(b"1", Kind.RUN, "a1b2")]
    peers.late = False
    peers.says(2, Header(Kind.HELLO, 4))
    peers.meet(1.0)
    assert "RANK=3: the run has already begun" in peers.sent[-1][2]


@pytest.fixture
def rounds(config: Experiment[Frames]) -> Any:
    handing = Averaging(every=5).handing(3)
    return SimpleNamespace(
        workers=3, handing=handing, algorithm=config.algorithm, rates=config.rates
    )


def test_rounds_say_which_worker_is_gone_and_why(rounds: Any) -> None:
    talk = Talk(rounds, Rounds)
    talk.peers.says(2, Header(Kind.DONE, 5))
    told = "worker 2 sent garbage: DONE 5, not asked for; a round needs all workers"
    with pytest.raises(NoWorkersLeft, match=told):
        talk.folds(1)
    with pytest.raises(NoWorkersLeft, match="worker 2 has not sent READY for 60 s; a round needs"):
        Talk(rounds, Rounds, ready=2)


@pytest.mark.parametrize("kind", [Kind.CLOCK, Kind.HELLO], ids=lambda kind: kind.name)
def test_who_talks_all_the_time_and_never_answers_is_given_up_in_time(
    config: Experiment[Frames], kind: Kind
) -> None:
    talk = Talk(config)
    talk.done((0, 0), (1, 1), (0, 3), (1, 4))
    until_s = 1.5 * WITHIN_S if kind is Kind.CLOCK else 5.0

    def chatter() -> None:
        talk.peers.time_s += 1.0
        talk.peers._take_in(2, (b"2", 2), frames_of(Header(kind, 4), None))
        if talk.peers.time_s < until_s:
            talk.peers.coming.append(chatter)
        else:
            talk.done((0, 2))

    talk.peers.coming.append(chatter)
    talk.folds(5)
    told = "sent garbage: HELLO, not asked for"
    if kind is Kind.CLOCK:
        told = f"has not sent DONE 2 for {WITHIN_S:.0f} s"
    assert talk.told == [f"worker 2 {told}; 2 left"]


def test_others_that_never_pause_do_not_keep_a_worker_that_is_silent(
    config: Experiment[Frames],
) -> None:
    talk = Talk(config)

    def answer(address: bytes, words: bytes, body: Any) -> None:
        header, _ = read_frames((words, b""))
        if header.kind is Kind.WORK and address != b"2":
            talk.peers.coming.append(lambda: talk.peers.sleep(0.5))
            talk.peers.coming.append(lambda: None)
            talk.done((int(address), header.step))

    talk.peers._route = answer  # type: ignore[method-assign]
    talk.server.advance(200, handing_out=300, rate=1.0)
    assert talk.told == [f"worker 2 has not sent DONE 2 for {WITHIN_S:.0f} s; 2 left"]


@pytest.mark.parametrize("bad", ["a number", "the loss", "infinite"])
def test_one_worker_alone_cannot_say_that_training_diverges(
    config: Experiment[Frames], bad: str
) -> None:
    talk = Talk(config)
    loss = math.nan if bad == "the loss" else 0.0
    value = {"a number": math.nan, "infinite": -math.inf}.get(bad, 1.0)
    talk.peers.says(1, Header(Kind.DONE, 1, loss=loss), value=value)
    talk.done((0, 0), (2, 2), (0, 1))
    timeline = talk.folds()
    assert talk.told == ["worker 1 sent numbers that are not finite; 2 left"]
    assert talk.server.server.model.tolist() == [-3.0] * SIZE
    assert math.isfinite(talk.server.loss)
    assert (len(timeline.lost()), sorted(timeline.folded().first_step.tolist())) == (1, [0, 1, 2])


def test_the_last_worker_is_believed_that_training_diverges_if_another_said_so(
    config: Experiment[Frames],
) -> None:
    talk = Talk(config)
    for worker, step in ((0, 0), (1, 1), (2, 2), (2, 0), (2, 1)):
        talk.peers.says(worker, Header(Kind.DONE, step), value=math.nan)
    talk.folds()
    assert talk.server.server.model.isnan().any()
    talk = Talk(config)
    for worker in (0, 1):
        talk.peers.ends(worker)
    talk.peers.says(2, Header(Kind.DONE, 2), value=math.nan)
    with pytest.raises(NoWorkersLeft):
        talk.folds()
    assert talk.told[-1] == "worker 2 sent numbers that are not finite; 0 left"
    assert talk.server.server.model.tolist() == [0.0] * SIZE


def test_in_rounds_one_worker_is_named_and_all_together_are_believed(rounds: Any) -> None:
    rounds.algorithm = ModelAveraging()
    for liars, ends in (((1,), True), ((0, 1, 2), False)):
        talk = Talk(rounds, Rounds)
        for worker in range(3):
            value = math.nan if worker in liars else 1.0
            talk.peers.says(worker, Header(Kind.DONE), value=value)
        if ends:
            with pytest.raises(NoWorkersLeft, match="worker 1 sent numbers that are not finite, "):
                talk.folds(1)
            assert talk.server.server.model.isfinite().all()
        else:
            talk.folds(1)
            assert talk.server.server.model.isnan().any()


def test_times_that_cannot_be_are_taken_to_lie_between_sending_and_receiving(
    config: Experiment[Frames],
) -> None:
    talk = Talk(config)
    for worker, (began, ended) in enumerate([(-1e300, 1e300), (5e9, -5e9), (0.0, 0.0)]):
        talk.peers.says(worker, Header(Kind.DONE, worker, began_s=began, ended_s=ended))
    spans = talk.folds().spans
    assert (spans.start_s >= 0.0).all()
    assert (spans.end_s <= talk.server.now_s).all()
