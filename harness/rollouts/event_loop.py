"""Compiled event loop of the protocol ``rollouts``: generators and the trainer.

A generator decodes in steps that all its rollouts share, so its state is a number of completed
steps and the instant since which a step takes ``step_s``. Nothing changes between two boundaries
of steps, so the loop jumps to the next boundary at which a rollout ends or something is wanted:
a rollout waits to begin, or new weights wait to be read. A rollout of n tokens takes n times
``length_scale`` steps. Reading prompts, and tokens again after an exchange of weights, delays the
next step of the whole generator.

All events of one instant happen first, in this order: the trainer's, ends of rewards, ends of
environments, generators' boundaries; equal ones by number of the rollout or generator. Then
`settle` starts whatever may start at that instant: the trainer, groups, generators.

Groups begin, wait and are thrown away by `harness.rollouts.group_buffer`. An application supplies
lengths on the way: a rollout without a length ends one token later at the earliest, and the loop
returns `ASKS` before that boundary.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.rollouts import event_state as events
from harness.rollouts.event_state import Law, Record, Rules, State
from harness.rollouts.group_buffer import complete, free_slot, place_groups, release, throw_old_away
from harness.simulator.costs import CONSTANT, Costs, draw_factor
from harness.simulator.events import kernel, scratch
from harness.simulator.protocols.contract import ASKS, DONE, FULL, STUCK, Limits


@kernel
def run(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record) -> int:
    """Advance ``state`` to a limit or until the record is full; returns the reason of the stop."""
    clock = state.clock[0]
    while clock.version < limits.version:
        if is_full(state, record):
            return FULL
        time_s, key = state.events[1].time_s, state.events[1].key
        if clock.unsettled and time_s > clock.now_s:
            clock.unsettled = 0
            settle(state, costs, rules, limits, record)
            continue
        if time_s == np.inf:
            clock.busy = 0
            return DONE
        kind, leaf = key >> events.PRIORITY, key & events.LEAF
        # before the clock moves: the event stays planned, and is met again with its answer
        if kind == events.BOUNDARY and is_awaiting_length(state, leaf - len(state.rollouts)):
            return ASKS
        if time_s > limits.time_s:
            clock.now_s = limits.time_s
            return DONE
        clock.standing = clock.standing + 1 if time_s == clock.now_s else 0
        if clock.standing > limits.standing + 4 * len(state.rollouts):
            return STUCK
        clock.now_s = time_s
        clock.unsettled = 1
        scratch(state.events, leaf)
        if kind == events.STEPPED:
            end_stage(state, rules, record)
        elif kind == events.REWARDED:
            be_ready(state, rules, record, leaf)
        elif kind == events.RETURNED:
            leave(state, costs, rules, record, leaf)
        else:
            meet_boundary(state, costs, rules, record, leaf - len(state.rollouts))
    return DONE


@kernel
def is_full(state: State, record: Record) -> bool:
    """Whether one more event with all that it starts could exceed a buffer."""
    counts = record.counts
    return (
        counts[events.FOLDS] == len(record.folds)
        or counts[events.ROWS] + len(state.rollouts) > len(record.rows)
        or counts[events.STRETCHES] + state.slots.size > len(record.stretches)
        or counts[events.SPANS] + 2 * len(state.generators) + 4 > len(record.spans)
    )


@kernel
def is_awaiting_length(state: State, worker: int) -> bool:
    """Whether a rollout without a length may end at a generator's next boundary."""
    generator = state.generators[worker]
    if generator.untold == 0:
        return False
    for place in range(state.slots.shape[1]):
        index = state.slots[worker, place]
        if index >= 0:
            row = state.rollouts[index]
            is_untold = row.phase == events.DECODING and row.tokens == events.UNTOLD
            if is_untold and row.end_step <= generator.target:
                return True
    return False


