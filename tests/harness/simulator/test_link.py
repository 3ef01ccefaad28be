import numpy as np
import pytest

from harness.simulator.links import DOWN, UP, enter, leave, new_links, next_departure_s
from tests.harness.simulator.conftest import make_cluster
from tests.harness.simulator.fluid import departures_s


def send(links, way, now_s, copy_s, who=0):
    """The start of a copy."""
    return enter(links, who, who, way, 0, 1, copy_s, 0.0, now_s)[0]


def drain(links, arrivals):
    """Feed (time, seconds alone) copies to the down channel; returns each one's end."""
    waiting, ends = sorted((t, c, who) for who, (t, c) in enumerate(arrivals)), {}
    while len(ends) < len(arrivals):
        end_s = next_departure_s(links, 0.0)
        if waiting and waiting[0][0] < end_s:
            time_s, copy_s, who = waiting.pop(0)
            send(links, DOWN, time_s, copy_s, who)
        else:
            ends[leave(links, end_s)[0]] = end_s
    return [ends[who] for who in range(len(arrivals))]


def fair(workers=16):
    return new_links(make_cluster(sharing="fair"), workers)


@pytest.mark.parametrize("seed", range(5))
def test_fair_shares_equal_a_brute_force_calculation(seed):
    draw = np.random.default_rng(seed)
    arrivals = [(k / 8, c / 16) for k, c in draw.integers(1, 40, (12, 2)).tolist()]
    sent_s, sizes = zip(*arrivals, strict=True)
    exact = map(float, departures_s(sent_s, [{"link": 1}] * len(sizes), sizes))
    assert drain(fair(), arrivals) == pytest.approx(list(exact), rel=1e-12)


def test_copies_queue_in_order_on_a_fifo_link():
    links = new_links(make_cluster(sharing="fifo"), 4)
    starts = [send(links, DOWN, t, 2.0) for t in (0.0, 0.5, 7.0)]
    assert starts == [0.0, 2.0, 7.0]


def test_directions_share_a_half_duplex_link_and_no_other():
    half, full = (new_links(make_cluster(sharing="fifo", duplex=d), 4) for d in ("half", "full"))
    assert send(half, DOWN, 0.0, 2.0) == 0.0
    assert send(half, UP, 0.0, 2.0) == 2.0
    assert send(full, DOWN, 0.0, 2.0) == 0.0
    assert send(full, UP, 0.0, 2.0) == 0.0
    assert (half.up, full.up) == (DOWN, UP)


def test_workers_with_links_of_their_own_never_wait():
    links = new_links(make_cluster(), 4)
    assert [send(links, DOWN, 1.0, 2.0) for _ in range(3)] == [1.0] * 3
