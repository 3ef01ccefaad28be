"""Compiled event loop of the protocol ``rollouts``: generators, buffer and trainer.

A generator decodes in steps that all its rollouts share, so its state is a number of completed
steps and the instant since which a step takes ``step_s``. Nothing changes between two boundaries
of steps, so the loop jumps to the next boundary at which a rollout ends or something is wanted:
a rollout waits to begin, or new weights wait to be read. A rollout of n tokens takes n times
``length_scale`` steps. Reading prompts, and tokens again after an exchange of weights, delays the
next step of the whole generator.

All events of one instant happen first, in this order: the trainer's, ends of rewards, ends of
environments, generators' boundaries; equal ones by number of the rollout or generator. Then
`settle` starts whatever may start at that instant: the trainer, groups, generators.

The state holds the groups of a pool: each is in flight, under reward, waiting or in training. An
application supplies lengths on the way: a rollout without a length ends one token later at the
earliest, and the loop returns `ASKS` before that boundary.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.rollouts.event_state import (
    ABSENT,
    ADMISSION,
    BACKPRESSURE,
    BOUNDARY,
    COMPLETE,
    COMPUTE,
    DECODING,
    DISCARD,
    DRAIN,
    DRAINING,
    FOLD,
    FOLDS,
    FREE,
    GROWING,
    IDLE,
    IN_FLIGHT_EXCHANGE,
    JUDGED,
    LEAF,
    LEAF_BITS,
    LEAVING,
    NEVER,
    ONE_STEP,
    OUTSIDE,
    PLACED,
    PRIORITY,
    PUSH,
    READY,
    RETURNED,
    REWARDED,
    ROWS,
    SPANS,
    STEPPED,
    STEPPING,
    STRETCHES,
    SYNCING,
    TRAINING,
    UNTOLD,
    WINDOW,
    Law,
    Record,
    Rules,
    State,
)
from harness.simulator import laws
from harness.simulator.costs import Costs
from harness.simulator.events import kernel, set_leaf
from harness.simulator.protocols.contract import ASKS, DONE, FULL, STUCK, Limits

__all__ = ["run", "tell"]


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
        kind, leaf = key >> PRIORITY, key & LEAF
        # before the clock moves: the event stays planned, and is met again with its answer
        if kind == BOUNDARY and is_awaiting_length(state, leaf - len(state.rollouts)):
            return ASKS
        if time_s > limits.time_s:
            clock.now_s = limits.time_s
            return DONE
        clock.standing = clock.standing + 1 if time_s == clock.now_s else 0
        if clock.standing > limits.standing + 4 * len(state.rollouts):
            return STUCK
        clock.now_s = time_s
        clock.unsettled = 1
        scratch(state, leaf)
        if kind == STEPPED:
            end_stage(state, rules, record)
        elif kind == REWARDED:
            be_ready(state, rules, record, leaf)
        elif kind == RETURNED:
            leave(state, costs, rules, record, leaf)
        else:
            meet_boundary(state, costs, rules, record, leaf - len(state.rollouts))
    return DONE


@kernel
def is_full(state: State, record: Record) -> bool:
    """Whether one more event with all that it starts could exceed a buffer."""
    counts = record.counts
    return (
        counts[FOLDS] == len(record.folds)
        or counts[ROWS] + len(state.rollouts) > len(record.rows)
        or counts[STRETCHES] + state.slots.size > len(record.stretches)
        or counts[SPANS] + 2 * len(state.generators) + 4 > len(record.spans)
    )


@kernel
def is_awaiting_length(state: State, who: int) -> bool:
    """Whether a rollout without a length may end at a generator's next boundary."""
    generator = state.generators[who]
    if generator.untold == 0:
        return False
    for place in range(state.slots.shape[1]):
        index = state.slots[who, place]
        if index >= 0:
            row = state.rollouts[index]
            if row.phase == DECODING and row.tokens == UNTOLD and row.end_step <= generator.target:
                return True
    return False


