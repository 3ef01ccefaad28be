"""Sequence training: a decoder and a trainer at each worker, each with reads of its own.

A worker's decoder takes one utterance after another: it reads the shared model (at the start of
each utterance, or at multiples of the fetch interval, everybody at once), decodes, and passes the
frames it keeps on; so many decoded utterances may wait, then it waits itself. The worker's trainer
has a minibatch of slots, an utterance in each, and takes one frame of each slot at a time; a slot
that has run out takes the next decoded utterance (on-the-fly shuffling). When all slots are
filled the trainer reads, fetches, computes, and sends a piece of its contribution to each shard
of the server, one after the other, beginning with a different shard than its neighbour. Shards
fold their pieces first come first served. The fold is complete, and the version one more, when
the last shard has folded; then the trainer goes on. A read at an instant between two shards'
folds sees one new piece and one old one: the version read is that of complete folds.

Lengths are drawn, and a fixed part of an utterance is kept; or lengths are given, and what was
kept of an utterance is told before its decoding ends (see `Simulation.untold`): then a segment
ends where the next event needs to be told. Of given utterances there is a last one: after it
the remaining frames are trained on in smaller minibatches.

Of events at one instant: folds, pieces, ends of computing and of decoding, trainers' reads,
decoders' reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs
from harness.simulator.events import new_tournament
from harness.simulator.protocols.contract import Limits, TimingProtocol
from harness.simulator.protocols.sequence_kernel import (
    CLOCK,
    DECODE,
    DECODER,
    DECODING,
    LEAF,
    NEVER_STARTED,
    PIECE_SPAN,
    TRAINER,
    UNDER_WAY,
    UNTOLD,
    UTTERANCE,
    Record,
    Rules,
    State,
    run,
    wake,
)
from harness.simulator.timeline import IN_FLIGHT, Contributions, Decodes, Folds, Spans, Timeline

__all__ = ["Sequence", "Untold"]


class Untold(NamedTuple):
    """[U] utterances in decoders.

    Attributes:
        worker: whose decoder.
        number: which of this worker's utterances, counted from 0.
        utterance: number, counted over all workers in order of decoding.
        decode_version: the version it is decoded with.
        decode_time_s: when that version was read.
    """

    worker: np.ndarray
    number: np.ndarray
    utterance: np.ndarray
    decode_version: np.ndarray
    decode_time_s: np.ndarray


@dataclass(frozen=True)
class Sequence(Spec, TimingProtocol):
    """Asynchronous sequence training.

    Attributes:
        slots: utterances, and frames, in a minibatch; what the workload calls a minibatch.
        frames: mean length of an utterance.
        frames_cv: standard deviation of the length over its mean (a gamma law).
        kept: the part of an utterance's frames that the decoder passes on.
        decode_cost: decoding a frame takes as long as training on so many.
        fetch_s: interval of the decoders' fetches; None is at the start of each utterance.
        fetch_every: minibatches from one fetch of a trainer to the next.
        waiting: decoded utterances that may wait for a slot.
        shards: parts of the model, each with a queue of its own.
        shuffled: whether a minibatch has a frame of each slot's utterance; if not, it has
            frames of one utterance after another.
    """

    name = "sequence"

    slots: int = setting(32, at_least=1, at_most=100_000)
    frames: float = setting(240.0, at_least=1.0, at_most=1e6)
    frames_cv: float = setting(0.5, at_least=0.0, at_most=10.0)
    kept: float = setting(0.15, above=0.0, at_most=1.0)
    decode_cost: float = setting(1.875, at_least=0.0, at_most=1e6)
    fetch_s: float | None = setting(None, at_least=1e-6, at_most=1e9)
    fetch_every: int = setting(1, at_least=1, at_most=1_000_000)
    waiting: int = setting(1, at_least=1, at_most=100_000)
    shards: int = setting(1, at_least=1, at_most=10_000)
    shuffled: bool = True

    @property
    def rules(self) -> Rules:
        """The settings as the kernel takes them."""
        return Rules(
            shards=self.shards,
            fetch_s=self.fetch_s or 0.0,
            fetch_every=self.fetch_every,
            frames=self.frames,
            frames_cv=self.frames_cv,
            kept=self.kept,
            decode_cost=self.decode_cost,
            shuffled=self.shuffled,
        )

    def start(self, cluster: Cluster, workers: int) -> State:
        """Every trainer idle with empty slots, every decoder about to begin.

        Raises:
            UserError: the cluster's workers share a link, or there are too many.
        """
        if cluster.link.sharing != "none":
            raise UserError("link.sharing: sequence training needs 'none', a link for every worker")
        if 2 * workers > LEAF:
            raise UserError(f"workers: {workers} is too many for sequence training")
        trainers, decoders = np.zeros(workers, TRAINER), np.zeros(workers, DECODER)
        trainers["worker"] = np.arange(workers)
        trainers["since_fetch"] = self.fetch_every
        decoders["phase"] = NEVER_STARTED
        decoders["read_at_s"] = -np.inf
        return State(
            clock=np.zeros(1, CLOCK),
            events=new_tournament(2 * workers),
            trainers=trainers,
            decoders=decoders,
            waiting=np.zeros((workers, self.waiting + 1), UTTERANCE),
            slots=np.zeros((workers, self.slots), UTTERANCE),
            shard_free_s=np.zeros(self.shards),
            pieces=np.zeros((workers, self.shards), PIECE_SPAN),
            lengths=np.zeros((workers, 0), np.int64),
        )

    def given(self, state: State, lengths: np.ndarray) -> State:
        """The state in which decoders take utterances of these lengths.

        Args:
            state: as `start` made it.
            lengths: [N, Q] frames of each worker's utterances in its order, then zeros.
        """
        if lengths.shape[0] != len(state.decoders) or lengths.shape[1] == 0:
            raise ValueError(f"lengths of shape {lengths.shape} for {len(state.decoders)} workers")
        return state._replace(lengths=np.ascontiguousarray(lengths, np.int64))

    def untold(self, state: State) -> Untold:
        """The utterances whose decoding has begun and whose number of kept frames is unknown."""
        entry, decoders = state.waiting[:, -1], state.decoders
        worker = np.flatnonzero((decoders["phase"] == DECODING) & (entry["kept"] == UNTOLD))
        return Untold(
            worker.astype(np.int32),
            decoders["decoded"][worker] - 1,
            entry["utterance"][worker],
            entry["version"][worker],
            entry["read_at_s"][worker],
        )

    def tell(self, state: State, worker: np.ndarray, kept: np.ndarray) -> None:
        """So many frames are kept of the utterances in the decoders of these workers."""
        entry = state.waiting[:, -1]
        if not (np.all(entry["kept"][worker] == UNTOLD) and np.all(kept >= 0)):
            raise ValueError("what an utterance kept is told once, and is at least 0")
        entry["kept"][worker] = entry["left"][worker] = kept

    def wake(self, state: State) -> None:
        """Idle trainers are about to read; decoders begin if they have not."""
        wake(state)

    def advance(
        self, state: State, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run until a limit or until ``room`` folds are recorded: (why it stopped, what was)."""
        room = min(room, 1 << 13)
        first = int(state.clock[0]["version"])
        record = Record(
            folded=np.empty(room, TRAINER),
            pieces=np.empty((room if spans else 0, self.shards), PIECE_SPAN),
            decodes=np.empty(room + 2 * state.slots.size, DECODE),
            counts=np.zeros(2, np.int64),
        )
        why = run(state, costs, self.rules, limits, record)
        folded = record.folded[: record.counts[0]]
        numbers = np.arange(first, first + len(folded), dtype=np.int64)
        return why, Timeline(
            folds=Folds(numbers, folded["fold_end_s"].copy()),
            contributions=_contributions(numbers, folded),
            spans=_spans(folded, record.pieces[: len(folded)]) if spans else Spans(),
            decodes=_decodes(record.decodes[: record.counts[1]]),
        )

    def in_flight(self, state: State) -> Contributions:
        """Contributions read and not yet folded, by first step."""
        rows = state.trainers[state.trainers["phase"] == UNDER_WAY]
        ordered = rows[np.argsort(rows["first_step"])]
        return _contributions(np.full(len(ordered), IN_FLIGHT, np.int64), ordered)