@kernel
def draw(key: Any, law: Law, row: Any, group: int) -> float:
    """A draw of a law for a rollout: by prompt, member and attempt, whatever else happens."""
    if law.mean == 0.0 or law.law == CONSTANT or law.cv == 0.0:
        return law.mean
    return law.mean * draw_factor(
        key, row.attempt * group + row.member, row.prompt, law.law, law.cv
    )


@kernel
def settle(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record) -> None:
    """Start whatever may start now: the trainer, groups, and generators at a boundary."""
    clock, trainer = state.clock[0], state.trainer[0]
    if trainer.phase == events.DRAINING and clock.in_flight == 0 and clock.placing < 0:
        publish(state, rules)
    if trainer.phase == events.IDLE and clock.waiting >= rules.batch:
        train(state, rules)
    place_groups(state, rules, limits)
    for number in range(clock.restless):
        worker = state.restless[number]
        state.generators[worker].listed = 0
        attend(state, costs, rules, record, worker)
    clock.restless = 0
    clock.busy = 1 if clock.alive > 0 or trainer.phase != events.IDLE else 0


# --- the trainer


@kernel
def plan_trainer(state: State, seconds: float) -> None:
    """Plan the end of the trainer's present stage."""
    trainer = state.trainer[0]
    trainer.start_s = state.clock[0].now_s
    trainer.end_s = trainer.start_s + seconds
    leaf = len(state.rollouts) + len(state.generators)
    events.plan(state, leaf, trainer.end_s, events.STEPPED, 0)


@kernel
def train(state: State, rules: Rules) -> None:
    """Begin a step with the first complete groups."""
    clock, tokens = state.clock[0], 0
    for number in range(rules.batch):
        place = state.waiting[number]
        state.batch[number] = place
        state.groups[place].phase = events.TRAINING
        for index in range(place * rules.group, (place + 1) * rules.group):
            row = state.rollouts[index]
            row.taken_s = clock.now_s
            row.trained_version = clock.version
            tokens += row.tokens
    clock.waiting -= rules.batch
    for number in range(clock.waiting):
        state.waiting[number] = state.waiting[number + rules.batch]
    clock.begun_steps += 1
    state.trainer[0].phase = events.STEPPING
    plan_trainer(state, rules.step_s + rules.token_s * rules.scale * tokens)


@kernel
def end_stage(state: State, rules: Rules, record: Record) -> None:
    """End the trainer's step, or its publication."""
    clock, trainer = state.clock[0], state.trainer[0]
    stepping = trainer.phase == events.STEPPING
    kind = events.FOLD if stepping else events.PUSH
    events.keep_span(record, -1, kind, trainer.start_s, trainer.end_s)
    due = (clock.version + 1) % rules.interval == 0
    if stepping and due and rules.publish == events.DRAIN:
        trainer.phase = events.DRAINING
    elif stepping and due and rules.sync_s > 0.0:
        publish(state, rules)
    else:
        fold(state, rules, record, due)


@kernel
def publish(state: State, rules: Rules) -> None:
    """Begin to send the new weights."""
    state.trainer[0].phase = events.SYNCING
    plan_trainer(state, rules.sync_s)


@kernel
def fold(state: State, rules: Rules, record: Record, due: bool) -> None:
    """Complete the step: the version grows, and is published if that is due."""
    clock = state.clock[0]
    for number in range(rules.batch):
        place = state.batch[number]
        for index in range(place * rules.group, (place + 1) * rules.group):
            row = state.rollouts[index]
            row.fate = 0
            events.keep_row(record, row)
            row.phase = events.ABSENT
        release(state, place)
    record.folds[record.counts[events.FOLDS]] = clock.now_s
    record.counts[events.FOLDS] += 1
    clock.version += 1
    state.trainer[0].phase = events.IDLE
    if due:
        clock.published = clock.version
        clock.stale = clock.alive
    for worker in range(len(state.generators)):
        generator = state.generators[worker]
        if generator.active > 0:
            events.keep_span(record, worker, events.COMPUTE, generator.busy_s, clock.now_s)
            generator.busy_s = clock.now_s
            if due and rules.publish == events.IN_FLIGHT_EXCHANGE:
                events.list_generator(state, worker)
    throw_old_away(state, rules, record)