@kernel
def plan(state: State, leaf: int, time_s: float, kind: int, number: int) -> None:
    """Plan a leaf's next event."""
    set_leaf(state.events, leaf, time_s, (kind << PRIORITY) | (number << LEAF_BITS) | leaf)


@kernel
def scratch(state: State, leaf: int) -> None:
    """Remove a leaf's event."""
    set_leaf(state.events, leaf, np.inf, NEVER)


@kernel
def draw(key: Any, law: Law, row: Any, group: int) -> float:
    """A draw of a law for a rollout: by prompt, member and attempt, whatever else happens."""
    if law.mean == 0.0 or law.law == laws.CONSTANT or law.cv == 0.0:
        return law.mean
    return law.mean * laws.draw_factor(
        key, row.attempt * group + row.member, row.prompt, law.law, law.cv
    )


@kernel
def settle(state: State, costs: Costs, rules: Rules, limits: Limits, record: Record) -> None:
    """Start whatever may start now: the trainer, groups, and generators at a boundary."""
    clock, trainer = state.clock[0], state.trainer[0]
    if trainer.phase == DRAINING and clock.in_flight == 0 and clock.placing < 0:
        publish(state, rules)
    if trainer.phase == IDLE and clock.waiting >= rules.batch:
        train(state, rules)
    place_groups(state, rules, limits)
    for number in range(clock.restless):
        who = state.restless[number]
        state.generators[who].listed = 0
        attend(state, costs, rules, record, who)
    clock.restless = 0
    clock.busy = 1 if clock.alive > 0 or trainer.phase != IDLE else 0


# --- the buffer


@kernel
def may_begin(state: State, rules: Rules, limits: Limits) -> bool:
    """Whether the rule of the buffer, the limits and the pool admit another group."""
    clock = state.clock[0]
    if clock.alive == len(state.groups):
        return False
    promised = clock.version * rules.batch + clock.alive
    if limits.dispatch < NEVER and promised >= limits.dispatch * rules.batch:
        return False
    # after the last instant of handing out, a batch that has begun is completed
    if clock.now_s > limits.dispatch_s and promised % rules.batch == 0:
        return False
    if rules.rule == ADMISSION:
        return clock.groups // rules.batch <= clock.version + rules.allowed
    if rules.rule == BACKPRESSURE:
        return clock.stale < rules.batch * (1.0 + rules.allowed) * rules.interval
    if rules.rule == ONE_STEP:
        return clock.groups // rules.batch <= clock.begun_steps
    return True


@kernel
def place_groups(state: State, rules: Rules, limits: Limits) -> None:
    """Put rollouts into free slots: members of the group that has begun, then new groups."""
    clock = state.clock[0]
    while clock.free_slots > 0:
        if clock.placing < 0:
            if state.trainer[0].phase >= DRAINING and rules.publish == DRAIN:
                return
            if not may_begin(state, rules, limits):
                return
            begin_group(state, rules)
        group = state.groups[clock.placing]
        place_rollout(state, clock.placing * rules.group + group.begun)
        group.begun += 1
        if group.begun == rules.group:
            clock.placing = -1


@kernel
def begin_group(state: State, rules: Rules) -> None:
    """Begin a group of a prompt that is queued again, or else of the next prompt."""
    clock = state.clock[0]
    place = state.free[len(state.free) - 1 - clock.alive]
    group = state.groups[place]
    group.prompt, group.attempt = clock.prompts, 0
    if clock.retries > 0:
        retry = state.retries[clock.first_retry]
        group.prompt, group.attempt = retry.prompt, retry.attempt
        clock.first_retry = (clock.first_retry + 1) % len(state.retries)
        clock.retries -= 1
    else:
        clock.prompts += 1
    group.number, group.phase, group.begun, group.done = clock.groups, GROWING, 0, 0
    for member in range(rules.group):
        row = state.rollouts[place * rules.group + member]
        row.group, row.prompt, row.attempt = group.number, group.prompt, group.attempt
        row.member, row.phase = member, ABSENT
    clock.groups += 1
    clock.alive += 1
    clock.stale += 1
    clock.dispatched += rules.group
    clock.placing = place


