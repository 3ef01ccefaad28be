"""Sequence training: a decoder and a trainer at each worker, each with reads of its own.

A worker's decoder takes one utterance after another: it reads the shared model (at the start of
each utterance, or at the first start after a multiple of the fetch interval, the same for all
workers), decodes, and queues the kept frames; when ``waiting`` decoded utterances are in the queue
it blocks. The worker's trainer has a minibatch of slots, each with an utterance, and takes one
frame of each slot at a time; an empty slot takes the next decoded utterance (on-the-fly
shuffling). When all slots are filled the trainer reads, fetches, computes, and sends a piece of
its contribution to each shard of the server, one after the other, starting at a different shard
for each worker. Shards fold their pieces first come first served. The fold is complete, and the
version grows by one, when the last shard has folded; then the trainer takes its next minibatch. A
read between two shards' folds gets one new piece and one old one: its version is that of the
complete folds.

Lengths are drawn, and a fixed share of an utterance is kept. Or lengths are given
(`Sequence.give`), and training supplies the number of kept frames of an utterance before its
decoding ends: a segment of the simulation ends where the next event needs it (see
`Simulation.asked`). After the last given utterance, the remaining frames are trained on in
smaller minibatches.

Order of events at one instant: folds, pieces, ends of computing and of decoding, trainers' reads,
decoders' reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from harness.base.errors import UserError
from harness.base.settings import Spec, setting
from harness.simulator.cluster import Cluster
from harness.simulator.costs import Costs, computation_s, folding_s, gamma
from harness.simulator.events import kernel, new_tournament, set_leaf
from harness.simulator.protocols.contract import (
    ASKS,
    CLOCK_FIELDS,
    DONE,
    FULL,
    STUCK,
    Limits,
    TimingProtocol,
)
from harness.simulator.timeline import IN_FLIGHT, Contributions, Decodes, Folds, Spans, Timeline
from harness.speech.lags import outer_lag

FOLDED, PIECE, COMPUTED, DECODED, TRAINER_READ, DECODER_READ = range(6)
PARKED, ABOUT_TO_READ, STARVED, UNDER_WAY = range(4)
BLOCKED, DECODING, NEVER_STARTED, FINISHED = range(4)
UNTOLD = -1
"""Number of kept frames that training has not supplied yet."""
NONE_YET = 1 << 62
# An event's key, compared as one integer: its kind, then its number in order of planning, so that
# equal events run first planned first, then its leaf. 24 bits of leaf bound the workers.
PRIORITY, SEQUENCE, LEAF = 60, 24, (1 << 24) - 1

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *((name, np.int64) for name in ("standing", "sequence", "under_way", "utterances")),
    ]
)
TRAINER = np.dtype(
    [(name, np.int64) for name in ("worker", "phase", "step", "read_version", "first_step")]
    + [(name, np.int64) for name in ("decode_version", "pieces", "since_fetch", "gathered")]
    + [(name, np.float64) for name in ("copy_s", "compute_s", "fold_s", "read_at_s")]
    + [(name, np.float64) for name in ("fetch_start_s", "fetch_end_s", "compute_end_s")]
    + [(name, np.float64) for name in ("push_end_s", "fold_end_s")]
)
DECODER = np.dtype(
    [(name, np.int64) for name in ("phase", "decoded", "version", "waiting", "first_waiting")]
    + [("read_at_s", np.float64)]
)
UTTERANCE = np.dtype(
    [(name, np.int64) for name in ("utterance", "version", "kept", "left")]
    + [("read_at_s", np.float64)]
)
PIECE_SPAN = np.dtype([("shard", np.int64), ("start_s", np.float64), ("end_s", np.float64)])
DECODE = np.dtype(
    [(name, np.int64) for name in ("worker", "slot", "utterance", "decode_version")]
    + [("decode_time_s", np.float64), ("first_step", np.int64), ("steps", np.int64)]
)


class Rules(NamedTuple):
    """The protocol's settings for the kernel; ``fetch_s`` is 0 for a read at each utterance."""

    shards: int
    fetch_s: float
    fetch_every: int
    frames: float
    frames_cv: float
    kept: float
    decode_cost: float
    shuffled: bool


