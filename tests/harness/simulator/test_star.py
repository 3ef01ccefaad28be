import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.simulator.network import Level, Network, wire
from harness.simulator.star import depart, join, layout_of, new_star, next_departure_s
from tests.harness.simulator.fluid import departures_s
from tests.independent_messages import transfer

TREES = {
    "the server's link": Network((), server=Level(1, 8.0)),
    "links of their own": Network((Level(1, 2.0),), server=Level(1, 8.0)),
    "nodes": Network((Level(1, 4.0), Level(4, 6.0)), server=Level(1, 8.0)),
    "nodes and no other": Network((Level(4, 2.0),), server=Level(1, 64.0)),
    "one site": Network((Level(16, 4.0),), server=Level(1, 8.0)),
    "half duplex": Network((Level(4, 6.0, duplex="half"),), server=Level(1, 8.0, duplex="half")),
    "half duplex server": Network((Level(2, 3.0),), server=Level(1, 8.0, duplex="half")),
    "a slow core": Network((Level(4, 6.0),), core_bandwidth_bytes_per_s=4.0, server=Level(1, 8.0)),
    "slow uplinks": Network(
        (Level(1, 1.0, down_bandwidth_bytes_per_s=5.0),),
        server=Level(1, 8.0, down_bandwidth_bytes_per_s=16.0),
    ),
    "sites with slow uplinks": Network(
        (Level(4, 2.0, down_bandwidth_bytes_per_s=5.0),), server=Level(1, 8.0, duplex="half")
    ),
}
WORKERS = 16
GROUPS = {
    "none": None,
    "three groups": np.repeat([[2.0, 1.0, 0.5], [4.0, np.nan, 1.0]], (4, 8, 4), axis=1),
}
"""Rates of the workers' own links, up and down; nan where the level's holds."""
WITH_GROUPS = [
    *((name, "none") for name in TREES if name != "nodes"),
    *((name, "three groups") for name in ("links of their own", "slow uplinks")),
    ("links and a slow core", "three groups"),
]
TREES["links and a slow core"] = Network(
    (Level(1, 2.0),), core_bandwidth_bytes_per_s=4.0, server=Level(1, 8.0)
)


def links_of(network, own, worker, up):
    """The links of a message's way, by name, and their rates."""
    levels, direction = [*network.levels, network.server], "up" if up else "down"
    rates = {}
    for height, level in enumerate(levels):
        place = 0 if level is network.server else worker // level.workers_per_link
        way = "both" if level.duplex == "half" else direction
        rate = level.bandwidth_bytes_per_s
        rate = rate if up else level.down_bandwidth_bytes_per_s or rate
        theirs = np.nan if own is None or height else own[0 if up else 1][worker]
        rates[height, place, way] = rate if np.isnan(theirs) else theirs
    core = network.core_bandwidth_bytes_per_s
    return rates | ({"core": core} if core else {})


def by_clocks(network, own, sent, depth=None):
    """The same of the module, with so many messages of a worker under way, or all."""
    workers = WORKERS if own is None else own.shape[1]
    star, ends = new_star(network, workers, 1, depth or len(sent), own), {}
    waiting = [(row[0], place) for place, row in enumerate(sent)]
    while len(ends) < len(sent):
        departs_s = next_departure_s(star)
        if waiting and waiting[0][0] < departs_s:
            now_s, place = waiting.pop(0)
            _, worker, up, size = sent[place]
            join(star, place, worker, up, size, now_s)
        else:
            ends[depart(star)[0]] = departs_s
    assert star.channels["messages"].tolist() == star.channels["loads"].tolist() == [0, 0]
    return [ends[m] for m in range(len(sent))]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "groups"), WITH_GROUPS)
@pytest.mark.parametrize("seed", range(4))
def test_messages_depart_when_exact_fractions_say(name, groups, seed):
    network, own = TREES[name], GROUPS[groups]
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 40, (30, 2)).tolist()
    sent = sorted(
        (instant / 8, int(draw.integers(WORKERS)), bool(draw.integers(2)), 1.0 + size)
        for instant, size in rows
    )
    sent_s, _, _, sizes = zip(*sent, strict=True)
    ways = [links_of(network, own, worker, up) for _, worker, up, _ in sent]
    expected = [float(end_s) for end_s in departures_s(sent_s, ways, sizes)]
    assert by_clocks(network, own, sent) == pytest.approx(expected, rel=1e-12)