@kernel
def place_rollout(state: State, index: int) -> None:
    """Put a rollout into a slot of the generator with the most free ones, the first of equals."""
    best = 0
    for who in range(1, len(state.generators)):
        if state.generators[who].free > state.generators[best].free:
            best = who
    generator, row = state.generators[best], state.rollouts[index]
    place = 0
    while state.slots[best, place] >= 0:
        place += 1
    state.slots[best, place] = index
    row.generator, row.slot, row.phase = best, place, PLACED
    generator.free -= 1
    state.clock[0].free_slots -= 1
    state.clock[0].in_flight += 1
    list_generator(state, best)


@kernel
def list_generator(state: State, who: int) -> None:
    """Have a generator looked at once this instant's events have happened."""
    if state.generators[who].listed == 0:
        state.generators[who].listed = 1
        state.restless[state.clock[0].restless] = who
        state.clock[0].restless += 1


@kernel
def free_slot(state: State, row: Any) -> None:
    """Take a rollout out of its slot."""
    state.slots[row.generator, row.slot] = -1
    state.generators[row.generator].free += 1
    state.clock[0].free_slots += 1
    state.clock[0].in_flight -= 1


@kernel
def oldest_of(state: State, rules: Rules, place: int) -> int:
    """The oldest version of a group's tokens; the published one before the first token."""
    oldest = state.clock[0].published
    for index in range(place * rules.group, (place + 1) * rules.group):
        row = state.rollouts[index]
        if row.phase >= DECODING and row.oldest < oldest:
            oldest = row.oldest
    return oldest


@kernel
def is_too_old(state: State, rules: Rules, place: int) -> bool:
    """Whether the rule throws a group away now."""
    group = state.groups[place]
    if rules.rule == DISCARD:
        concerned = group.phase == GROWING or group.phase == COMPLETE
    elif rules.rule == WINDOW:
        concerned = group.phase == COMPLETE
    else:
        return False
    if not concerned:
        return False
    return state.clock[0].version - oldest_of(state, rules, place) > rules.allowed


@kernel
def complete(state: State, rules: Rules, record: Record, place: int) -> None:
    """Queue a complete group; it is thrown away if it is too old by now."""
    clock, group = state.clock[0], state.groups[place]
    group.phase = COMPLETE
    group.complete_s = clock.now_s
    if is_too_old(state, rules, place):
        throw_away(state, rules, record, place)
        return
    in_order = rules.rule == ADMISSION or rules.rule == ONE_STEP
    behind = clock.waiting
    while behind > 0:
        other = state.groups[state.waiting[behind - 1]]
        if other.number < group.number or (not in_order and other.complete_s < group.complete_s):
            break
        state.waiting[behind] = state.waiting[behind - 1]
        behind -= 1
    state.waiting[behind] = place
    clock.waiting += 1


@kernel
def throw_away(state: State, rules: Rules, record: Record, place: int) -> None:
    """End all rollouts of a group, and queue its prompt again if the rule says so."""
    clock, group = state.clock[0], state.groups[place]
    for index in range(place * rules.group, (place + 1) * rules.group):
        row = state.rollouts[index]
        if row.phase == DECODING:
            stop_decoding(state, rules, index)
        if PLACED <= row.phase <= OUTSIDE:
            free_slot(state, row)
        scratch(state, index)
        if row.phase >= DECODING:
            row.fate = 1
            row.taken_s = clock.now_s
            row.trained_version = clock.version
            keep_row(record, row)
        row.phase = ABSENT
    if clock.placing == place:
        clock.placing = -1
    if rules.rule == DISCARD:
        last = (clock.first_retry + clock.retries) % len(state.retries)
        state.retries[last].prompt = group.prompt
        state.retries[last].attempt = group.attempt + 1
        clock.retries += 1
    release(state, place)


