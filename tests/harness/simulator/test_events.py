import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.simulator import Jitter
from harness.simulator.events import (
    append,
    first_s,
    head_s,
    new_agenda,
    new_queue,
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


def test_each_fold_is_followed_by_one_read_that_enters_one_event(simulate):
    simulation = simulate(1000, fold_s=0.0005, jitter=Jitter("shifted-exponential", 1.0))
    simulation.advance(folds=10_000)
    pending = simulation._state.arrivals[1000:]["time_s"] < np.inf
    assert simulation.dispatched == 10_000 + pending.sum()
