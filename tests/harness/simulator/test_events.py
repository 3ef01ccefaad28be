import math
from types import SimpleNamespace

import numpy as np
import pytest
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
    set_leaf,
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


@pytest.mark.parametrize("workers", [1000, 10_000, 100_000, 1_000_000])
def test_a_fold_compares_no_more_events_than_the_logarithm_of_the_number_of_workers(workers):
    levels = math.ceil(math.log2(workers))
    counts = [comparisons(workers, who) for who in (0, workers // 3, workers - 1)]
    assert max(counts) == levels
    assert min(counts) >= levels - 1


def comparisons(workers: int, who: int) -> int:
    """How many times are compared with another as one worker's event changes."""
    counted = []

    class Seconds(float):
        def __lt__(self, other):
            counted.append(other)
            return float(self) < float(other)

    class Entries(dict):
        def __len__(self):
            return 2 * workers

        def __missing__(self, place):
            return self.setdefault(place, SimpleNamespace(time_s=Seconds("inf"), key=1 << 62))

    entries = Entries({workers + who: SimpleNamespace(time_s=Seconds(0.5), key=who)})
    set_leaf.py_func(entries, who, Seconds(1.0), who)
    return len(counted)


def test_each_fold_is_followed_by_one_read_that_enters_one_event(simulate):
    simulation = simulate(1000, fold_s=0.0005, jitter=Jitter("shifted-exponential", 1.0))
    simulation.advance(folds=10_000)
    pending = simulation._state.arrivals[1000:]["time_s"] < np.inf
    assert simulation.dispatched == 10_000 + pending.sum()