class State(NamedTuple):
    """State of the simulation.

    Attributes:
        clock: [1] of `CLOCK`.
        events: tournament of the next events of decoders, then of trainers.
        trainers: [N] of `TRAINER`.
        decoders: [N] of `DECODER`.
        waiting: [N, W + 1] rings of decoded utterances; the last entry is the one in the decoder.
        slots: [N, B] the utterances in the minibatches.
        shard_free_s: [S] end of each shard's last planned fold, in virtual seconds.
        pieces: [N, S] of `PIECE_SPAN`: the pieces of each contribution.
        lengths: [N, Q] frames of each decoder's utterances in its order, then zeros; Q is 0 if
            lengths are drawn.
    """

    clock: Any
    events: Any
    trainers: Any
    decoders: Any
    waiting: Any
    slots: Any
    shard_free_s: Any
    pieces: Any
    lengths: Any


class Record(NamedTuple):
    """Buffers of recorded events: [M] folds, [M, S] their pieces, [D] decodes, both counts [2]."""

    folded: Any
    pieces: Any
    decodes: Any
    counts: Any


class CountQueries(NamedTuple):
    """[U] utterances in decoders with an unknown number of kept frames.

    Attributes:
        worker: index of the decoder's worker.
        number: index among this worker's utterances.
        utterance: number, counted over all workers in order of decoding.
        decode_version: the version it is decoded with.
        decode_time_s: time at which that version was read, in virtual seconds.
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
        slots: utterances, and frames, in a minibatch; the workload's minibatch.
        frames: mean length of an utterance, in frames.
        frames_cv: standard deviation of the length over its mean (a gamma law).
        kept: share of an utterance's frames that the decoder passes on.
        decode_cost: time of decoding a frame over the time of training on one.
        fetch_s: interval of the decoders' fetches; None is at the start of each utterance.
        fetch_every: minibatches from one fetch of a trainer to the next.
        waiting: largest number of decoded utterances in a worker's queue.
        shards: parts of the model, each with a queue of its own.
        shuffled: whether a minibatch has a frame of each slot's utterance; if not, it has
            frames of one utterance after another.
    """

    name = "sequence"
    can = frozenset({"questions"})

    lengths: ClassVar[np.ndarray | None] = None
    """Lengths set by `give` on one object; neither a setting nor part of an identity."""

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

    def give(self, lengths: np.ndarray) -> Sequence:
        """The same protocol for utterances of these lengths, in place of drawn ones.

        Args:
            lengths: [N, Q] frames of each worker's utterances in its order, then zeros.
        """
        protocol = replace(self)
        object.__setattr__(protocol, "lengths", np.ascontiguousarray(lengths, np.int64))
        return protocol

    @property
    def rules(self) -> Rules:
        """The settings for the kernel."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in Rules._fields}
        settings["fetch_s"] = self.fetch_s or 0.0
        return Rules(**settings)

    def start(self, cluster: Cluster, workers: int) -> State:
        """Initial state: trainers idle with empty slots, decoders before their first utterance.

        Raises:
            UserError: the cluster's workers share a link, or there are too many.
            ValueError: lengths were given for another number of workers.
        """
        lengths = np.zeros((workers, 0), np.int64)
        if self.lengths is not None:
            lengths = self.lengths.copy()
            if len(lengths) != workers or not lengths.size:
                raise ValueError(f"lengths of shape {lengths.shape} for {workers} workers")
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
            lengths=lengths,
        )

    def promised(self, state: State) -> int:
        """Number of folds and of contributions read but not folded."""
        clock = state.clock[0]
        return int(clock["version"] + clock["under_way"])

    def asked(self, state: State) -> CountQueries:
        """Utterances in decoders for which the simulation needs the number of kept frames."""
        entry, decoders = state.waiting[:, -1], state.decoders
        worker = np.flatnonzero((decoders["phase"] == DECODING) & (entry["kept"] == UNTOLD))
        return CountQueries(
            worker.astype(np.int32),
            decoders["decoded"][worker] - 1,
            entry["utterance"][worker],
            entry["version"][worker],
            entry["read_at_s"][worker],
        )

    def answer(self, state: State, who: np.ndarray, values: np.ndarray) -> None:
        """Set the number of kept frames of the utterances in the decoders of these workers.

        Raises:
            ValueError: a number is already known, or is negative.
        """
        entry = state.waiting[:, -1]
        if not (np.all(entry["kept"][who] == UNTOLD) and np.all(values >= 0)):
            raise ValueError("an utterance's kept frames are set once, to 0 or more")
        entry["kept"][who] = entry["left"][who] = values

    def wake(self, state: State) -> None:
        """Plan reads of idle trainers, and of decoders that have not started."""
        wake(state)

    def advance(
        self, state: State, costs: Costs, limits: Limits, room: int, spans: bool
    ) -> tuple[int, Timeline]:
        """Run to a limit or until ``room`` folds are recorded: reason of the stop, timeline."""
        room = min(room, 1 << 13)
        start = int(state.clock[0]["version"])
        record = Record(
            folded=np.empty(room, TRAINER),
            pieces=np.empty((room if spans else 0, self.shards), PIECE_SPAN),
            decodes=np.empty(room + 2 * state.slots.size, DECODE),
            counts=np.zeros(2, np.int64),
        )
        reason = run(state, costs, self.rules, limits, record)
        folded = record.folded[: record.counts[0]]
        numbers = np.arange(start, start + len(folded), dtype=np.int64)
        return reason, Timeline(
            folds=Folds(numbers, folded["fold_end_s"].copy()),
            contributions=_contributions(numbers, folded),
            spans=_spans(folded, record.pieces[: len(folded)]) if spans else Spans(),
            decodes=_decodes(record.decodes[: record.counts[1]]),
        )

    def measure(self, timeline: Timeline, workers: int) -> dict[str, float]:
        """Mean ages of outer gradients at their fold, since their decoder's read.

        Args:
            timeline: from the simulation's start.
            workers: number of workers.
        """
        del workers
        updates, seconds = outer_lag(timeline, None if self.shuffled else self.slots)
        ages = {"outer_lag_s_mean": seconds, "outer_staleness_mean": updates}
        return {name: float(age.mean()) for name, age in ages.items() if len(age)}

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
    """Spans of fetch, compute and push of each contribution, and of the folds of its pieces."""
    names = ("fetch_start_s", "fetch_end_s", "compute_end_s", "push_end_s")
    instants = np.stack([trainers[name] for name in names], axis=1)
    start_s = np.concatenate([instants[:, :-1], pieces["start_s"]], axis=1).reshape(-1)
    end_s = np.concatenate([instants[:, 1:], pieces["end_s"]], axis=1).reshape(-1)
    workers = np.repeat(trainers["worker"][:, None], 3, axis=1)
    worker = np.concatenate([workers, -1 - pieces["shard"]], axis=1).astype(np.int32).reshape(-1)
    kinds = [0, 1, 2, *[3] * pieces.shape[1]]
    kind = np.tile(np.array(kinds, np.int32), len(trainers))
    busy = end_s > start_s
    return Spans(worker[busy], kind[busy], start_s[busy], end_s[busy])


@kernel
def run(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record) -> int:
    """Advance ``state`` to a limit or until the record is full; returns the reason of the stop."""
    clock, counts = state.clock[0], record.counts
    while clock.version < limits.version:
        # one event adds at most one fold, and a decode for each slot of one worker
        full = counts[1] + state.slots.shape[1] > len(record.decodes)
        if counts[0] == len(record.folded) or full:
            return FULL
        time_s = max(state.events[1].time_s, clock.now_s)
        if clock.busy == 0:
            return DONE
        key = state.events[1].key
        # before the clock moves: the event stays planned, and is met again with its answer
        if is_awaiting_count(state, key >> PRIORITY, key & LEAF):
            return ASKS
        if time_s > limits.time_s:
            clock.now_s = limits.time_s
            return DONE
        clock.standing = clock.standing + 1 if time_s == clock.now_s else 0
        if clock.standing > limits.standing:
            return STUCK
        clock.now_s = time_s
        happen(state, costs, rules, limits, record, key >> PRIORITY, key & LEAF)
    return DONE


@kernel
def is_awaiting_count(state: State, kind: int, leaf: int) -> bool:
    """Whether an event is the end of a decoding with an unknown number of kept frames."""
    return kind == DECODED and state.waiting[leaf, state.waiting.shape[1] - 1].kept == UNTOLD


@kernel
def happen(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, kind: int, leaf: int
) -> None:
    """Remove the first event of the tournament and run its handler."""
    set_leaf(state.events, leaf, np.inf, 1 << 62)
    worker = leaf % len(state.trainers)
    if kind == FOLDED:
        fold(state, record, worker)
    elif kind == PIECE:
        arrive(state, costs, rules, worker)
    elif kind == COMPUTED:
        trainer = state.trainers[worker]
        trainer.pieces = 0
        plan_piece(state, costs, rules, worker)
    elif kind == DECODED:
        hand_over(state, costs, rules, worker)
    elif kind == TRAINER_READ:
        train(state, costs, rules, limits, record, worker)
    else:
        read(state, costs, rules, worker)


@kernel
def plan(state: State, leaf: int, time_s: float, kind: int) -> None:
    """Plan a leaf's next event; of equal time and kind, the one planned first runs first."""
    clock = state.clock[0]
    set_leaf(state.events, leaf, time_s, (kind << PRIORITY) | (clock.sequence << SEQUENCE) | leaf)
    clock.sequence += 1


