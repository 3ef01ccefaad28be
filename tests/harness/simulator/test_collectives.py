import math

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.collectives import ALGORITHMS, RINGS, AllReduce, schedule
from harness.simulator.network import Level, Network, wire

ALPHA, BETA, SIZE = 0.5, 0.25, 64.0
"""Dyadic, so that sums of them are exact."""


def switched(workers, sharing="fair", sending="rendezvous", duplex="full"):
    return wire(Network((Level(1, 1.0 / BETA, ALPHA, duplex),), sharing, sending), workers)


def carried_out(plan, values):
    """Follow the table on real numbers: ``values`` [N, parts] become what each worker holds."""
    held = np.array(values, float)
    for number in sorted(set(plan.messages["round"].tolist())):
        before = held.copy()
        for message in plan.messages[plan.messages["round"] == number]:
            part = slice(message["first"], message["first"] + message["count"])
            old = held[message["target"], part] if message["adds"] else 0.0
            held[message["target"], part] = old + before[message["source"], part]
    return held


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 23, 33])
def test_every_worker_ends_with_the_sum_over_all(algorithm, workers):
    plan = schedule(algorithm, workers, group=3)
    values = np.random.default_rng(workers).integers(0, 100, (workers, plan.parts))
    held = carried_out(plan, values)
    assert (held == values.sum(axis=0)).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("workers", [2, 5, 8, 12, 33])
def test_nobody_sends_or_receives_two_messages_in_a_round(algorithm, workers):
    rows = schedule(algorithm, workers, group=4).messages
    for end in ("source", "target"):
        assert len(set(zip(rows["round"].tolist(), rows[end].tolist(), strict=True))) == len(rows)
    assert (rows["source"] != rows["target"]).all()


def exact_s(algorithm, workers):
    """The closed forms in the docstring of `harness.simulator.collectives`."""
    power = 2 ** int(math.log2(workers))
    whole, levels = ALPHA + BETA * SIZE, int(math.log2(workers))
    extra = 0.0 if power == workers else 2 * whole
    return {
        "ring": 2 * (workers - 1) * (ALPHA + BETA * SIZE / workers),
        "recursive-doubling": levels * whole + extra,
        "rabenseifner": 2 * levels * ALPHA + 2 * (power - 1) / power * BETA * SIZE + extra,
    }[algorithm]


@pytest.mark.parametrize("sharing", ["fair", "fifo"])
@pytest.mark.parametrize(
    ("algorithm", "counts"),
    [
        ("ring", (2, 4, 8, 16, 64)), ("recursive-doubling", (2, 3, 4, 6, 7, 8, 13, 16, 100)),
        ("rabenseifner", (2, 3, 4, 6, 7, 8, 13, 16, 100)),
    ],
)  # fmt: skip
def test_times_on_idle_links_are_the_closed_forms(algorithm, counts, sharing):
    for workers in counts:
        ends_s = AllReduce(algorithm, switched(workers, sharing)).ends_s(np.zeros(workers), SIZE)
        assert ends_s.max() == exact_s(algorithm, workers)


def test_a_ring_of_any_length_takes_its_closed_form():
    for workers in (3, 5, 6, 7, 100):
        ends_s = AllReduce("ring", switched(workers)).ends_s(np.zeros(workers), SIZE)
        assert ends_s == pytest.approx([exact_s("ring", workers)] * workers, rel=1e-12)


def test_adding_takes_time_in_the_rounds_that_add_and_in_no_other():
    whole = {"ring": 3 / 4, "recursive-doubling": 2.0, "rabenseifner": 3 / 4}
    for algorithm, models in whole.items():
        reduce = AllReduce(algorithm, switched(4))
        free, slow = (reduce.ends_s(np.zeros(4), SIZE, cost).max() for cost in (0.0, 1.0))
        assert slow - free == models * SIZE


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_bytes_sent_are_those_of_theory(workers):
    levels, share = int(math.log2(workers)), 2 * (workers - 1) / workers
    each = {"ring": share, "recursive-doubling": levels, "rabenseifner": share}
    for algorithm, models in each.items():
        messages = AllReduce(algorithm, switched(workers)).messages(np.zeros(workers), SIZE)
        by_worker = np.bincount(messages["source"], messages["size_bytes"], workers)
        assert by_worker.tolist() == [models * SIZE] * workers


