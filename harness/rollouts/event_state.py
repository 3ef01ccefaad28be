"""State of the event loop of `harness.rollouts.event_loop`: records, settings and buffers.

Records are rows of structured arrays, one dtype for each kind of thing in the simulation. Phases,
rules and kinds of events are small whole numbers with names. The kernels at the end plan an event,
read a generator's clock, or append to a record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.simulator.events import kernel, set_leaf
from harness.simulator.protocols.contract import CLOCK_FIELDS

ADMISSION, DISCARD, BACKPRESSURE, WINDOW, ONE_STEP = range(5)
DRAIN, BETWEEN, IN_FLIGHT_EXCHANGE = range(3)
STEPPED, REWARDED, RETURNED, BOUNDARY = range(4)
"""Kinds of events, in their order at one instant."""
ABSENT, PLACED, DECODING, OUTSIDE, JUDGED, READY = range(6)
"""Phases of a rollout: not begun, in a slot until the next boundary, decoding, in its environment,
under reward, done."""
FREE, GROWING, COMPLETE, TRAINING, LEAVING = range(5)
"""Phases of a group; one that leaves is about to be thrown away."""
IDLE, STEPPING, DRAINING, SYNCING = range(4)
"""Phases of the trainer."""
COMPUTE, PUSH, FOLD = 1, 2, 3
"""Span kinds, as in `Timeline.kinds`."""
UNTOLD = -1
NEVER = 1 << 62
PRIORITY, LEAF_BITS = 60, 24
LEAF = (1 << LEAF_BITS) - 1

CLOCK = np.dtype(
    [
        *CLOCK_FIELDS,
        *((name, np.int64) for name in ("standing", "unsettled", "groups", "prompts")),
        *((name, np.int64) for name in ("published", "begun_steps", "stale", "in_flight")),
        *((name, np.int64) for name in ("free_slots", "placing", "alive", "waiting")),
        *((name, np.int64) for name in ("first_retry", "retries", "restless")),
    ]
)
"""Besides the common fields: events at this instant, whether `settle` is due, groups begun and
prompts handed out so far, version that generators read, steps begun by the trainer, groups that
count as stale since the last publication, rollouts in slots, free slots, the group with members
still to be placed (-1: none), groups in the pool, complete groups, the ring of prompts that are
queued again, and generators in the list of those to be looked at."""
GENERATOR = np.dtype(
    [("since_s", np.float64), ("step_s", np.float64), ("busy_s", np.float64)]
    + [(name, np.int64) for name in ("steps", "target", "wanted", "active", "free", "version")]
    + [(name, np.int64) for name in ("untold", "at_boundary", "listed")]
)
"""Instant of the last boundary that was processed, seconds of a step, begin of its busy time; steps
by then, steps at the next boundary to be processed, at the next one wanted (`NEVER`: none),
rollouts that decode, free slots, version of its weights, and rollouts without a length."""
GROUP = np.dtype(
    [(name, np.int64) for name in ("number", "prompt", "attempt", "phase", "begun", "done")]
    + [("complete_s", np.float64)]
)
ROLLOUT = np.dtype(
    [(name, np.int64) for name in ("group", "prompt", "attempt", "member", "phase")]
    + [(name, np.int64) for name in ("generator", "slot", "oldest", "version", "weighted")]
    + [(name, np.int64) for name in ("first", "tokens", "decoded", "begun_step", "end_step")]
    + [(name, np.int64) for name in ("trained_version", "fate")]
    + [(name, np.float64) for name in ("start_s", "end_s", "left_s", "ready_s", "taken_s")]
)
"""``weighted`` is the sum of the versions of the tokens before token ``first``, from which on the
version is ``version``; steps are counts of its generator."""
TRAINER = np.dtype([("phase", np.int64), ("start_s", np.float64), ("end_s", np.float64)])
RETRY = np.dtype([("prompt", np.int64), ("attempt", np.int64)])
STRETCH = np.dtype(
    [(name, np.int64) for name in ("rollout", "first", "version")] + [("time_s", np.float64)]
)
SPAN = np.dtype(
    [("worker", np.int64), ("kind", np.int64), ("start_s", np.float64), ("end_s", np.float64)]
)


class Law(NamedTuple):
    """A law of durations or lengths: mean, code of the law, standard deviation over mean."""

    mean: float
    law: int
    cv: float


class Rules(NamedTuple):
    """The protocol's settings for the kernels; see `harness.rollouts.protocol.Rollouts`."""

    rule: int
    publish: int
    allowed: float
    interval: int
    group: int
    batch: int
    decode_s: float
    sequence_s: float
    prefill_s: float
    prompt_tokens: int
    scale: int
    recompute: bool
    step_s: float
    token_s: float
    sync_s: float
    tokens: Law
    most_tokens: int
    reward: Law
    environment: Law
    asks: bool