@kernel
def wake(state: State) -> None:
    """Plan reads of idle trainers and new decoders at once, in order of worker index."""
    count, now_s = len(state.trainers), state.clock[0].now_s
    for worker in range(count):
        if state.decoders[worker].phase == NEVER_STARTED:
            plan(state, worker, now_s, DECODER_READ)
        if state.trainers[worker].phase == PARKED:
            state.trainers[worker].phase = ABOUT_TO_READ
            state.clock[0].busy += 1
            plan(state, count + worker, now_s, TRAINER_READ)


@kernel
def read(state: State, costs: Costs, rules: Rules, worker: int) -> None:
    """Start the decoder's next utterance; without one the decoder has finished."""
    decoder, trainer = state.decoders[worker], state.trainers[worker]
    count = state.lengths.shape[1]
    if count == 0:
        number = (worker, decoder.decoded)
        length = rules.frames * gamma(costs.length_key, *number, rules.frames_cv)
        frames = max(1, int(length + 0.5))
        decode(state, costs, rules, worker, frames, max(1, int(frames * rules.kept + 0.5)))
    elif decoder.decoded < count and state.lengths[worker, decoder.decoded] > 0:
        decode(state, costs, rules, worker, state.lengths[worker, decoder.decoded], UNTOLD)
    else:
        decoder.phase = FINISHED
        # a starved trainer would wait for ever: it trains on the frames that are left
        if trainer.phase == STARVED:
            trainer.phase = ABOUT_TO_READ
            plan(state, len(state.trainers) + worker, state.clock[0].now_s, TRAINER_READ)