@kernel
def release(state: State, place: int) -> None:
    """Return a group's place to the pool."""
    clock = state.clock[0]
    state.groups[place].phase = FREE
    clock.alive -= 1
    state.free[len(state.free) - 1 - clock.alive] = place


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


# --- the trainer


@kernel
def plan_trainer(state: State, seconds: float) -> None:
    """Plan the end of the trainer's present stage."""
    trainer = state.trainer[0]
    trainer.start_s = state.clock[0].now_s
    trainer.end_s = trainer.start_s + seconds
    plan(state, len(state.rollouts) + len(state.generators), trainer.end_s, STEPPED, 0)


@kernel
def train(state: State, rules: Rules) -> None:
    """Begin a step with the first complete groups."""
    clock, tokens = state.clock[0], 0
    for number in range(rules.batch):
        place = state.waiting[number]
        state.batch[number] = place
        state.groups[place].phase = TRAINING
        for index in range(place * rules.group, (place + 1) * rules.group):
            row = state.rollouts[index]
            row.taken_s = clock.now_s
            row.trained_version = clock.version
            tokens += row.tokens
    clock.waiting -= rules.batch
    for number in range(clock.waiting):
        state.waiting[number] = state.waiting[number + rules.batch]
    clock.begun_steps += 1
    state.trainer[0].phase = STEPPING
    plan_trainer(state, rules.step_s + rules.token_s * rules.scale * tokens)


@kernel
def end_stage(state: State, rules: Rules, record: Record) -> None:
    """End the trainer's step, or its publication."""
    clock, trainer = state.clock[0], state.trainer[0]
    stepping = trainer.phase == STEPPING
    keep_span(record, -1, FOLD if stepping else PUSH, trainer.start_s, trainer.end_s)
    due = (clock.version + 1) % rules.interval == 0
    if stepping and due and rules.publish == DRAIN:
        trainer.phase = DRAINING
    elif stepping and due and rules.sync_s > 0.0:
        publish(state, rules)
    else:
        fold(state, rules, record, due)


@kernel
def publish(state: State, rules: Rules) -> None:
    """Begin to send the new weights."""
    state.trainer[0].phase = SYNCING
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
            keep_row(record, row)
            row.phase = ABSENT
        release(state, place)
    record.folds[record.counts[FOLDS]] = clock.now_s
    record.counts[FOLDS] += 1
    clock.version += 1
    state.trainer[0].phase = IDLE
    if due:
        clock.published = clock.version
        clock.stale = clock.alive
    for who in range(len(state.generators)):
        generator = state.generators[who]
        if generator.active > 0:
            keep_span(record, who, COMPUTE, generator.busy_s, clock.now_s)
            generator.busy_s = clock.now_s
            if due and rules.publish == IN_FLIGHT_EXCHANGE:
                list_generator(state, who)
    throw_old_away(state, rules, record)


@kernel
def throw_old_away(state: State, rules: Rules, record: Record) -> None:
    """Throw away groups too old for the present version: waiting ones, then others by number."""
    clock = state.clock[0]
    if rules.rule != DISCARD and rules.rule != WINDOW:
        return
    kept = 0
    for number in range(clock.waiting):
        place = state.waiting[number]
        if is_too_old(state, rules, place):
            throw_away(state, rules, record, place)
        else:
            state.waiting[kept] = place
            kept += 1
    clock.waiting = kept
    leaving = 0
    for place in range(len(state.groups)):
        if state.groups[place].phase == GROWING and is_too_old(state, rules, place):
            state.groups[place].phase = LEAVING
            leaving += 1
    for _ in range(leaving):
        throw_away(state, rules, record, first_leaving(state))


@kernel
def first_leaving(state: State) -> int:
    """The group with the smallest number among those that leave."""
    first = -1
    for place in range(len(state.groups)):
        group = state.groups[place]
        if group.phase == LEAVING and (first < 0 or group.number < state.groups[first].number):
            first = place
    return first


# --- the generators