class State(NamedTuple):
    """State of the simulation.

    Attributes:
        clock: [1] of `CLOCK`.
        events: tournament of the next events of the pool's rollouts, the generators, the trainer.
        trainer: [1] of `TRAINER`.
        generators: [N] of `GENERATOR`.
        slots: [N, S] index into ``rollouts``, -1 for a free slot.
        groups: [P] of `GROUP`, the pool.
        rollouts: [P · G] of `ROLLOUT`, the members of the groups.
        free: [P] stack of the free places of the pool, from the end.
        waiting: [P] complete groups in the order in which they are trained.
        batch: [B] groups in training.
        retries: [P + 1] ring of prompts that are queued again.
        restless: [N] generators to be looked at when the instant's events have happened.
    """

    clock: Any
    events: Any
    trainer: Any
    generators: Any
    slots: Any
    groups: Any
    rollouts: Any
    free: Any
    waiting: Any
    batch: Any
    retries: Any
    restless: Any


class Record(NamedTuple):
    """Buffers: rollouts with a fate, instants of folds, stretches, spans, counts [4] of them."""

    rows: Any
    folds: Any
    stretches: Any
    spans: Any
    counts: Any


ROWS, FOLDS, STRETCHES, SPANS = range(4)


@kernel
def plan(state: State, leaf: int, time_s: float, kind: int, number: int) -> None:
    """Plan a leaf's next event."""
    set_leaf(state.events, leaf, time_s, (kind << PRIORITY) | (number << LEAF_BITS) | leaf)


@kernel
def list_generator(state: State, worker: int) -> None:
    """Have a generator looked at once this instant's events have happened."""
    if state.generators[worker].listed == 0:
        state.generators[worker].listed = 1
        state.restless[state.clock[0].restless] = worker
        state.clock[0].restless += 1


@kernel
def steps_before_now(state: State, worker: int) -> int:
    """Decode steps that a generator has completed before this instant."""
    generator, now_s = state.generators[worker], state.clock[0].now_s
    if generator.active == 0 or now_s <= generator.since_s:
        return generator.steps
    count = int((now_s - generator.since_s) / generator.step_s)
    while generator.since_s + count * generator.step_s >= now_s:
        count -= 1
    while generator.since_s + (count + 1) * generator.step_s < now_s:
        count += 1
    return generator.steps + count


@kernel
def keep_row(record: Record, row: Any) -> None:
    """Record a rollout with a known fate."""
    record.rows[record.counts[ROWS]] = row
    record.counts[ROWS] += 1


@kernel
def keep_span(record: Record, worker: int, kind: int, start_s: float, end_s: float) -> None:
    """Record a busy time."""
    if end_s > start_s:
        span = record.spans[record.counts[SPANS]]
        span.worker, span.kind, span.start_s, span.end_s = worker, kind, start_s, end_s
        record.counts[SPANS] += 1


@kernel
def keep_stretch(record: Record, rules: Rules, row: Any, now_s: float) -> None:
    """Record that the next tokens of a rollout have its present version."""
    stretch = record.stretches[record.counts[STRETCHES]]
    stretch.rollout = row.group * rules.group + row.member
    stretch.first, stretch.version, stretch.time_s = row.first, row.version, now_s
    record.counts[STRETCHES] += 1