@kernel
def decode(state: State, costs: Costs, rules: Rules, worker: int, frames: int, kept: int) -> None:
    """Start decoding an utterance, with the newest parameters if a fetch is due."""
    clock, decoder = state.clock[0], state.decoders[worker]
    due = rules.fetch_s == 0.0 or decoder.phase == NEVER_STARTED
    if not due:
        due = int(clock.now_s / rules.fetch_s) > int(decoder.read_at_s / rules.fetch_s)
    seconds = 0.0
    if due:
        decoder.version = clock.version
        decoder.read_at_s = clock.now_s
        seconds = costs.copy_s + costs.latency_s
    entry = state.waiting[worker, state.waiting.shape[1] - 1]
    entry.utterance = clock.utterances
    entry.version = decoder.version
    entry.read_at_s = decoder.read_at_s
    entry.kept = entry.left = kept
    clock.utterances += 1
    decoder.decoded += 1
    decoder.phase = DECODING
    frame_s = costs.compute_s[worker] / state.slots.shape[1]
    plan(state, worker, clock.now_s + seconds + frames * rules.decode_cost * frame_s, DECODED)


@kernel
def hand_over(state: State, costs: Costs, rules: Rules, worker: int) -> None:
    """Queue the decoded utterance and wake a starved trainer; block if the queue is full.

    An utterance without kept frames is dropped.
    """
    decoder, trainer = state.decoders[worker], state.trainers[worker]
    room = state.waiting.shape[1] - 1
    if state.waiting[worker, room].kept == 0:
        plan(state, worker, state.clock[0].now_s, DECODER_READ)
        return
    if decoder.waiting == room:
        decoder.phase = BLOCKED
        return
    place = (decoder.first_waiting + decoder.waiting) % room
    state.waiting[worker, place] = state.waiting[worker, room]
    decoder.waiting += 1
    if trainer.phase == STARVED:
        trainer.phase = ABOUT_TO_READ
        plan(state, len(state.trainers) + worker, state.clock[0].now_s, TRAINER_READ)
    plan(state, worker, state.clock[0].now_s, DECODER_READ)


