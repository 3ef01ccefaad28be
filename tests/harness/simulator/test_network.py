from fractions import Fraction

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.base.settings import build
from harness.simulator.collectives import AllReduce
from harness.simulator.network import Level, Network, route, wire
from tests.harness.simulator.fluid import departures_s
from tests.independent_messages import transfer


def switched(workers=4, sharing="fair", **level):
    return wire(Network((Level(1, 1.0, **level),), sharing), workers)


def nodes(workers=8, inside=4.0, between=1.0, sharing="fair"):
    """Nodes of four workers."""
    levels = (Level(1, inside, 1e-3), Level(4, between, 1e-2))
    return wire(Network(levels, sharing), workers)


def way(wiring, source, target):
    links = np.zeros(wiring.longest, np.int64)
    latency_s, count = route(wiring, source, target, links)
    return links[:count].tolist(), latency_s


FIFO, STAR = switched(sharing="fifo"), Network((Level(1, 1.0),), server=Level(1, 1.0))
TREE = wire(Network((Level(1, 6.0), Level(2, 6.0))), 4)
"""Two cards a switch, two switches: only messages between switches share their links."""
SITES = wire(Network((Level(1, 1e10, 1e-6), Level(10, 1e8, 0.05))), 20)
BUS = wire(Network((), core_bandwidth_bytes_per_s=1.0), 4)
BY_HAND = {  # network, instants, sources, targets, bytes, arrivals
    "two into one": (switched(), [0, 0], [0, 1], [2, 2], [1, 1], [2.0, 2.0]),
    "one ends early": (switched(), [0, 0], [0, 1], [2, 2], [1, 3], [2.0, 4.0]),
    "one starts late": (switched(), [0, 1], [0, 1], [2, 2], [2, 2], [3.0, 4.0]),
    "in turn": (FIFO, [0, 0.5], [0, 1], [2, 2], [1, 3], [1.0, 4.0]),
    "in turn from one sender": (FIFO, [0, 0.5], [0, 0], [1, 2], [3, 1], [3.0, 4.0]),
    "in turn to one receiver": (FIFO, [0, 0.5], [0, 3], [1, 1], [3, 1], [3.0, 4.0]),
    "apart": (switched(), [0, 0], [0, 1], [1, 0], [1, 2], [1.0, 2.0]),
    "apart, in turn": (FIFO, [0, 0], [0, 1], [1, 0], [1, 2], [1.0, 2.0]),
    "half duplex": (switched(duplex="half"), [0, 0], [0, 1], [1, 0], [1, 1], [2.0, 2.0]),
    # three into worker 3 have 1/3 each, so the fourth of worker 0 has 2/3: 2 bytes in 3 s
    "what a bottleneck leaves": (
        switched(5), [0] * 4, [0, 1, 2, 0], [3, 3, 3, 4], [1.0, 1.0, 1.0, 2.0],
        pytest.approx([3.0] * 4),
    ),
    "latency alone": (
        wire(Network((Level(1, None, 0.25),)), 8), [1.0] * 3, [0, 1, 2], [5] * 3, [1e9] * 3,
        [1.25] * 3,
    ),
    "a node's port": (
        nodes(), [0] * 4, [0, 1, 2, 3], [4, 5, 6, 7], [1] * 4, pytest.approx([4.011] * 4)
    ),
    "within a node": (nodes(), [0, 0], [0, 2], [1, 3], [1, 1], pytest.approx([0.251] * 2)),
    "within switches": (TREE, [0, 0], [0, 2], [1, 3], [6, 6], [1.0, 1.0]),
    "between switches": (TREE, [0, 0], [0, 1], [2, 3], [6, 6], [2.0, 2.0]),
    "to a server": (wire(STAR, 4, 1), [0] * 4, [0, 1, 2, 3], [4] * 4, [1] * 4, [4.0] * 4),
    "to two shards": (wire(STAR, 4, 2), [0] * 4, [0, 1, 2, 3], [4, 4, 5, 5], [1] * 4, [2.0] * 4),
    "from a server": (wire(STAR, 4, 1), [0] * 4, [4] * 4, [0, 1, 2, 3], [1] * 4, [4.0] * 4),
    "sites far apart": (
        SITES, [0, 0], [0, 1], [1, 15], [1e8, 1e8], pytest.approx([0.01 + 1e-6, 1.05 + 1e-6])
    ),
    "one core": (BUS, [0, 0], [0, 2], [1, 3], [1, 1], [2.0, 2.0]),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND.values(), ids=BY_HAND)