def delayed(algorithm, workers, straggler, sending):
    """For each round, the workers that end it later because one was late from the start."""
    reduce = AllReduce(algorithm, switched(workers, sending=sending))
    late = np.zeros(workers)
    late[straggler] = 1000.0
    plain, held_up = (reduce.messages(ready, SIZE) for ready in (np.zeros(workers), late))
    slower = held_up["arrived_s"] > plain["arrived_s"]
    return [
        {int(worker) for end in ("source", "target") for worker in plain[end][slower & here]}
        for here in (plain["round"] == number for number in range(int(plain["round"].max()) + 1))
    ]


@pytest.mark.parametrize(
    ("algorithm", "workers", "straggler", "sending", "first"),
    [
        ("recursive-doubling", 16, 5, "rendezvous", [{4, 5}, {4, 5, 6, 7}, set(range(8))]),
        ("rabenseifner", 8, 5, "rendezvous", [{1, 5}, {1, 3, 5, 7}, set(range(8))]),
        # one more downstream each round, and where both wait for each other one on either side
        ("ring", 8, 2, "buffered", [{(2 + i) % 8 for i in range(n + 2)} for n in range(7)]),
        ("ring", 16, 5, "rendezvous", [set(range(5 - k, 6 + k)) for k in (1, 2, 3)]),
    ],
)
def test_a_straggler_delays_whom_it_meets_round_by_round(
    algorithm, workers, straggler, sending, first
):
    assert delayed(algorithm, workers, straggler, sending)[: len(first)] == first


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_straggler_delays_nobody_before_it_is_late(algorithm):
    ready = np.zeros(8)
    ready[3] = ALPHA * BETA / 1e6
    reduce = AllReduce(algorithm, switched(8), 2)
    assert (reduce.ends_s(ready, SIZE) - reduce.ends_s(np.zeros(8), SIZE)).max() <= ready[3]


@pytest.mark.parametrize("sending", ["rendezvous", "buffered"])
@pytest.mark.parametrize("sharing", ["fair", "fifo"])
@pytest.mark.parametrize("algorithm", RINGS)
def test_what_goes_round_a_ring_without_a_table_equals_its_messages_to_the_last_bit(
    algorithm, sharing, sending
):
    levels = (Level(1, 7.0, 0.1), Level(4, 3.0, 0.3))
    for workers in (1, 2, 3, 8, 12):
        wiring = wire(Network(levels, sharing, sending), workers)
        draw = np.random.default_rng(workers)
        for there in (np.arange(workers), np.flatnonzero(draw.random(workers) < 0.7)):
            reduce = AllReduce(algorithm, wiring, members=there)
            for ready in (draw.exponential(30.0, len(there)), np.full(len(there), 2.5)):
                by_table = reduce._run(ready, 10.0, 0.01)[0]
                assert reduce.ends_s(ready, 10.0, 0.01).tolist() == by_table.tolist()


def test_neighbours_of_a_ring_on_half_duplex_links_share_them():
    full, half = (AllReduce("ring", switched(8, duplex=d)) for d in ("full", "half"))
    copying = exact_s("ring", 8) - 14 * ALPHA
    assert full.ends_s(np.zeros(8), SIZE).max() == exact_s("ring", 8)
    assert half.ends_s(np.zeros(8), SIZE).max() == exact_s("ring", 8) + copying


def test_one_worker_has_the_sum_at_once():
    for algorithm in ALGORITHMS:
        assert AllReduce(algorithm, switched(1)).ends_s(np.array([2.5]), SIZE).tolist() == [2.5]


def test_a_misspelt_algorithm_is_named_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'ring'"):
        AllReduce("rign", switched(2)).ends_s(np.zeros(2), SIZE)