@kernel
def load(state: State, costs: Costs, rules: Rules, record: Record, worker: int, place: int) -> bool:
    """Refill an empty slot from the head of the queue; returns whether it has an utterance."""
    decoder, room = state.decoders[worker], state.waiting.shape[1] - 1
    slot = state.slots[worker, place]
    if slot.left > 0:
        return True
    if decoder.waiting == 0:
        return False
    state.slots[worker, place] = state.waiting[worker, decoder.first_waiting]
    decoder.first_waiting = (decoder.first_waiting + 1) % room
    decoder.waiting -= 1
    row = record.decodes[record.counts[1]]
    row.worker, row.slot, row.utterance = worker, place, slot.utterance
    row.decode_version, row.decode_time_s = slot.version, slot.read_at_s
    row.first_step, row.steps = state.trainers[worker].step, slot.kept
    record.counts[1] += 1
    if decoder.phase == BLOCKED:  # the queue has room again for the utterance in the decoder
        decoder.phase = DECODING
        hand_over(state, costs, rules, worker)
    return True


@kernel
def gather(state: State, costs: Costs, rules: Rules, record: Record, worker: int) -> bool:
    """Gather a minibatch; returns whether it is full, or the decoder has finished."""
    trainer, size = state.trainers[worker], state.slots.shape[1]
    if rules.shuffled:
        trainer.gathered = 0
        for place in range(size):
            trainer.gathered += load(state, costs, rules, record, worker, place)
    else:
        while trainer.gathered < size and load(state, costs, rules, record, worker, 0):
            take(state, worker, 0, size - trainer.gathered)
    return trainer.gathered == size or state.decoders[worker].phase == FINISHED


@kernel
def take(state: State, worker: int, place: int, most: int) -> None:
    """Move at most ``most`` frames of a slot into the minibatch."""
    trainer, slot = state.trainers[worker], state.slots[worker, place]
    count = min(most, slot.left)
    if count > 0:
        slot.left -= count
        trainer.gathered += count
        trainer.decode_version = min(trainer.decode_version, slot.version)