def test_messages_arrive_when_they_do_by_hand(case):
    *messages, arrived_s = case
    assert transfer(*messages).tolist() == arrived_s


def test_a_way_leads_up_to_the_lowest_common_level_and_down():
    wiring = nodes(12)
    assert way(wiring, 0, 1) == ([0, 12 + 1], 1e-3)
    assert way(wiring, 1, 9) == ([1, 12 + 9, 24 + 0, 27 + 2], 1e-3 + 1e-2)
    assert wiring.full_duplex
    assert not switched(duplex="half").full_duplex


@pytest.mark.parametrize("seed", range(12))
def test_fair_shares_equal_a_brute_force_calculation_in_fractions(seed):
    draw = np.random.default_rng(seed)
    levels = (Level(1, 3.0, 0.5, ("full", "half")[seed % 2]), Level(4, 4.0, 0.25))
    network = Network(levels, core_bandwidth_bytes_per_s=5.0, server=Level(1, 2.0))
    wiring = wire(network, 8, shards=2)
    sent = (draw.integers(0, 24, 14) / 4).tolist()
    pairs = [draw.choice(10, 2, replace=False).tolist() for _ in range(14)]
    source, target = map(list, zip(*pairs, strict=True))
    size = (draw.integers(0, 40, 14) / 8).tolist()
    ways, latencies_s = zip(*(way(wiring, *pair) for pair in pairs), strict=True)
    rated = [{link: wiring.rate[link] for link in links} for links in ways]
    departed_s = zip(departures_s(sent, rated, size), latencies_s, strict=True)
    exact = [float(end_s + Fraction(latency_s)) for end_s, latency_s in departed_s]
    assert transfer(wiring, sent, source, target, size) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("sharing", ["fair", "fifo"])
def test_no_link_ever_carries_more_than_it_can(sharing):
    draw = np.random.default_rng(1)
    wiring, count = nodes(8, sharing=sharing), 200
    source = draw.integers(0, 8, count)
    target = (source + draw.integers(1, 8, count)) % 8
    sent, size = np.sort(draw.uniform(0, 20, count)), draw.uniform(0, 1, count)
    arrived = transfer(wiring, sent, source, target, size)
    for link, rate in enumerate(wiring.rate[: len(wiring.rate)].tolist()):
        crossing = [
            link in way(wiring, *pair)[0]
            for pair in zip(source.tolist(), target.tolist(), strict=True)
        ]
        if any(crossing):
            window_s = arrived[crossing].max() - sent[crossing].min()
            assert size[crossing].sum() <= rate * window_s * (1 + 1e-12)


def test_a_message_in_the_place_of_one_that_departed_is_not_taken_for_it():
    """Three ends by hand, where a slot's next message starts while rates are being found."""
    levels = (Level(1, 100.0), Level(2, 200.0, links=2))
    network = Network(levels, sending="buffered", core_bandwidth_bytes_per_s=200.0)
    exchange = AllReduce("two-level", wire(network, 4), 2)
    assert exchange.ends_s([3.0, 6.0, 1.0, 4.0], 400.0).max() == 14.0
    later = exchange.ends_s([3.0, 6.0, 1.0, 4.0 + 1e-6], 400.0).max()
    assert later == pytest.approx(14.0, abs=1e-5)


def test_levels_that_do_not_nest_are_refused():
    table = {"levels": [{"workers_per_link": 4}, {"workers_per_link": 6}]}
    with pytest.raises(UserError, match=r"a.toml: network.levels\[1\].workers_per_link: 6 is not"):
        build(Network, table, "a.toml", "network")
