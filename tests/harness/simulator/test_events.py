import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.simulator import Jitter
from harness.simulator.events import (
    SIZE,
    append,
    first_s,
    head_s,
    new_heap,
    new_queue,
    pop,
    push,
    take,
    withdraw,
)

TIMES = st.sampled_from([0.0, 0.1, 0.25, 1.0, 1e300])
EVENTS = st.lists(st.tuples(TIMES, st.integers(0, 7)), max_size=40)


@given(EVENTS)
def test_events_come_in_order_of_time_then_priority_then_insertion(pairs):
    heap = new_heap(len(pairs) + 1)
    for who, (time_s, priority) in enumerate(pairs):
        push(heap, time_s, priority, who)
    order = [pop(heap) for _ in pairs]
    assert order == sorted((t, p, who) for who, (t, p) in enumerate(pairs))


@given(EVENTS, st.data())
def test_insertions_between_removals_keep_the_order(pairs, data):
    heap, model = new_heap(len(pairs) + 1), []
    for who, (time_s, priority) in enumerate(pairs):
        push(heap, time_s, priority, who)
        model = sorted([*model, (time_s, priority, who)])
        if data.draw(st.booleans()):
            assert pop(heap) == model.pop(0)
        assert heap.counts[SIZE] == len(model)
    assert [pop(heap) for _ in range(len(model))] == model


def test_an_empty_heap_has_its_first_event_at_infinity():
    assert first_s(new_heap(3)) == float("inf")


@given(EVENTS, st.data())
def test_a_queue_keeps_the_order_of_time_then_insertion_around_its_ring(pairs, data):
    queue, model = new_queue(len(pairs) + 1), []
    for who, (time_s, _) in enumerate(pairs):
        append(queue, time_s, who)
        model = sorted([*model, (time_s, who)])
        if data.draw(st.booleans()):
            assert take(queue) == model.pop(0)
        if model and data.draw(st.booleans()):
            withdraw(queue, model.pop(len(model) // 2)[1])
        withdraw(queue, -1)
        assert head_s(queue) == (model[0][0] if model else math.inf)
    assert [take(queue) for _ in range(len(model))] == model


def test_each_fold_is_followed_by_one_read_that_enters_one_event(simulate):
    simulation = simulate(1000, fold_s=0.0005, jitter=Jitter("shifted-exponential", 1.0))
    simulation.advance(folds=10_000)
    pending = simulation._state.arrivals[1000:]["time_s"] < np.inf
    assert simulation.dispatched == 10_000 + pending.sum()