@kernel
def train(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, worker: int
) -> None:
    """Read and take a frame of every slot; park at a limit, starve without enough frames."""
    clock, trainer = state.clock[0], state.trainers[worker]
    if clock.version + clock.under_way >= limits.dispatch or clock.now_s > limits.dispatch_s:
        trainer.phase = PARKED
        clock.busy -= 1
        return
    if trainer.gathered == 0:
        trainer.decode_version = NONE_YET
    if not gather(state, costs, rules, record, worker):
        trainer.phase = STARVED
        return
    if trainer.gathered == 0:
        trainer.phase = PARKED
        clock.busy -= 1
        return
    if rules.shuffled:
        trainer.gathered = 0
        for place in range(state.slots.shape[1]):
            take(state, worker, place, 1)
    trainer.phase = UNDER_WAY
    clock.under_way += 1
    trainer.fetch_start_s = trainer.fetch_end_s = clock.now_s
    if trainer.since_fetch >= rules.fetch_every:
        trainer.since_fetch = 0
        trainer.read_version = clock.version
        trainer.read_at_s = clock.now_s
        trainer.fetch_end_s = clock.now_s + costs.copy_s + costs.latency_s
    trainer.since_fetch += 1
    trainer.first_step = clock.dispatched
    trainer.copy_s = costs.copy_s
    share = trainer.gathered / state.slots.shape[1]
    trainer.compute_s = computation_s(costs, worker, trainer.step) * share
    trainer.fold_s = folding_s(costs, worker, trainer.step)
    trainer.compute_end_s = trainer.fetch_end_s + trainer.compute_s
    trainer.step += 1
    trainer.gathered = 0
    clock.dispatched += 1
    plan(state, len(state.trainers) + worker, trainer.compute_end_s, COMPUTED)


@kernel
def plan_piece(state: State, costs: Costs, rules: Rules, worker: int) -> None:
    """Plan the arrival of the next piece; pieces are sent one after the other."""
    trainer = state.trainers[worker]
    sent_s = trainer.compute_end_s + trainer.copy_s * ((trainer.pieces + 1) / rules.shards)
    plan(state, len(state.trainers) + worker, sent_s + costs.latency_s, PIECE)


@kernel
def arrive(state: State, costs: Costs, rules: Rules, worker: int) -> None:
    """Queue a piece at its shard; the last piece fixes the end of the fold."""
    clock, trainer = state.clock[0], state.trainers[worker]
    # neighbours start at different shards, so that equal workers do not queue at one
    shard = (worker + trainer.pieces) % rules.shards
    piece = state.pieces[worker, trainer.pieces]
    piece.shard = shard
    piece.start_s = max(clock.now_s, state.shard_free_s[shard])
    piece.end_s = piece.start_s + trainer.fold_s / rules.shards
    state.shard_free_s[shard] = piece.end_s
    trainer.fold_end_s = (
        piece.end_s if trainer.pieces == 0 else max(trainer.fold_end_s, piece.end_s)
    )
    trainer.pieces += 1
    if trainer.pieces < rules.shards:
        plan_piece(state, costs, rules, worker)
    else:
        trainer.push_end_s = clock.now_s
        plan(state, len(state.trainers) + worker, trainer.fold_end_s, FOLDED)


@kernel
def fold(state: State, record: Record, worker: int) -> None:
    """Record the fold that all shards have completed; the trainer takes its next minibatch."""
    clock, trainer = state.clock[0], state.trainers[worker]
    row = record.counts[0]
    record.folded[row] = trainer
    if len(record.pieces) > 0:
        for place in range(record.pieces.shape[1]):
            record.pieces[row, place] = state.pieces[worker, place]
    record.counts[0] += 1
    clock.version += 1
    clock.under_way -= 1
    trainer.phase = ABOUT_TO_READ
    plan(state, len(state.trainers) + worker, clock.now_s, TRAINER_READ)