@kernel
def steps_before_now(state: State, who: int) -> int:
    """Decode steps that a generator has completed before this instant."""
    generator, now_s = state.generators[who], state.clock[0].now_s
    if generator.active == 0 or now_s <= generator.since_s:
        return generator.steps
    done = int((now_s - generator.since_s) / generator.step_s)
    while generator.since_s + done * generator.step_s >= now_s:
        done -= 1
    while generator.since_s + (done + 1) * generator.step_s < now_s:
        done += 1
    return generator.steps + done


@kernel
def next_boundary(state: State, who: int) -> int:
    """Steps at a generator's next boundary from now on."""
    steps = steps_before_now(state, who)
    return steps + 1 if state.clock[0].now_s > state.generators[who].since_s else steps


@kernel
def plan_boundary(state: State, who: int) -> None:
    """Plan the next boundary at which a rollout ends or something is wanted."""
    generator, leaf = state.generators[who], len(state.rollouts) + who
    target = generator.wanted
    for place in range(state.slots.shape[1]):
        index = state.slots[who, place]
        if index >= 0 and state.rollouts[index].phase == DECODING:
            target = min(target, state.rollouts[index].end_step)
    generator.target = target
    if target == NEVER:
        scratch(state, leaf)
    else:
        time_s = generator.since_s + (target - generator.steps) * generator.step_s
        plan(state, leaf, time_s, BOUNDARY, who)


@kernel
def meet_boundary(state: State, costs: Costs, rules: Rules, record: Record, who: int) -> None:
    """Complete a generator's steps up to the planned boundary, and end its rollouts there."""
    generator = state.generators[who]
    generator.steps = generator.target
    generator.since_s = state.clock[0].now_s
    generator.at_boundary = 1
    generator.wanted = NEVER
    list_generator(state, who)
    for place in range(state.slots.shape[1]):
        index = state.slots[who, place]
        if index < 0:
            continue
        row = state.rollouts[index]
        if row.phase == DECODING and row.end_step <= generator.steps:
            end_decoding(state, costs, rules, record, index)


@kernel
def end_decoding(state: State, costs: Costs, rules: Rules, record: Record, index: int) -> None:
    """End a rollout's last token; its environment keeps the slot for a while."""
    row, now_s = state.rollouts[index], state.clock[0].now_s
    row.decoded = row.tokens
    row.weighted += row.version * (row.tokens - row.first)
    row.end_s = now_s
    row.phase = OUTSIDE
    seconds = draw(costs.jitter_key, rules.environment, row, rules.group)
    if seconds > 0.0:
        number = row.group * rules.group + row.member
        plan(state, index, now_s + seconds, RETURNED, number)
    else:
        leave(state, costs, rules, record, index)


@kernel
def leave(state: State, costs: Costs, rules: Rules, record: Record, index: int) -> None:
    """Free the slot of a rollout and have it judged."""
    row, now_s = state.rollouts[index], state.clock[0].now_s
    free_slot(state, row)
    row.left_s = now_s
    row.phase = JUDGED
    seconds = draw(costs.sample_key, rules.reward, row, rules.group)
    if seconds > 0.0:
        number = row.group * rules.group + row.member
        plan(state, index, now_s + seconds, REWARDED, number)
    else:
        be_ready(state, rules, record, index)


@kernel
def be_ready(state: State, rules: Rules, record: Record, index: int) -> None:
    """Note a known reward; the last one completes the group."""
    row = state.rollouts[index]
    row.ready_s = state.clock[0].now_s
    row.phase = READY
    place = index // rules.group
    state.groups[place].done += 1
    if state.groups[place].done == rules.group:
        complete(state, rules, record, place)


@kernel
def attend(state: State, costs: Costs, rules: Rules, record: Record, who: int) -> None:
    """At a boundary, read weights and begin rollouts; else have the next boundary processed."""
    generator = state.generators[who]
    if generator.at_boundary == 0 and generator.active > 0:
        steps = next_boundary(state, who)
        if generator.since_s + (steps - generator.steps) * generator.step_s > state.clock[0].now_s:
            generator.wanted = steps
            plan_boundary(state, who)
            return
        generator.steps = steps
    generator.wanted = NEVER
    resume(state, costs, rules, record, who)