# --- the generators


@kernel
def plan_boundary(state: State, worker: int) -> None:
    """Plan the next boundary at which a rollout ends or something is wanted."""
    generator, leaf = state.generators[worker], len(state.rollouts) + worker
    target = generator.wanted
    for place in range(state.slots.shape[1]):
        index = state.slots[worker, place]
        if index >= 0 and state.rollouts[index].phase == events.DECODING:
            target = min(target, state.rollouts[index].end_step)
    generator.target = target
    if target == events.NEVER:
        scratch(state.events, leaf)
    else:
        time_s = generator.since_s + (target - generator.steps) * generator.step_s
        events.plan(state, leaf, time_s, events.BOUNDARY, worker)


@kernel
def meet_boundary(state: State, costs: Costs, rules: Rules, record: Record, worker: int) -> None:
    """Complete a generator's steps up to the planned boundary, and end its rollouts there."""
    generator = state.generators[worker]
    generator.steps = generator.target
    generator.since_s = state.clock[0].now_s
    generator.at_boundary = 1
    generator.wanted = events.NEVER
    events.list_generator(state, worker)
    for place in range(state.slots.shape[1]):
        index = state.slots[worker, place]
        if index < 0:
            continue
        row = state.rollouts[index]
        if row.phase == events.DECODING and row.end_step <= generator.steps:
            end_decoding(state, costs, rules, record, index)


@kernel
def end_decoding(state: State, costs: Costs, rules: Rules, record: Record, index: int) -> None:
    """End a rollout's last token; its environment keeps the slot for a while."""
    row, now_s = state.rollouts[index], state.clock[0].now_s
    row.decoded = row.tokens
    row.weighted += row.version * (row.tokens - row.first)
    row.end_s = now_s
    row.phase = events.OUTSIDE
    seconds = draw(costs.jitter.key, rules.environment, row, rules.group)
    if seconds > 0.0:
        number = row.group * rules.group + row.member
        events.plan(state, index, now_s + seconds, events.RETURNED, number)
    else:
        leave(state, costs, rules, record, index)


@kernel
def leave(state: State, costs: Costs, rules: Rules, record: Record, index: int) -> None:
    """Free the slot of a rollout and have it judged."""
    row, now_s = state.rollouts[index], state.clock[0].now_s
    free_slot(state, row)
    row.left_s = now_s
    row.phase = events.JUDGED
    seconds = draw(costs.sample_key, rules.reward, row, rules.group)
    if seconds > 0.0:
        number = row.group * rules.group + row.member
        events.plan(state, index, now_s + seconds, events.REWARDED, number)
    else:
        be_ready(state, rules, record, index)


@kernel
def be_ready(state: State, rules: Rules, record: Record, index: int) -> None:
    """Note a known reward; the last one completes the group."""
    row = state.rollouts[index]
    row.ready_s = state.clock[0].now_s
    row.phase = events.READY
    place = index // rules.group
    state.groups[place].done += 1
    if state.groups[place].done == rules.group:
        complete(state, rules, record, place)


@kernel
def attend(state: State, costs: Costs, rules: Rules, record: Record, worker: int) -> None:
    """At a boundary, read weights and begin rollouts; else have the next boundary processed."""
    generator = state.generators[worker]
    if generator.at_boundary == 0 and generator.active > 0:
        steps = events.steps_before_now(state, worker)
        steps += state.clock[0].now_s > generator.since_s
        if generator.since_s + (steps - generator.steps) * generator.step_s > state.clock[0].now_s:
            generator.wanted = steps
            plan_boundary(state, worker)
            return
        generator.steps = steps
    generator.wanted = events.NEVER
    resume(state, costs, rules, record, worker)


