"""Sequence training on real processes: the server, and what it knows of every replica.

A decoder asks for one utterance after another and gets it with the newest model; what it keeps
goes to its trainer. A trainer says which utterances enter its slots, reads, and sends gradients,
which are folded in the order they come.

A replica is both processes: if one dies, so does the other. What was handed out and has not entered
a minibatch goes to other replicas; frames in its slots and in its contribution are lost, counted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from fractions import Fraction

import torch
from torch import Tensor

from harness.algorithms.async_sgd import AsyncSgd
from harness.execution.data.decoding import Seen
from harness.execution.data.utterances import orders
from harness.execution.processes.messages import GarbageReceived
from harness.execution.processes.notes import (
    CLOSED,
    Arrival,
    Note,
    Post,
    Word,
    send,
    vectors,
    wait_until,
    why_silent,
)
from harness.execution.processes.recorder import Work
from harness.execution.processes.replica import (
    Handed,
    Replica,
    decoder_rank,
    sign_of,
    trainer_rank,
)
from harness.execution.processes.sequence_recorder import Row, SequenceRecorder, Told
from harness.execution.processes.server import NoWorkersLeft, Pace, clock_offset
from harness.execution.replay.state import Arrays, Facts
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training.executor import Step
from harness.execution.training.setup import Setup


class Replicas:
    """An executor on the processes of a group, as their server.

    Args:
        config: what is run.
        setup: its parts.
        initial: the parameters ``[P]`` it starts from.
        pace: slows the folds; None for as fast as they go.
        say: told what happens to replicas.
    """

    def __init__(
        self,
        config: SequenceConfig,
        setup: Setup,
        initial: Tensor,
        pace: Pace | None,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._pace, self._say = config, pace, say
        self._algorithm, self._recorder, self.record = AsyncSgd(), SequenceRecorder(), Told()
        self.server = self._algorithm.start(setup.part)
        passes = orders(config.seed, len(setup.train), config.replicas, max(1, config.passes))
        todo = passes if config.passes else passes[:, :0]
        self.replicas = [Replica(deque(row[row >= 0].tolist())) for row in todo]
        self._orphans: deque[int] = deque()
        self._frames, self._seen = setup.train.frames, list[Seen]()
        self._decodings = self._steps = 0
        self._left_s: float | None = None
        self._broken = False
        self._began = time.monotonic()
        ranks = list(range(1, 1 + 2 * config.replicas))
        self._offset: dict[int, float] = {}
        for rank in ranks:
            self._greet(rank, Note(Word.START, sign_of(config, paced=pace is not None)), initial)
        self._post = Post(ranks, vectors(setup.part.numel()))

    @property
    def now_s(self) -> float:
        """Seconds since the run began, on the server's clock."""
        return time.monotonic() - self._began

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far, as the server was told."""
        return len(self.record.rows) / len(self._frames)

    def _greet(self, rank: int, start: Note, initial: Tensor) -> None:
        """Ask for a process's clock and tell it the model that training starts from."""
        try:
            self._offset[rank] = clock_offset(rank, lambda: self.now_s)
            send(start, rank, initial)
        except (RuntimeError, GarbageReceived) as error:
            self._lose((rank - 1) // 2, rank, why_silent(error))

    # -- the way through a run ----------------------------------------------------------

    def advance(self, rate: float, until: Fraction) -> Step:
        """See `SequenceExecutor`: until a fold finds so many passes told of, or to the end.

        Raises:
            NoWorkersLeft: nobody is there to decode and train.
        """
        if self._left_s is not None:
            self._recorder.paused(self._left_s, self.now_s)
        ended = False
        while not (ended := self._ended()):
            if all(replica.gone for replica in self.replicas):
                raise NoWorkersLeft
            if self._take_in(self._post.get(), rate) and self._told(until):
                break
        self._left_s = self.now_s
        seen, self._seen = self._seen, []
        works = [replica.work for replica in self.replicas if replica.work is not None]
        return Step([self._recorder.segment(works)], seen, ended)

    def _told(self, until: Fraction) -> bool:
        """Whether so many passes have been told of."""
        return len(self.record.rows) >= until * len(self._frames)

    def close(self) -> None:
        """Send home whoever waits; when all is done, everybody does."""
        while self._ended() and not self._broken and any(not r.waits for r in self._living()):
            self._take_in(self._post.get(), 0.0)
        for worker, replica in enumerate(self.replicas):
            if replica.waits and not replica.gone:
                self._tell(Note(Word.STOP), decoder_rank(worker))

    def _ended(self) -> bool:
        """Whether there is nothing left to do, or no sense in it."""
        done = not self._orphans and all(replica.done for replica in self._living())
        return self._broken or done

    def _living(self) -> list[Replica]:
        return [replica for replica in self.replicas if not replica.gone]

    def _take_in(self, arrival: Arrival, rate: float) -> bool:
        """Answer one message; whether it was folded."""
        worker = (arrival.rank - 1) // 2
        note, replica = arrival.note, self.replicas[worker]
        if replica.gone:
            if note is not None and note.word in (Word.ASK, Word.READ):
                self._tell(Note(Word.STOP), arrival.rank)
            return False
        if note is None:
            self._lose(worker, arrival.rank, arrival.trouble)
            return False
        try:
            return self._understand(worker, arrival.rank, note, arrival.body, rate)
        except GarbageReceived as garbage:
            self._lose(worker, arrival.rank, f"sent garbage: {garbage}")
            return False

    def _understand(self, worker: int, rank: int, note: Note, body: Tensor, rate: float) -> bool:
        """Do what a note asks for; whether that was a fold.

        Raises:
            GarbageReceived: it makes no sense now, or not from there.
        """
        if not self._sensible(worker, rank, note):
            raise GarbageReceived(f"{note.word.name} at the wrong time")
        if note.word is Word.ASK:
            self._hand_out(worker)
        elif note.word is Word.TAKEN:
            self._taken(worker, note)
        elif note.word is Word.READ:
            self._read(worker, note)
        else:
            self._fold(worker, note, body, rate)
        return note.word is Word.GRADIENT

    def _sensible(self, worker: int, rank: int, note: Note) -> bool:
        """Whether a note may come now, and from there, and may say what it says."""
        replica = self.replicas[worker]
        if rank != trainer_rank(worker):
            return note.word is Word.ASK
        if note.word is Word.TAKEN:
            handed = replica.handed.get(note.number)
            new = all(note.number != taken.number for taken in replica.taken)
            return handed is not None and new and self._fits(note, handed)
        if note.word is Word.READ:
            there = replica.left + sum(taken.entering for taken in replica.taken)
            enough = 0 < note.frames <= min(there, self._config.slots)
            return replica.work is None and enough and note.version <= self.server.version
        work = replica.work
        return note.word is Word.GRADIENT and work is not None and note.number == work.step

    def _fits(self, note: Note, handed: Handed) -> bool:
        """Whether this is what can be said of an utterance that was handed out."""
        same = (note.utterance, note.version) == (handed.utterance, handed.version)
        frames = int(self._frames[handed.utterance])
        return same and note.entering <= frames and note.slot < self._config.slots

    def _hand_out(self, worker: int) -> None:
        """Give a decoder its next utterance, or one that a dead replica left, or none."""
        replica = self.replicas[worker]
        source = replica.todo or self._orphans
        if not source:
            if not replica.waits:
                replica.waits = True
                self._send(Note(Word.PAUSE), worker, decoder_rank(worker))
            return
        replica.waits = False
        due = self._due(replica.read_s)
        if due:
            replica.version, replica.read_s = self.server.version, self.now_s
        handed = Handed(source.popleft(), replica.version, replica.read_s)
        replica.handed[self._decodings] = handed
        word = Word.DECODE if due else Word.AGAIN
        note = Note(word, self._decodings, handed.utterance, handed.version, read_s=handed.read_s)
        self._decodings += 1
        self._send(note, worker, decoder_rank(worker), self.server.model if due else None)

    def _due(self, read_s: float) -> bool:
        """Whether a decoder whose model was read at a time needs a new one."""
        fetch_s = self._config.fetch_s
        if fetch_s is None or read_s == float("-inf"):
            return True
        return int(self.now_s / fetch_s) > int(read_s / fetch_s)

    def _taken(self, worker: int, note: Note) -> None:
        """An utterance has been decoded and enters the next minibatch, or none if it is empty."""
        if note.entering:
            self.replicas[worker].taken.append(note)
        else:
            self._count(worker, note)

    def _count(self, worker: int, note: Note) -> None:
        """An utterance is told of."""
        handed = self.replicas[worker].handed.pop(note.number)
        which = note.number, worker, handed.utterance, handed.version
        self.record.rows.append(Row(*which, note.entering, self.server.version))
        seen = note.seen()
        self._seen.append(seen)
        self._broken |= seen.trouble == "not finite"

    def _read(self, worker: int, note: Note) -> None:
        """Send the model to a trainer that has gathered its frames."""
        replica = self.replicas[worker]
        for taken in replica.taken:
            handed = replica.handed[taken.number]
            self._recorder.entered(
                worker, taken.slot, taken.number, handed.version,
                read_s=handed.read_s, step=replica.reads, kept=taken.entering,
            )  # fmt: skip
            self._count(worker, taken)
            replica.left += taken.entering
        replica.taken = []
        replica.left, replica.under_way = replica.left - note.frames, note.frames
        replica.work = work = Work(worker, self._steps, 1, self.server.version, self.now_s)
        replica.reads, self._steps = replica.reads + 1, self._steps + 1
        self._recorder.read(work, note.version)
        answer = Note(Word.MODEL, work.step, version=work.read_version)
        self._send(answer, worker, trainer_rank(worker), self.server.model)

    def _fold(self, worker: int, note: Note, gradient: Tensor, rate: float) -> None:
        arrived = begun = self.now_s
        replica = self.replicas[worker]
        work, offset = replica.work, self._offset[trainer_rank(worker)]
        assert work is not None
        staleness = self.server.version - work.read_version
        self._algorithm.fold(self.server, gradient.unsqueeze(0), [staleness], rate)
        if self._pace:
            wait_until(self._began + begun + self._pace.fold_s(worker, replica.folds))
        replica.folds, replica.work, replica.under_way = replica.folds + 1, None, 0
        moments = (note.began_s + offset, note.ended_s + offset, arrived, begun, self.now_s)
        self._recorder.folded(self.server.version - 1, work, moments_s=moments)

    # -- deaths -------------------------------------------------------------------------

    def _send(self, note: Note, worker: int, rank: int, body: Tensor | None = None) -> None:
        """Send to one of a replica's two, which may turn out to be gone."""
        try:
            send(note, rank, body)
        except RuntimeError:
            self._lose(worker, rank, CLOSED)

    def _tell(self, note: Note, rank: int) -> None:
        """Send to somebody of whom nothing is expected any more."""
        try:
            send(note, rank)
        except RuntimeError:
            return

    def _lose(self, worker: int, rank: int, why: str) -> None:
        """Do without a replica from now on."""
        replica = self.replicas[worker]
        if replica.gone:
            return
        replica.gone = True
        if replica.work is not None:
            self._recorder.lost(replica.work)
        utterances, frames = replica.give_up()
        self._orphans.extend(utterances)
        self.record.lost_frames += frames
        who = "trainer" if rank == trainer_rank(worker) else "decoder"
        self._say(
            f"replica {worker}: its {who} {why}; {frames} frames lost,"
            f" {len(utterances)} utterances for others; {len(self._living())} left"
        )
        for other, living in enumerate(self.replicas):
            if living.waits and not living.gone and self._orphans:
                self._hand_out(other)

    # -- resuming -----------------------------------------------------------------------

    def capture(self) -> tuple[Arrays, Facts]:
        """See `Executor`; what is in flight is remembered as to be given up."""
        works = [replica.work for replica in self.replicas if replica.work is not None]
        facts: Facts = {
            "version": self.server.version,
            "todo": [list(replica.todo) for replica in self.replicas],
            "handed": [[e.utterance for e in r.handed.values()] for r in self.replicas],
            "left": [replica.left + replica.under_way for replica in self.replicas],
            "reads": [replica.reads for replica in self.replicas],
            "orphans": list(self._orphans),
            "decodings": self._decodings,
            "steps": self._steps,
            "out": [list(work) for work in works],
            "oldest": self._recorder.oldest(works),
            "told": asdict(self.record) | {"rows": [list(row) for row in self.record.rows]},
            "now_s": self.now_s,
        }
        return {"model": self.server.model.numpy().copy()}, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`: everybody begins anew, with empty slots."""
        self.server.model.copy_(torch.from_numpy(arrays["model"]))
        self.server.version = facts["version"]
        self._decodings, self._steps = facts["decodings"], facts["steps"]
        self._orphans = deque(facts["orphans"])
        self.record = Told(**{**facts["told"], "rows": [Row(*r) for r in facts["told"]["rows"]]})
        self.record.lost_frames += sum(facts["left"])
        self.record.restarts.append(self._steps)
        for replica, todo, handed, reads in zip(
            self.replicas, facts["todo"], facts["handed"], facts["reads"], strict=True
        ):
            replica.todo, replica.reads = deque([*handed, *todo]), reads
            if replica.gone:  # since the greeting
                self._orphans.extend(replica.give_up()[0])
        for row, oldest in zip(facts["out"], facts["oldest"], strict=True):
            self._recorder.read(work := Work(*row), oldest)
            self._recorder.lost(work)
        # The clock goes on where the checkpoint stopped it: what came after never happened.
        shift = self.now_s - facts["now_s"]
        self._began += shift
        self._offset = {rank: offset - shift for rank, offset in self._offset.items()}
