import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.simulator.events import (
    WHO,
    append,
    enter,
    first_s,
    head_s,
    new_agenda,
    new_queue,
    new_tournament,
    scratch,
    set_event,
    take,
    take_event,
    withdraw,
)

TIMES = st.sampled_from([0.0, 0.1, 0.25, 1.0, 1e300])
EVENTS = st.lists(st.tuples(TIMES, st.integers(0, 7)), max_size=40)


@given(EVENTS)
def test_events_come_in_order_of_time_then_of_scheduling(pairs):
    agenda, model = new_agenda(8), {}
    for place, (time_s, owner) in enumerate(pairs):
        set_event(agenda, owner, time_s)
        model[owner] = time_s, place, owner  # an owner has one event at most
    for time_s, _, owner in sorted(model.values()):
        assert (first_s(agenda), take_event(agenda)) == (time_s, owner)
    assert first_s(agenda) == math.inf


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


def test_a_tournament_gives_the_earliest_and_of_equals_the_first_entered():
    rng = np.random.default_rng(0)
    for workers in (1, 2, 3, 5, 8, 13):
        tree, pending = new_tournament(workers), {}
        for order in range(300):
            who, time_s = int(rng.integers(workers)), float(rng.integers(4))
            if rng.random() < 0.3:
                pending.pop(who, None)
                scratch(tree, who)
            else:
                pending[who] = (time_s, order)
                enter(tree, who, time_s, order)
            if pending:
                first = min(pending, key=pending.__getitem__)
                assert (tree[1]["time_s"], tree[1]["key"] & WHO) == (pending[first][0], first)
            else:
                assert tree[1]["time_s"] == np.inf
