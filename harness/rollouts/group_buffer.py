"""Compiled buffer of the protocol ``rollouts``: groups begin, are completed, or are thrown away.

A group has a place in a pool from its beginning to its end: it is in flight, under reward, waiting
in the queue of complete groups, or in training. Its rollouts occupy slots of generators until
`free_slot`. Rules that throw groups away are applied when a group is complete and at each new
version.
"""

from __future__ import annotations

from typing import Any

from harness.rollouts import event_state as events
from harness.rollouts.event_state import Record, Rules, State
from harness.simulator.events import kernel, scratch
from harness.simulator.protocols.contract import Limits


@kernel
def place_groups(state: State, rules: Rules, limits: Limits) -> None:
    """Put rollouts into free slots: members of the group that has begun, then new groups."""
    clock = state.clock[0]
    while clock.free_slots > 0:
        if clock.placing < 0:
            if state.trainer[0].phase >= events.DRAINING and rules.publish == events.DRAIN:
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
def may_begin(state: State, rules: Rules, limits: Limits) -> bool:
    """Whether the rule of the buffer, the limits and the pool admit another group."""
    clock = state.clock[0]
    if clock.alive == len(state.groups):
        return False
    promised = clock.version * rules.batch + clock.alive
    if limits.dispatch < events.NEVER and promised >= limits.dispatch * rules.batch:
        return False
    # after the last instant of handing out, a batch that has begun is completed
    if clock.now_s > limits.dispatch_s and promised % rules.batch == 0:
        return False
    if rules.rule == events.ADMISSION:
        return clock.groups // rules.batch <= clock.version + rules.allowed
    if rules.rule == events.BACKPRESSURE:
        return clock.stale < rules.batch * (1.0 + rules.allowed) * rules.interval
    if rules.rule == events.ONE_STEP:
        return clock.groups // rules.batch <= clock.begun_steps
    return True


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
    group.number, group.phase, group.begun, group.done = clock.groups, events.GROWING, 0, 0
    for member in range(rules.group):
        row = state.rollouts[place * rules.group + member]
        row.group, row.prompt, row.attempt = group.number, group.prompt, group.attempt
        row.member, row.phase = member, events.ABSENT
    clock.groups += 1
    clock.alive += 1
    clock.stale += 1
    clock.dispatched += rules.group
    clock.placing = place


@kernel
def place_rollout(state: State, index: int) -> None:
    """Put a rollout into a slot of the generator with the most free ones, the first of equals."""
    best = 0
    for worker in range(1, len(state.generators)):
        if state.generators[worker].free > state.generators[best].free:
            best = worker
    generator, row = state.generators[best], state.rollouts[index]
    place = 0
    while state.slots[best, place] >= 0:
        place += 1
    state.slots[best, place] = index
    row.generator, row.slot, row.phase = best, place, events.PLACED
    generator.free -= 1
    state.clock[0].free_slots -= 1
    state.clock[0].in_flight += 1
    events.list_generator(state, best)


@kernel
def free_slot(state: State, row: Any) -> None:
    """Take a rollout out of its slot."""
    state.slots[row.generator, row.slot] = -1
    state.generators[row.generator].free += 1
    state.clock[0].free_slots += 1
    state.clock[0].in_flight -= 1


@kernel
def complete(state: State, rules: Rules, record: Record, place: int) -> None:
    """Queue a complete group; it is thrown away if it is too old by now."""
    clock, group = state.clock[0], state.groups[place]
    group.phase = events.COMPLETE
    group.complete_s = clock.now_s
    if is_too_old(state, rules, place):
        throw_away(state, rules, record, place)
        return
    in_order = rules.rule == events.ADMISSION or rules.rule == events.ONE_STEP
    behind = clock.waiting
    while behind > 0:
        front = state.groups[state.waiting[behind - 1]]
        if front.number < group.number or (not in_order and front.complete_s < group.complete_s):
            break
        state.waiting[behind] = state.waiting[behind - 1]
        behind -= 1
    state.waiting[behind] = place
    clock.waiting += 1