RATES = st.sampled_from([0.5, 1.0, 2.0, 5.0])
SERVERS = st.builds(
    Level,
    bandwidth_bytes_per_s=st.sampled_from([1.0, 3.0, 40.0]),
    down_bandwidth_bytes_per_s=st.sampled_from([None, 2.0]),
) | st.just(Level(1, 3.0, duplex="half"))
MESSAGE = st.tuples(st.integers(0, 20), st.integers(0, 5), st.booleans(), st.integers(1, 30))
MESSAGES = st.tuples(st.none(), st.lists(MESSAGE, min_size=1, max_size=12)) | st.tuples(
    st.just(1), st.lists(MESSAGE, min_size=1, unique_by=lambda row: row[1])
)
"""Contributions of a worker under way, all or one, and messages: instant, worker, up, bytes."""


@given(
    own=st.lists(st.tuples(RATES, RATES), min_size=6, max_size=6), server=SERVERS, messages=MESSAGES
)
def test_links_of_whatever_rates_of_their_own_are_what_they_are_one_by_one(own, server, messages):
    network, rates = Network((Level(1, 1.0),), server=server), np.array(own).T.copy()
    depth, rows = messages
    sent = sorted((instant / 4, worker, up, float(size)) for instant, worker, up, size in rows)
    sent_s, workers, ups, sizes = zip(*sent, strict=True)
    source, target = (np.where(np.array(ups) == way, workers, 6) for way in (True, False))
    arrived_s = transfer(wire(network, 6, 1, rates), sent_s, source, target, sizes)
    assert by_clocks(network, rates, sent, depth) == pytest.approx(arrived_s.tolist(), rel=1e-9)


@pytest.mark.parametrize("name", TREES)
def test_equal_messages_that_start_together_depart_at_one_instant_in_that_order(name):
    star = new_star(TREES[name], WORKERS, 1, 1)
    for place, worker in enumerate((5, 0, 9, 13)):
        join(star, place, worker, False, 3.0, 0.5)
    together = []
    for _ in range(4):
        together.append((next_departure_s(star), depart(star)[0]))
    assert [slot for _, slot in together] == [0, 1, 2, 3]
    assert len({time_s for time_s, _ in together}) == 1


def test_a_message_of_nothing_departs_at_once():
    star = new_star(TREES["nodes"], WORKERS, 1, 1)
    join(star, 0, 3, True, 8.0, 1.0)
    join(star, 1, 3, True, 0.0, 1.5)
    assert (next_departure_s(star), depart(star)[0]) == (1.5, 1)
    assert (next_departure_s(star), depart(star)[0]) == (3.0, 0)


def test_a_link_that_workers_own_links_cannot_fill_holds_nobody_up():
    wide, narrow = (Network((Level(1, 2.0), Level(4, b)), server=Level(1, 9.0)) for b in (8.0, 7.0))
    assert layout_of(wide, 8).caps.tolist() == [[2.0]]
    assert layout_of(narrow, 8).caps.tolist() == [[2.0, 2.0, 2.0, 7 / 4]]
    assert layout_of(narrow, 8, depth=2) is None  # two messages of a worker meet on its own link


def test_a_site_of_two_groups_goes_the_general_way_and_two_sites_of_one_each_do_not():
    sites = Network((Level(1), Level(2, 1.5)), server=Level(1, 9.0))
    mixed, apart = np.array([[1.0, 2.0, 1.0, 2.0]] * 2), np.array([[1.0, 1.0, 2.0, 2.0]] * 2)
    assert layout_of(sites, 4, own=mixed) is None
    assert layout_of(sites, 4, own=apart).caps.tolist() == [[1.0, 0.75], [1.5, 0.75]]


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
    assert layout_of(network, 8) is None
    assert new_star(network, 8, 1, 1) is None
