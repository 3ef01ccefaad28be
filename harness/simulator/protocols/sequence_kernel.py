"""The state of sequence training and the kernel that moves it (see `sequence`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator import laws
from harness.simulator.costs import Costs, computation_s, folding_s
from harness.simulator.events import kernel, set_leaf
from harness.simulator.protocols.contract import ASKS, CLOCK_FIELDS, DONE, FULL, STUCK, Limits

__all__ = ["UNTOLD", "Record", "Rules", "State", "run", "wake"]

FOLDED, PIECE, COMPUTED, DECODED, TRAINER_READ, DECODER_READ = range(6)
PARKED, ABOUT_TO_READ, STARVED, UNDER_WAY = range(4)
BLOCKED, DECODING, NEVER_STARTED, FINISHED = range(4)
UNTOLD = -1
"""Stands for the number of kept frames until training has told it."""
NONE_YET = 1 << 62
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
    """The protocol's settings as a kernel takes them; ``fetch_s`` is 0 for every utterance."""

    shards: int
    fetch_s: float
    fetch_every: int
    frames: float
    frames_cv: float
    kept: float
    decode_cost: float
    shuffled: bool


class State(NamedTuple):
    """Everything that moves.

    Attributes:
        clock: [1] of `CLOCK`.
        events: tournament of decoders, then trainers.
        trainers: [N] of `TRAINER`.
        decoders: [N] of `DECODER`.
        waiting: [N, W + 1] rings of decoded utterances; the last entry is the one in the decoder.
        slots: [N, B] the utterances in the minibatches.
        shard_free_s: [S] until when each shard is busy.
        pieces: [N, S] of `PIECE_SPAN`: the pieces of each contribution.
        lengths: [N, Q] frames of each decoder's utterances in its order, 0 where there are no
            more; Q is 0 where lengths are drawn.
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
    """What happened: [M] folded, [M, S] their pieces, [D] decodes, how many folds and decodes."""

    folded: Any
    pieces: Any
    decodes: Any
    counts: Any


@kernel
def run(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record) -> int:
    """Move ``state`` until a limit is met or the record is full; returns why it stopped."""
    clock, counts = state.clock[0], record.counts
    while clock.version < limits.version:
        full = counts[1] + state.slots.shape[1] > len(record.decodes)
        if counts[0] == len(record.folded) or full:
            return FULL
        time_s = max(state.events[1].time_s, clock.now_s)
        if clock.busy == 0:
            return DONE
        key = state.events[1].key
        if untold(state, key >> PRIORITY, key & LEAF):
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
def untold(state: State, kind: int, leaf: int) -> bool:
    """Whether an event ends a decoding whose number of kept frames is not known yet."""
    return kind == DECODED and state.waiting[leaf, state.waiting.shape[1] - 1].kept == UNTOLD


@kernel
def happen(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, kind: int, leaf: int
) -> None:
    """The first event takes place."""
    set_leaf(state.events, leaf, np.inf, 1 << 62)
    who = leaf % len(state.trainers)
    if kind == FOLDED:
        fold(state, record, who)
    elif kind == PIECE:
        arrive(state, costs, rules, who)
    elif kind == COMPUTED:
        trainer = state.trainers[who]
        trainer.pieces = 0
        plan_piece(state, costs, rules, who)
    elif kind == DECODED:
        hand_over(state, costs, rules, who)
    elif kind == TRAINER_READ:
        train(state, costs, rules, limits, record, who)
    else:
        read(state, costs, rules, who)


@kernel
def plan(state: State, leaf: int, time_s: float, kind: int) -> None:
    """The next event of a leaf; of equal time and kind, the one planned first comes first."""
    clock = state.clock[0]
    set_leaf(state.events, leaf, time_s, (kind << PRIORITY) | (clock.sequence << SEQUENCE) | leaf)
    clock.sequence += 1


@kernel
def wake(state: State) -> None:
    """Idle trainers are about to read, in order of their numbers; so are new decoders."""
    count, now_s = len(state.trainers), state.clock[0].now_s
    for who in range(count):
        if state.decoders[who].phase == NEVER_STARTED:
            plan(state, who, now_s, DECODER_READ)
        if state.trainers[who].phase == PARKED:
            state.trainers[who].phase = ABOUT_TO_READ
            state.clock[0].busy += 1
            plan(state, count + who, now_s, TRAINER_READ)


@kernel
def read(state: State, costs: Costs, rules: Rules, who: int) -> None:
    """The decoder begins its next utterance, if there is one."""
    decoder, trainer = state.decoders[who], state.trainers[who]
    given = state.lengths.shape[1]
    if given == 0:
        number = (who, decoder.decoded)
        length = rules.frames * laws.gamma(costs.length_key, *number, rules.frames_cv)
        frames = max(1, int(length + 0.5))
        decode(state, costs, rules, who, frames, max(1, int(frames * rules.kept + 0.5)))
    elif decoder.decoded < given and state.lengths[who, decoder.decoded] > 0:
        decode(state, costs, rules, who, state.lengths[who, decoder.decoded], UNTOLD)
    else:
        decoder.phase = FINISHED
        if trainer.phase == STARVED:
            trainer.phase = ABOUT_TO_READ
            plan(state, len(state.trainers) + who, state.clock[0].now_s, TRAINER_READ)


@kernel
def decode(state: State, costs: Costs, rules: Rules, who: int, frames: int, kept: int) -> None:
    """Begin an utterance, with the newest parameters if it is time for them."""
    clock, decoder = state.clock[0], state.decoders[who]
    due = rules.fetch_s == 0.0 or decoder.phase == NEVER_STARTED
    if not due:
        due = int(clock.now_s / rules.fetch_s) > int(decoder.read_at_s / rules.fetch_s)
    seconds = 0.0
    if due:
        decoder.version = clock.version
        decoder.read_at_s = clock.now_s
        seconds = costs.copy_s + costs.latency_s
    entry = state.waiting[who, state.waiting.shape[1] - 1]
    entry.utterance = clock.utterances
    entry.version = decoder.version
    entry.read_at_s = decoder.read_at_s
    entry.kept = entry.left = kept
    clock.utterances += 1
    decoder.decoded += 1
    decoder.phase = DECODING
    frame_s = costs.compute_s[who] / state.slots.shape[1]
    plan(state, who, clock.now_s + seconds + frames * rules.decode_cost * frame_s, DECODED)


@kernel
def hand_over(state: State, costs: Costs, rules: Rules, who: int) -> None:
    """The decoded utterance joins those that wait, if there is room; a starved trainer goes on.

    An utterance of which nothing was kept is done with.
    """
    decoder, trainer = state.decoders[who], state.trainers[who]
    room = state.waiting.shape[1] - 1
    if state.waiting[who, room].kept == 0:
        plan(state, who, state.clock[0].now_s, DECODER_READ)
        return
    if decoder.waiting == room:
        decoder.phase = BLOCKED
        return
    place = (decoder.first_waiting + decoder.waiting) % room
    state.waiting[who, place] = state.waiting[who, room]
    decoder.waiting += 1
    if trainer.phase == STARVED:
        trainer.phase = ABOUT_TO_READ
        plan(state, len(state.trainers) + who, state.clock[0].now_s, TRAINER_READ)
    plan(state, who, state.clock[0].now_s, DECODER_READ)


@kernel
def load(state: State, costs: Costs, rules: Rules, record: Record, who: int, place: int) -> bool:
    """Whether a slot has an utterance; if it has run out, it takes the one that waits longest."""
    decoder, room = state.decoders[who], state.waiting.shape[1] - 1
    slot = state.slots[who, place]
    if slot.left > 0:
        return True
    if decoder.waiting == 0:
        return False
    state.slots[who, place] = state.waiting[who, decoder.first_waiting]
    decoder.first_waiting = (decoder.first_waiting + 1) % room
    decoder.waiting -= 1
    row = record.decodes[record.counts[1]]
    row.worker, row.slot, row.utterance = who, place, slot.utterance
    row.decode_version, row.decode_time_s = slot.version, slot.read_at_s
    row.first_step, row.steps = state.trainers[who].step, slot.kept
    record.counts[1] += 1
    if decoder.phase == BLOCKED:
        decoder.phase = DECODING
        hand_over(state, costs, rules, who)
    return True


@kernel
def gather(state: State, costs: Costs, rules: Rules, record: Record, who: int) -> bool:
    """Frames for a minibatch; whether it is full, or as full as it can ever be."""
    trainer, size = state.trainers[who], state.slots.shape[1]
    if rules.shuffled:
        trainer.gathered = 0
        for place in range(size):
            trainer.gathered += load(state, costs, rules, record, who, place)
    else:
        while trainer.gathered < size and load(state, costs, rules, record, who, 0):
            take(state, who, 0, size - trainer.gathered)
    return trainer.gathered == size or state.decoders[who].phase == FINISHED


@kernel
def take(state: State, who: int, place: int, most: int) -> None:
    """At most so many frames of a slot enter the minibatch."""
    trainer, slot = state.trainers[who], state.slots[who, place]
    count = min(most, slot.left)
    if count > 0:
        slot.left -= count
        trainer.gathered += count
        trainer.decode_version = min(trainer.decode_version, slot.version)


@kernel
def train(
    state: State, costs: Costs, rules: Rules, limits: Limits, record: Record, who: int
) -> None:
    """Read, and take a frame of every slot; or wait for the decoder, or idle."""
    clock, trainer = state.clock[0], state.trainers[who]
    if clock.version + clock.under_way >= limits.dispatch or clock.now_s > limits.dispatch_s:
        trainer.phase = PARKED
        clock.busy -= 1
        return
    if trainer.gathered == 0:
        trainer.decode_version = NONE_YET
    if not gather(state, costs, rules, record, who):
        trainer.phase = STARVED
        return
    if trainer.gathered == 0:
        trainer.phase = PARKED
        clock.busy -= 1
        return
    if rules.shuffled:
        trainer.gathered = 0
        for place in range(state.slots.shape[1]):
            take(state, who, place, 1)
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
    trainer.compute_s = computation_s(costs, who, trainer.step) * share
    trainer.fold_s = folding_s(costs, who, trainer.step)
    trainer.compute_end_s = trainer.fetch_end_s + trainer.compute_s
    trainer.step += 1
    trainer.gathered = 0
    clock.dispatched += 1
    plan(state, len(state.trainers) + who, trainer.compute_end_s, COMPUTED)


@kernel
def plan_piece(state: State, costs: Costs, rules: Rules, who: int) -> None:
    """The next piece is on its way: pieces leave one after the other."""
    trainer = state.trainers[who]
    sent_s = trainer.compute_end_s + trainer.copy_s * ((trainer.pieces + 1) / rules.shards)
    plan(state, len(state.trainers) + who, sent_s + costs.latency_s, PIECE)


@kernel
def arrive(state: State, costs: Costs, rules: Rules, who: int) -> None:
    """A piece queues at its shard; after the last one the end of the fold is known."""
    clock, trainer = state.clock[0], state.trainers[who]
    shard = (who + trainer.pieces) % rules.shards
    piece = state.pieces[who, trainer.pieces]
    piece.shard = shard
    piece.start_s = max(clock.now_s, state.shard_free_s[shard])
    piece.end_s = piece.start_s + trainer.fold_s / rules.shards
    state.shard_free_s[shard] = piece.end_s
    trainer.fold_end_s = (
        piece.end_s if trainer.pieces == 0 else max(trainer.fold_end_s, piece.end_s)
    )
    trainer.pieces += 1
    if trainer.pieces < rules.shards:
        plan_piece(state, costs, rules, who)
    else:
        trainer.push_end_s = clock.now_s
        plan(state, len(state.trainers) + who, trainer.fold_end_s, FOLDED)


@kernel
def fold(state: State, record: Record, who: int) -> None:
    """All shards have folded: a new version, and the trainer goes on."""
    clock, trainer = state.clock[0], state.trainers[who]
    row = record.counts[0]
    record.folded[row] = trainer
    if len(record.pieces) > 0:
        for place in range(record.pieces.shape[1]):
            record.pieces[row, place] = state.pieces[who, place]
    record.counts[0] += 1
    clock.version += 1
    clock.under_way -= 1
    trainer.phase = ABOUT_TO_READ
    plan(state, len(state.trainers) + who, clock.now_s, TRAINER_READ)
