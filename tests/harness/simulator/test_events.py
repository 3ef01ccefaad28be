from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.simulator.events import SIZE, first_s, new_heap, pop, push

TIMES = st.sampled_from([0.0, 0.1, 0.25, 1.0, 1e300])
EVENTS = st.lists(st.tuples(TIMES, st.integers(0, 7)), max_size=40)


@settings(deadline=None)  # the first call compiles
@given(EVENTS)
def test_events_come_in_order_of_time_then_priority_then_insertion(pairs):
    heap = new_heap(len(pairs) + 1)
    for who, (time_s, priority) in enumerate(pairs):
        push(heap, time_s, priority, who)
    order = [pop(heap) for _ in pairs]
    assert order == sorted((t, p, who) for who, (t, p) in enumerate(pairs))


@settings(deadline=None)  # the first call compiles
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
