from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from harness.simulator.star import depart, join, new_star, next_departure_s, shape_of
from harness.simulator.topology import Level, Network

TREES = {
    "the server's link": Network((), server=Level(1, 8.0)),
    "links of their own": Network((Level(1, 2.0),), server=Level(1, 8.0)),
    "nodes": Network((Level(1, 4.0), Level(4, 6.0)), server=Level(1, 8.0)),
    "nodes and no other": Network((Level(4, 2.0),), server=Level(1, 64.0)),
    "one site": Network((Level(16, 4.0),), server=Level(1, 8.0)),
    "half duplex": Network((Level(4, 6.0, duplex="half"),), server=Level(1, 8.0, duplex="half")),
    "half duplex server": Network((Level(2, 3.0),), server=Level(1, 8.0, duplex="half")),
    "a slow core": Network((Level(4, 6.0),), core_bandwidth_bytes_per_s=4.0, server=Level(1, 8.0)),
}
WORKERS = 16


def links_of(network, worker, up):
    """The links of a message's way, by name, and their rates."""
    levels, direction = [*network.levels, network.server], "up" if up else "down"
    rates = {}
    for height, level in enumerate(levels):
        place = 0 if level is network.server else worker // level.workers_per_link
        way = "both" if level.duplex == "half" else direction
        rates[height, place, way] = Fraction(level.bandwidth_bytes_per_s)
    core = network.core_bandwidth_bytes_per_s
    return rates | ({"core": Fraction(core)} if core else {})


def max_min(ways):
    """Rates by filling: all grow together until a link is full, then the others go on."""
    room = {link: rate for way in ways.values() for link, rate in way.items()}
    rates, waiting = {}, set(ways)
    while waiting:
        on = {link: [m for m in waiting if link in ways[m]] for link in room}
        share, full = min((room[link] / len(on[link]), str(link)) for link in room if on[link])
        stopped = [m for link in room if str(link) == full for m in on[link]]
        for message in stopped:
            rates[message] = share
            waiting.discard(message)
            for link in ways[message]:
                room[link] -= share
    return rates


def exact(network, sent):
    """Departures of (instant, worker, up, bytes), in fractions, from change to change."""
    ways = [links_of(network, worker, up) for _, worker, up, _ in sent]
    left = {place: Fraction(row[3]) for place, row in enumerate(sent)}
    ends, now = {}, Fraction(0)
    while left:
        rates = max_min({m: ways[m] for m in left if sent[m][0] <= now})
        later = [Fraction(sent[m][0]) for m in left if sent[m][0] > now]
        upcoming = min(later + [now + left[m] / rate for m, rate in rates.items()])
        for message, rate in rates.items():
            left[message] -= rate * (upcoming - now)
        now = upcoming
        for message in [m for m in rates if left[m] == 0]:
            ends[message] = float(now)
            del left[message]
    return [ends[m] for m in range(len(sent))]


def by_clocks(network, sent):
    """The same of the module."""
    star, ends = new_star(network, WORKERS, 1, len(sent)), {}
    waiting = [(row[0], place) for place, row in enumerate(sent)]
    while len(ends) < len(sent):
        departs_s = next_departure_s(star)
        if waiting and waiting[0][0] < departs_s:
            now_s, place = waiting.pop(0)
            _, worker, up, size = sent[place]
            join(star, place, worker, up, size, now_s)
        else:
            ends[depart(star)] = departs_s
    assert star.channels["messages"].tolist() == star.channels["loads"].tolist() == [0, 0]
    return [ends[m] for m in range(len(sent))]


@pytest.mark.parametrize("name", [name for name in TREES if name != "nodes"])
@pytest.mark.parametrize("seed", range(4))
def test_messages_depart_when_exact_fractions_say(name, seed):
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 40, (30, 2)).tolist()
    sent = sorted(
        (instant / 8, int(draw.integers(WORKERS)), bool(draw.integers(2)), 1.0 + size)
        for instant, size in rows
    )
    assert by_clocks(TREES[name], sent) == pytest.approx(exact(TREES[name], sent), rel=1e-12)


@pytest.mark.parametrize("name", TREES)
def test_equal_messages_that_start_together_depart_at_one_instant_in_that_order(name):
    star = new_star(TREES[name], WORKERS, 1, 1)
    for place, worker in enumerate((5, 0, 9, 13)):
        join(star, place, worker, False, 3.0, 0.5)
    together = []
    for _ in range(4):
        together.append((next_departure_s(star), depart(star)))
    assert [slot for _, slot in together] == [0, 1, 2, 3]
    assert len({time_s for time_s, _ in together}) == 1


def test_a_message_of_nothing_departs_at_once():
    star = new_star(TREES["nodes"], WORKERS, 1, 1)
    join(star, 0, 3, True, 8.0, 1.0)
    join(star, 1, 3, True, 0.0, 1.5)
    assert (next_departure_s(star), depart(star)) == (1.5, 1)
    assert (next_departure_s(star), depart(star)) == (3.0, 0)


def test_a_link_that_workers_own_links_cannot_fill_holds_nobody_up():
    wide, narrow = (Network((Level(1, 2.0), Level(4, b)), server=Level(1, 9.0)) for b in (8.0, 7.0))
    assert shape_of(wide, 1).rates == (2.0, float("inf"), 9.0)
    assert shape_of(narrow, 1).rates == (2.0, 7.0, 9.0)
    assert shape_of(narrow, 2) is None  # two messages of one worker meet on its own link


@pytest.mark.parametrize(
    "network",
    [
        Network((Level(2, 3.0), Level(4, 5.0)), server=Level(1, 9.0)),
        Network((Level(2, 3.0, duplex="half"),), server=Level(1, 9.0)),
        Network((), core_bandwidth_bytes_per_s=12.0, server=Level(1, 9.0)),
        Network((Level(1),), server=Level(1)),
    ],
    ids=["two levels between", "one direction between", "a core between", "no limit"],
)
def test_what_is_not_one_level_below_the_server_goes_the_general_way(network):
    assert shape_of(network, 1) is None
    assert len(new_star(network, 8, 1, 1).channels) == 0
