"""Sequence training on real processes: its server, its command and its record.

A decoder requests one utterance after another and receives it with the newest model; the frames
it keeps go to its trainer. A trainer reports the utterances that enter its slots, reads, and sends
gradients, which the server folds in order of arrival.

A replica is both processes: if one fails, the other ends. Its utterances that have not entered a
minibatch go to other replicas. Frames in its slots and in its contribution are lost, and counted.

The record has a file beside the timeline, with a row for every utterance that entered a minibatch
or had no kept frame: the worker that decoded it, the version it was decoded with, the number of
frames that entered, and the version at which the server received the report. With the initial
model, that is all a replay needs.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from data_synth.corpus import Corpus
from harness.algorithms.contract import Fold
from harness.base.errors import EXIT_DONE, EXIT_RUN_FAILED, UserError
from harness.networks.feedforward import denormals_flushed
from harness.processes.console import say
from harness.processes.messages import (
    Arrival,
    Kind,
    Mailbox,
    disconnect_reason,
    like,
    reuse_buffer,
    send,
)
from harness.processes.recorder import Recorder, Work, table
from harness.processes.rendezvous import require_gloo
from harness.processes.server import NoWorkersLeft
from harness.processes.transport import CLOSED, MalformedMessage
from harness.processes.worker import Clock, Pacing
from harness.replay.fold_replay import Arrays, Facts, capture_server, reinstate_server
from harness.simulator import Timeline
from harness.simulator.timeline import Decodes
from harness.speech.decoding import DecodeStats, orders
from harness.speech.replica_worker import (
    Assignment,
    PartnerGone,
    Replica,
    SequenceHeader,
    contribute,
    decoder_rank,
    trainer_rank,
)
from harness.speech.sequence import SequenceConfig, Setup, Step
from harness.speech.sequence_training import train_sequence
from harness.store import Run, Store
from harness.tasks.contract import Roles, Serving


class SequenceServerExecutor:
    """Executor on a group of processes, as their server.

    Args:
        config: configuration of the run.
        setup: its parts.
        initial: initial parameters ``[P]``.
        pace: throttle of the folds.
        say: callback for lines on failed replicas.
    """

    def __init__(
        self,
        config: SequenceConfig,
        setup: Setup,
        initial: Tensor,
        pace: Pacing,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._pace, self._say = config, pace, say
        self._algorithm = config.algorithm.on(setup.loss)
        self._recorder, self.record = SequenceRecorder(), DecodeLog()
        self.server = self._algorithm.start(setup.part)
        passes = orders(config.seed, len(setup.train), config.replicas, max(1, config.passes))
        todo = passes if config.passes else passes[:, :0]
        self.replicas = [Replica(deque(row[row >= 0].tolist())) for row in todo]
        self._orphans: deque[int] = deque()
        self._frames, self._seen = setup.train.frames, list[DecodeStats]()
        self._decodings = self._steps = 0
        self._broken = False
        self._clock = Clock(SequenceHeader(Kind.CLOCK))
        self._mailbox = Mailbox(SequenceHeader)
        for rank in range(1, 1 + 2 * config.replicas):
            self._greet(rank, initial)
            self._mailbox.listen(rank, rank, reuse_buffer(like(setup.part)))

    @property
    def now_s(self) -> float:
        """Seconds since the run began, on the server's clock."""
        return self._clock.now_s

    @property
    def epoch(self) -> float:
        """Passes over the training utterances so far, by the reports received."""
        return len(self.record.rows) / len(self._frames)

    def _greet(self, rank: int, initial: Tensor) -> None:
        """Request a process's clock and send it the initial model."""
        try:
            self._clock.ask(rank, rank)
            send(SequenceHeader(Kind.START), rank, initial)
        except (RuntimeError, MalformedMessage) as error:
            self._lose((rank - 1) // 2, rank, disconnect_reason(error))

    # -- the way through a run ----------------------------------------------------------

    def advance(self, rate: float, until: Fraction) -> Step:
        """See `SequenceExecutor`: to the first fold after ``until`` passes were reported.

        Raises:
            NoWorkersLeft: every replica has failed.
        """
        self._recorder.go_on(self.now_s)
        ended = False
        while not (ended := self._is_finished()):
            if all(replica.gone for replica in self.replicas):
                raise NoWorkersLeft
            if self._take_in(self._mailbox.get(), rate) and self._has_decoded(until):
                break
        self._recorder.leave(self.now_s)
        seen, self._seen = self._seen, []
        works = [replica.work for replica in self.replicas if replica.work is not None]
        return Step([self._recorder.segment(works)], seen, ended)

    def _has_decoded(self, until: Fraction) -> bool:
        """Whether decoders have reported at least ``until`` passes."""
        return len(self.record.rows) >= until * len(self._frames)

    def close(self) -> None:
        """Stop the replicas that wait for work; if training is complete, wait for all of them."""
        while self._is_finished() and not self._broken and any(not r.waits for r in self._living()):
            self._take_in(self._mailbox.get(), 0.0)
        for worker, replica in enumerate(self.replicas):
            if replica.waits and not replica.gone:
                self._tell(SequenceHeader(Kind.STOP), decoder_rank(worker))

    def _is_finished(self) -> bool:
        """Whether all utterances are trained on, or a decoder met values that are not finite."""
        done = not self._orphans and all(replica.done for replica in self._living())
        return self._broken or done

    def _living(self) -> list[Replica]:
        return [replica for replica in self.replicas if not replica.gone]

    def _take_in(self, arrival: Arrival[SequenceHeader], rate: float) -> bool:
        """Process one message; returns whether it was a gradient and folded."""
        worker = (arrival.sender - 1) // 2
        header, replica = arrival.header, self.replicas[worker]
        if replica.gone:  # the surviving half: stop it at its next request
            if header is not None and header.kind in (Kind.ASK, Kind.READ):
                self._tell(SequenceHeader(Kind.STOP), arrival.sender)
            return False
        if header is None:
            self._lose(worker, arrival.sender, arrival.trouble)
            return False
        try:
            return self._understand(worker, arrival.sender, header, arrival.body, rate)
        except MalformedMessage as garbage:
            self._lose(worker, arrival.sender, f"sent garbage: {garbage}")
            return False

    def _understand(
        self, worker: int, rank: int, header: SequenceHeader, body: Tensor, rate: float
    ) -> bool:
        """Execute a request; returns whether it was a fold.

        Raises:
            MalformedMessage: the request is invalid in the replica's state or from this rank.
        """
        if not self._is_sensible(worker, rank, header):
            raise MalformedMessage(f"{header.kind.name} at the wrong time")
        if header.kind is Kind.ASK:
            self._hand_out(worker)
        elif header.kind is Kind.TAKEN:
            self._on_taken(worker, header)
        elif header.kind is Kind.READ:
            self._read(worker, header)
        else:
            self._fold(worker, header, body, rate)
        return header.kind is Kind.GRADIENT

    def _is_sensible(self, worker: int, rank: int, header: SequenceHeader) -> bool:
        """Whether a header is valid from this rank in the replica's present state."""
        replica = self.replicas[worker]
        if rank != trainer_rank(worker):
            return header.kind is Kind.ASK
        if header.kind is Kind.TAKEN:
            handed = replica.handed.get(header.number)
            new = all(header.number != taken.number for taken in replica.taken)
            return handed is not None and new and self._is_valid_report(header, handed)
        if header.kind is Kind.READ:
            there = replica.left + sum(taken.entering for taken in replica.taken)
            enough = 0 < header.frames <= min(there, self._config.slots)
            return replica.work is None and enough and header.version <= self.server.version
        work = replica.work
        return header.kind is Kind.GRADIENT and work is not None and header.number == work.step

    def _is_valid_report(self, header: SequenceHeader, handed: Assignment) -> bool:
        """Whether a report agrees with the assignment of its utterance."""
        same = (header.utterance, header.version) == (handed.utterance, handed.version)
        frames = int(self._frames[handed.utterance])
        return same and header.entering <= frames and header.slot < self._config.slots

    def _hand_out(self, worker: int) -> None:
        """Assign a decoder its next utterance, or one of a failed replica, or pause it."""
        replica = self.replicas[worker]
        source = replica.todo or self._orphans
        if not source:
            if not replica.waits:
                replica.waits = True
                self._send(SequenceHeader(Kind.PAUSE), worker, decoder_rank(worker))
            return
        replica.waits = False
        due = self._is_model_due(replica.read_s)
        if due:
            replica.version, replica.read_s = self.server.version, self.now_s
        handed = Assignment(source.popleft(), replica.version, replica.read_s)
        replica.handed[self._decodings] = handed
        kind = Kind.DECODE if due else Kind.AGAIN
        header = SequenceHeader(
            kind, self._decodings, handed.utterance, version=handed.version, read_s=handed.read_s
        )
        self._decodings += 1
        self._send(header, worker, decoder_rank(worker), self.server.model if due else None)

    def _is_model_due(self, read_s: float) -> bool:
        """Whether a decoder must receive a new model, given the time of its last read."""
        fetch_s = self._config.fetch_s
        if fetch_s is None or read_s == float("-inf"):
            return True
        return int(self.now_s / fetch_s) > int(read_s / fetch_s)

    def _on_taken(self, worker: int, header: SequenceHeader) -> None:
        """Note a decoded utterance for the next minibatch; count it now if it has no frames."""
        if header.entering:
            self.replicas[worker].taken.append(header)
        else:
            self._count(worker, header)

    def _count(self, worker: int, header: SequenceHeader) -> None:
        """Append an utterance to the record and to the statistics."""
        handed = self.replicas[worker].handed.pop(header.number)
        which = header.number, worker, handed.utterance, handed.version
        self.record.rows.append(Row(*which, header.entering, self.server.version))
        seen = header.decode_stats()
        self._seen.append(seen)
        self._broken |= seen.trouble == "not finite"

    def _read(self, worker: int, header: SequenceHeader) -> None:
        """Send the model to a trainer that has gathered its frames."""
        replica = self.replicas[worker]
        for taken in replica.taken:
            handed = replica.handed[taken.number]
            self._recorder.record_entry(
                worker, taken.slot, taken.number, handed.version,
                read_s=handed.read_s, step=replica.reads, kept=taken.entering,
            )  # fmt: skip
            self._count(worker, taken)
            replica.left += taken.entering
        replica.taken = []
        replica.left, replica.under_way = replica.left - header.frames, header.frames
        replica.work = work = Work(worker, self._steps, 1, self.server.version, self.now_s)
        replica.reads, self._steps = replica.reads + 1, self._steps + 1
        self._recorder.record_read(work, header.version)
        answer = SequenceHeader(Kind.MODEL, work.step, version=work.read_version)
        self._send(answer, worker, trainer_rank(worker), self.server.model)

    def _fold(self, worker: int, header: SequenceHeader, gradient: Tensor, rate: float) -> None:
        arrived = begun = self.now_s
        replica = self.replicas[worker]
        work = replica.work
        assert work is not None
        staleness = self.server.version - work.read_version
        fold = Fold(gradient.unsqueeze(0), [staleness], rate, [worker], [1.0])
        self._algorithm.fold(self.server, fold)
        self._clock.sleep_until(begun + self._pace.fold_s(worker, replica.folds))
        replica.folds, replica.work, replica.under_way = replica.folds + 1, None, 0
        rank, ours = trainer_rank(worker), self._clock.peer_to_run_time
        fetched, computed = ours(rank, header.began_s), ours(rank, header.ended_s)
        moments = (fetched, computed, arrived, begun, self.now_s)
        self._recorder.record_fold(self.server.version - 1, work, moments_s=moments)

    # -- deaths -------------------------------------------------------------------------

    def _send(
        self, header: SequenceHeader, worker: int, rank: int, body: Tensor | None = None
    ) -> None:
        """Send to a process of a replica; a closed connection loses the replica."""
        try:
            send(header, rank, body)
        except RuntimeError:
            self._lose(worker, rank, CLOSED)

    def _tell(self, header: SequenceHeader, rank: int) -> None:
        """Send to a process that no answer is expected from; errors are ignored."""
        with suppress(RuntimeError):
            send(header, rank)

    def _lose(self, worker: int, rank: int, why: str) -> None:
        """Mark a replica as failed, record its loss and give its utterances to others."""
        replica = self.replicas[worker]
        if replica.gone:
            return
        replica.gone = True
        if replica.work is not None:
            self._recorder.record_loss(replica.work)
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
        """See `Executor`; contributions in flight are stored as work that a resume gives up."""
        works = [replica.work for replica in self.replicas if replica.work is not None]
        arrays, facts = capture_server(self.server)
        facts |= {
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
        return arrays, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """See `Executor`: all replicas start again with empty slots."""
        reinstate_server(self.server, arrays, {"numbers": {}, **facts})  # older ones have none
        self._decodings, self._steps = facts["decodings"], facts["steps"]
        self._orphans = deque(facts["orphans"])
        told: Facts = dict(facts["told"])
        self.record = DecodeLog([Row(*row) for row in told.pop("rows")], **told)
        self.record.lost_frames += sum(facts["left"])
        self.record.restarts.append(self._steps)
        for replica, todo, handed, reads in zip(
            self.replicas, facts["todo"], facts["handed"], facts["reads"], strict=True
        ):
            replica.todo, replica.reads = deque([*handed, *todo]), reads
            if replica.gone:  # since the greeting
                self._orphans.extend(replica.give_up()[0])
        for row, oldest in zip(facts["out"], facts["oldest"], strict=True):
            self._recorder.record_read(work := Work(*row), oldest)
            self._recorder.record_loss(work)
        self._clock.go_on_at(facts["now_s"])


def check(config: SequenceConfig, asked: argparse.Namespace, ranks: int) -> None:
    """Reject options and configurations that these processes do not support; see `Roles`.

    Raises:
        UserError: an option or a setting is not supported.
    """
    require_gloo(asked.backend)
    if asked.device not in (None, "cpu"):
        raise UserError(f"--device {asked.device}: sequence training on processes: cpu")
    if asked.restarts:
        raise UserError(
            f"--restarts {asked.restarts}: workers cannot rejoin sequence training; allowed: 0"
        )
    if config.shuffling == "full":
        raise UserError(
            "shuffling: 'full' is not allowed on real processes; allowed: none, on the fly"
        )
    if config.shards != 1:
        raise UserError(f"shards: {config.shards} is not allowed on real processes; allowed: 1")
    if 1 + 2 * config.replicas != ranks:
        raise UserError(
            f"{asked.file}: replicas: {config.replicas} is not allowed with {ranks} processes;"
            f" needed are {1 + 2 * config.replicas}: a server, and two for each replica"
        )


def serve(config: SequenceConfig, corpus: Corpus, serving: Serving) -> Run:
    """Run or load a training, with this process as its server; see `Roles`.

    Raises:
        NoWorkersLeft: every replica has failed.
    """

    def make_executor(
        config: SequenceConfig, setup: Setup, initial: Tensor
    ) -> SequenceServerExecutor:
        pace = Pacing.from_config(config, serving.asked.paced)
        return serving.begin(lambda: SequenceServerExecutor(config, setup, initial, pace, say))

    store = Store(serving.asked.out)
    return train_sequence(config, corpus, store, serving.watch, make_executor, serving.how)


def take_part(
    config: SequenceConfig, corpus: Corpus, rank: int, asked: argparse.Namespace, late: bool
) -> int:
    """Run a trainer or a decoder; see `Roles`."""
    if late:
        raise UserError(f"RANK={rank}: workers cannot rejoin a running sequence training")
    with denormals_flushed():
        try:
            contribute(config, corpus, rank, Pacing.from_config(config, asked.paced))
        except PartnerGone as gone:
            told = f"the other half of the replica {str(gone) or 'is gone'}"
            say(f"error: {name(config, rank)}: {told}")
            return EXIT_RUN_FAILED
    return EXIT_DONE


def name(config: SequenceConfig, rank: int) -> str:
    """Name of a process in messages; see `Roles`."""
    del config
    return f"replica {(rank - 1) // 2}: {'trainer' if rank % 2 else 'decoder'}"


ROLES = Roles(check, serve, take_part, name)
"""A server, and for each replica a trainer and a decoder."""


class Row(NamedTuple):
    """A decoded utterance that was reported to the server.

    Attributes:
        number: number of the decoding, counted over all replicas.
        worker: index of the replica that decoded it.
        utterance: index of the training utterance.
        decode_version: the version it was decoded with.
        entering: frames that enter minibatches.
        told_version: number of folds when the server counted the report.
    """

    number: int
    worker: int
    utterance: int
    decode_version: int
    entering: int
    told_version: int


@dataclass
class DecodeLog:
    """Record of the decoded utterances of a sequence training.

    Attributes:
        rows: one per utterance, in the order the server counted them.
        restarts: numbers of the first minibatches after a resume, when all slots were empty.
        lost_frames: kept frames that were lost with failed or resumed replicas.
    """

    rows: list[Row] = field(default_factory=list[Row])
    restarts: list[int] = field(default_factory=list[int])
    lost_frames: int = 0

    def arrays(self) -> Arrays:
        """The record as columns."""
        table = np.array(self.rows, np.int64).reshape(-1, len(Row._fields))
        return {
            **{name: table[:, at].copy() for at, name in enumerate(Row._fields)},
            "restarts": np.array(self.restarts, np.int64),
            "lost_frames": np.array([self.lost_frames], np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> DecodeLog:
        """Undo ``arrays``."""
        rows = zip(*(arrays[name].tolist() for name in Row._fields), strict=True)
        restarts, lost = arrays["restarts"].tolist(), int(arrays["lost_frames"][0])
        return cls([Row(*row) for row in rows], restarts, lost)


def load_decode_log(path: Path) -> tuple[DecodeLog, Tensor]:
    """Load a run's decode log and its initial parameters ``[P]``.

    Raises:
        UserError: the file is missing, as in a simulated run, or is not a decode log.
    """
    if not path.exists():
        raise UserError(f"{path.parent}: has no {path.name}; allowed: a run on real processes")
    try:
        arrays = load_file(path)
        return DecodeLog.from_arrays(arrays), torch.as_tensor(arrays["start"])
    except (OSError, SafetensorError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as a record of decoding: {error}") from error


class SequenceRecorder(Recorder):
    """A `Recorder` that also records decodes and the contributions' decode versions."""

    def __init__(self) -> None:
        super().__init__()
        self._oldest: dict[int, int] = {}
        self._decodes: list[tuple[float, ...]] = []

    def record_read(self, work: Work, oldest: int) -> None:
        """Record a contribution's read, with the oldest version its frames were decoded with."""
        self._oldest[work.step] = oldest

    def record_entry(
        self, worker: int, slot: int, number: int, version: int, *, read_s: float, step: int,
        kept: int,
    ) -> None:  # fmt: skip
        """Record an utterance that enters its replica's step ``step``; see `Decodes`."""
        self._decodes.append((worker, slot, number, version, read_s, step, kept))

    def oldest(self, works: Iterable[Work]) -> list[int]:
        """The oldest decode version of each contribution's frames."""
        return [self._oldest[work.step] for work in works]

    def segment(self, in_flight: Iterable[Work]) -> Timeline:
        """See `Recorder`; with decodes, and decode versions of contributions."""
        timeline = super().segment(in_flight)
        rows, decodes = timeline.contributions, table(Decodes, self._decodes)
        oldest = np.array([self._oldest[step] for step in rows.first_step.tolist()], np.int64)
        done = set(rows.where(rows.fold >= 0).first_step.tolist())
        self._oldest = {step: v for step, v in self._oldest.items() if step not in done}
        self._decodes = []
        return replace(
            timeline,
            contributions=replace(rows, decode_version=oldest),
            decodes=decodes,
        )
