from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from harness.simulator import Link
from harness.simulator.link import DOWN, UP, finish, join, new_channels, occupy, soonest


def drain(channels, arrivals):
    """Feed (time, seconds alone) copies to the down channel; returns each one's end."""
    waiting, ends = sorted((t, c, who) for who, (t, c) in enumerate(arrivals)), {}
    while len(ends) < len(arrivals):
        end_s, where = soonest(channels)
        if waiting and waiting[0][0] < end_s:
            time_s, copy_s, who = waiting.pop(0)
            join(channels, DOWN, time_s, copy_s, who)
        else:
            ends[finish(channels, where, end_s)] = end_s
    return [ends[who] for who in range(len(arrivals))]


def fair(workers=16):
    return new_channels(Link(sharing="fair"), workers)


def test_a_copy_alone_takes_its_own_time():
    assert drain(fair(), [(0.5, 2.0)]) == [2.5]


def test_two_equal_copies_at_once_take_twice_as_long():
    assert drain(fair(), [(0.0, 1.0), (0.0, 1.0)]) == [2.0, 2.0]


def test_a_copy_that_ends_early_gives_its_share_back():
    assert drain(fair(), [(0.0, 1.0), (0.0, 3.0)]) == [2.0, 4.0]


def test_a_copy_that_joins_late_slows_the_first_from_then_on():
    assert drain(fair(), [(0.0, 2.0), (1.0, 2.0)]) == [3.0, 4.0]


def brute_force(arrivals):
    """Equal sharing in exact fractions, advancing from change to change."""
    left = {who: Fraction(c) for who, (_, c) in enumerate(arrivals)}
    ends, now = {}, Fraction(0)
    while left:
        active = [who for who in left if arrivals[who][0] <= now]
        later = [Fraction(arrivals[who][0]) for who in left if arrivals[who][0] > now]
        finishing = [now + left[who] * len(active) for who in active]
        upcoming = min(later + finishing)
        for who in active:
            left[who] -= (upcoming - now) / len(active)
        now = upcoming
        for who in [who for who in active if left[who] == 0]:
            ends[who] = now
            del left[who]
    return [float(ends[who]) for who in range(len(arrivals))]


@pytest.mark.parametrize("seed", range(5))
def test_fair_shares_equal_a_brute_force_calculation(seed):
    draw = np.random.default_rng(seed)
    arrivals = [(k / 8, c / 16) for k, c in draw.integers(1, 40, (12, 2)).tolist()]
    assert drain(fair(), arrivals) == pytest.approx(brute_force(arrivals), rel=1e-12)


def test_copies_queue_in_order_on_a_fifo_link():
    channels = new_channels(Link(sharing="fifo"), 4)
    starts = [occupy(channels, DOWN, t, 2.0) for t in (0.0, 0.5, 7.0)]
    assert starts == [0.0, 2.0, 7.0]


def test_directions_share_a_half_duplex_link_and_no_other():
    half, full = (new_channels(Link(sharing="fifo", duplex=d), 4) for d in ("half", "full"))
    assert occupy(half, DOWN, 0.0, 2.0) == 0.0
    assert occupy(half, UP, 0.0, 2.0) == 2.0
    assert occupy(full, DOWN, 0.0, 2.0) == 0.0
    assert occupy(full, UP, 0.0, 2.0) == 0.0
    assert (half.up, full.up) == (DOWN, UP)


def test_workers_with_links_of_their_own_never_wait():
    channels = new_channels(Link(sharing="none"), 4)
    assert [occupy(channels, DOWN, 1.0, 2.0) for _ in range(3)] == [1.0] * 3