@kernel
def resume(state: State, costs: Costs, rules: Rules, record: Record, worker: int) -> None:
    """Begin the next step, with new rollouts and, if exchanged in flight, new weights."""
    generator, clock = state.generators[worker], state.clock[0]
    was_active = generator.active
    generator.at_boundary = 0
    generator.since_s = clock.now_s
    is_new = rules.publish == events.IN_FLIGHT_EXCHANGE and generator.version < clock.published
    active, prefill = 0, 0
    for place in range(state.slots.shape[1]):
        index = state.slots[worker, place]
        if index < 0:
            continue
        row = state.rollouts[index]
        if row.phase == events.PLACED:
            begin_decoding(state, costs, rules, record, index)
            prefill += rules.prompt_tokens
            active += 1
        elif row.phase == events.DECODING:
            if is_new:
                exchange(state, rules, record, index)
                if rules.recompute:
                    prefill += rules.prompt_tokens + generator.steps - row.begun_step
            active += 1
    generator.version = clock.published
    generator.active = active
    pace = costs.compute_s[worker] / costs.compute_s[0] if costs.compute_s[0] > 0.0 else 1.0
    generator.step_s = pace * (rules.decode_s + rules.sequence_s * active)
    generator.since_s += pace * rules.prefill_s * prefill
    if was_active == 0 and active > 0:
        generator.busy_s = clock.now_s
    if was_active > 0 and active == 0:
        events.keep_span(record, worker, events.COMPUTE, generator.busy_s, clock.now_s)
    plan_boundary(state, worker)


@kernel
def begin_decoding(state: State, costs: Costs, rules: Rules, record: Record, index: int) -> None:
    """Begin a rollout with the newest published weights."""
    row, clock = state.rollouts[index], state.clock[0]
    generator = state.generators[row.generator]
    row.phase = events.DECODING
    row.start_s = clock.now_s
    row.end_s = row.left_s = row.ready_s = np.nan
    row.oldest = row.version = clock.published
    row.weighted = row.first = row.decoded = 0
    row.begun_step = generator.steps
    if rules.asks:
        leave_untold(state, rules, index)
    else:
        tokens = draw(costs.length_key, rules.tokens, row, rules.group)
        row.tokens = min(max(1, int(tokens + 0.5)), rules.most_tokens)
        row.end_step = row.begun_step + row.tokens * rules.scale
    events.keep_stretch(record, rules, row, clock.now_s)


@kernel
def exchange(state: State, rules: Rules, record: Record, index: int) -> None:
    """Go on with a rollout with new weights; its tokens stay."""
    row, clock = state.rollouts[index], state.clock[0]
    tokens = (state.generators[row.generator].steps - row.begun_step) // rules.scale
    row.weighted += row.version * (tokens - row.first)
    row.first = tokens
    row.version = clock.published
    if tokens == 0:
        row.oldest = row.version
    if rules.asks:
        if row.tokens == events.UNTOLD:
            state.generators[row.generator].untold -= 1
        leave_untold(state, rules, index)
    events.keep_stretch(record, rules, row, clock.now_s)


@kernel
def leave_untold(state: State, rules: Rules, index: int) -> None:
    """Ask for the length of a rollout, which ends one token later at the earliest."""
    row = state.rollouts[index]
    row.tokens = events.UNTOLD
    row.end_step = row.begun_step + (row.first + 1) * rules.scale
    state.generators[row.generator].untold += 1


@kernel
def tell(state: State, scale: int, indices: Any, lengths: Any) -> None:
    """Set the lengths of rollouts that were asked for, and plan their generators anew."""
    for number in range(len(indices)):
        row = state.rollouts[indices[number]]
        row.tokens = lengths[number]
        row.end_step = row.begun_step + row.tokens * scale
        state.generators[row.generator].untold -= 1
    for number in range(len(indices)):
        plan_boundary(state, state.rollouts[indices[number]].generator)