def _contributions(folds: np.ndarray, trainers: np.ndarray) -> Contributions:
    return Contributions(
        fold=folds,
        worker=trainers["worker"].astype(np.int32),
        read_version=trainers["read_version"].copy(),
        read_time_s=trainers["read_at_s"].copy(),
        first_step=trainers["first_step"].copy(),
        steps=np.ones(len(trainers), np.int32),
        decode_version=trainers["decode_version"].copy(),
    )


def _decodes(rows: np.ndarray) -> Decodes:
    small = ("worker", "slot", "steps")
    kinds = {name: np.int32 if name in small else rows.dtype[name] for name in DECODE.names or ()}
    return Decodes(**{name: rows[name].astype(kind) for name, kind in kinds.items()})


def _spans(trainers: np.ndarray, pieces: np.ndarray) -> Spans:
    """Fetch, compute, push of each contribution and the fold of each of its pieces."""
    names = ("fetch_start_s", "fetch_end_s", "compute_end_s", "push_end_s")
    instants = np.stack([trainers[name] for name in names], axis=1)
    start_s = np.concatenate([instants[:, :-1], pieces["start_s"]], axis=1).reshape(-1)
    end_s = np.concatenate([instants[:, 1:], pieces["end_s"]], axis=1).reshape(-1)
    own = np.repeat(trainers["worker"][:, None], 3, axis=1)
    worker = np.concatenate([own, -1 - pieces["shard"]], axis=1).astype(np.int32).reshape(-1)
    kinds = [0, 1, 2, *[3] * pieces.shape[1]]
    kind = np.tile(np.array(kinds, np.int32), len(trainers))
    busy = end_s > start_s
    return Spans(worker[busy], kind[busy], start_s[busy], end_s[busy])