@kernel
def resume(state: State, costs: Costs, rules: Rules, record: Record, who: int) -> None:
    """Begin the next step, with new rollouts and, if exchanged in flight, new weights."""
    generator, clock = state.generators[who], state.clock[0]
    was_active = generator.active
    generator.at_boundary = 0
    generator.since_s = clock.now_s
    is_new = rules.publish == IN_FLIGHT_EXCHANGE and generator.version < clock.published
    active, read = 0, 0
    for place in range(state.slots.shape[1]):
        index = state.slots[who, place]
        if index < 0:
            continue
        row = state.rollouts[index]
        if row.phase == PLACED:
            begin_decoding(state, costs, rules, record, index)
            read += rules.prompt_tokens
            active += 1
        elif row.phase == DECODING:
            if is_new:
                exchange(state, rules, record, index)
                if rules.recompute:
                    read += rules.prompt_tokens + generator.steps - row.begun_step
            active += 1
    generator.version = clock.published
    generator.active = active
    pace = costs.compute_s[who] / costs.compute_s[0] if costs.compute_s[0] > 0.0 else 1.0
    generator.step_s = pace * (rules.decode_s + rules.sequence_s * active)
    generator.since_s += pace * rules.prefill_s * read
    if was_active == 0 and active > 0:
        generator.busy_s = clock.now_s
    if was_active > 0 and active == 0:
        keep_span(record, who, COMPUTE, generator.busy_s, clock.now_s)
    plan_boundary(state, who)


@kernel
def begin_decoding(state: State, costs: Costs, rules: Rules, record: Record, index: int) -> None:
    """Begin a rollout with the newest published weights."""
    row, clock = state.rollouts[index], state.clock[0]
    generator = state.generators[row.generator]
    row.phase = DECODING
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
    keep_stretch(record, rules, row, clock.now_s)


@kernel
def exchange(state: State, rules: Rules, record: Record, index: int) -> None:
    """Go on with a rollout with new weights; its tokens stay."""
    row, clock = state.rollouts[index], state.clock[0]
    kept = (state.generators[row.generator].steps - row.begun_step) // rules.scale
    row.weighted += row.version * (kept - row.first)
    row.first = kept
    row.version = clock.published
    if kept == 0:
        row.oldest = row.version
    if rules.asks:
        if row.tokens == UNTOLD:
            state.generators[row.generator].untold -= 1
        leave_untold(state, rules, index)
    keep_stretch(record, rules, row, clock.now_s)


@kernel
def leave_untold(state: State, rules: Rules, index: int) -> None:
    """Ask for the length of a rollout, which ends one token later at the earliest."""
    row = state.rollouts[index]
    row.tokens = UNTOLD
    row.end_step = row.begun_step + (row.first + 1) * rules.scale
    state.generators[row.generator].untold += 1


@kernel
def keep_stretch(record: Record, rules: Rules, row: Any, now_s: float) -> None:
    """Record that the next tokens of a rollout have its present version."""
    stretch = record.stretches[record.counts[STRETCHES]]
    stretch.rollout = row.group * rules.group + row.member
    stretch.first, stretch.version, stretch.time_s = row.first, row.version, now_s
    record.counts[STRETCHES] += 1


@kernel
def stop_decoding(state: State, rules: Rules, index: int) -> None:
    """Count the tokens of a rollout that is thrown away in flight."""
    row = state.rollouts[index]
    row.decoded = (steps_before_now(state, row.generator) - row.begun_step) // rules.scale
    if row.tokens == UNTOLD:
        state.generators[row.generator].untold -= 1
        row.tokens = 0
    else:
        row.decoded = min(row.decoded, row.tokens)
    row.weighted += row.version * (row.decoded - row.first)
    list_generator(state, row.generator)


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