@kernel
def is_too_old(state: State, rules: Rules, place: int) -> bool:
    """Whether the rule throws a group away now."""
    phase = state.groups[place].phase
    may_leave = rules.rule == events.DISCARD and phase == events.GROWING
    if rules.rule == events.DISCARD or rules.rule == events.WINDOW:
        may_leave = may_leave or phase == events.COMPLETE
    return may_leave and state.clock[0].version - oldest_of(state, rules, place) > rules.allowed


@kernel
def oldest_of(state: State, rules: Rules, place: int) -> int:
    """The oldest version of a group's tokens; the published one before the first token."""
    oldest = state.clock[0].published
    for index in range(place * rules.group, (place + 1) * rules.group):
        row = state.rollouts[index]
        if row.phase >= events.DECODING and row.oldest < oldest:
            oldest = row.oldest
    return oldest


@kernel
def throw_old_away(state: State, rules: Rules, record: Record) -> None:
    """Throw away groups too old for the present version: waiting ones, then others by number."""
    clock = state.clock[0]
    if rules.rule != events.DISCARD and rules.rule != events.WINDOW:
        return
    count = 0
    for number in range(clock.waiting):
        place = state.waiting[number]
        if is_too_old(state, rules, place):
            throw_away(state, rules, record, place)
        else:
            state.waiting[count] = place
            count += 1
    clock.waiting = count
    leaving = 0
    for place in range(len(state.groups)):
        if state.groups[place].phase == events.GROWING and is_too_old(state, rules, place):
            state.groups[place].phase = events.LEAVING
            leaving += 1
    for _ in range(leaving):
        throw_away(state, rules, record, first_leaving(state))


@kernel
def first_leaving(state: State) -> int:
    """The group with the smallest number among those that leave."""
    earliest = -1
    for place in range(len(state.groups)):
        group = state.groups[place]
        if group.phase == events.LEAVING and (
            earliest < 0 or group.number < state.groups[earliest].number
        ):
            earliest = place
    return earliest


@kernel
def throw_away(state: State, rules: Rules, record: Record, place: int) -> None:
    """End all rollouts of a group, and queue its prompt again if the rule says so."""
    clock, group = state.clock[0], state.groups[place]
    for index in range(place * rules.group, (place + 1) * rules.group):
        row = state.rollouts[index]
        if row.phase == events.DECODING:
            stop_decoding(state, rules, index)
        if events.PLACED <= row.phase <= events.OUTSIDE:
            free_slot(state, row)
        scratch(state.events, index)
        if row.phase >= events.DECODING:
            row.fate = 1
            row.taken_s = clock.now_s
            row.trained_version = clock.version
            events.keep_row(record, row)
        row.phase = events.ABSENT
    if clock.placing == place:
        clock.placing = -1
    if rules.rule == events.DISCARD:
        end = (clock.first_retry + clock.retries) % len(state.retries)
        state.retries[end].prompt = group.prompt
        state.retries[end].attempt = group.attempt + 1
        clock.retries += 1
    release(state, place)


@kernel
def stop_decoding(state: State, rules: Rules, index: int) -> None:
    """Count the tokens of a rollout that is thrown away in flight."""
    row = state.rollouts[index]
    row.decoded = (events.steps_before_now(state, row.generator) - row.begun_step) // rules.scale
    if row.tokens == events.UNTOLD:
        state.generators[row.generator].untold -= 1
        row.tokens = 0
    else:
        row.decoded = min(row.decoded, row.tokens)
    row.weighted += row.version * (row.decoded - row.first)
    events.list_generator(state, row.generator)


@kernel
def release(state: State, place: int) -> None:
    """Return a group's place to the pool."""
    clock = state.clock[0]
    state.groups[place].phase = events.FREE
    clock.alive -= 1
    state.free[len(state.free) - 1 - clock.alive] = place
