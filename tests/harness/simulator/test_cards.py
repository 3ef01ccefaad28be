"""A network card a GPU, rails, links of groups or of one direction: by hand and closed form."""

from dataclasses import replace

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Link, WorkerGroup, Workload
from harness.simulator.collectives import AllReduce, schedule
from harness.simulator.network import Level, Network, route, wire
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
NVLINK = Level(1, 16.0, 0.25, inside=True)
CARDS = Level(4, 2.0, 0.5, links=4)


def links_of(wiring, source, target):
    way = np.zeros(wiring.longest, np.int64)
    latency_s, links = route(wiring, source, target, way)
    return way[:links].tolist(), latency_s


def test_what_leaves_a_node_takes_the_senders_and_the_receivers_card_and_no_nvlink():
    nodes = wire(Network((NVLINK, CARDS)), 8)
    assert links_of(nodes, 1, 2) == ([1, 8 + 2], 0.25)
    up, down = nodes.up[1], nodes.down[1]
    assert links_of(nodes, 1, 6) == ([up + 1, down + 6], 0.5)


def test_two_gpus_may_have_a_card_between_them():
    nodes = wire(Network((replace(NVLINK, inside=False), replace(CARDS, links=2))), 8)
    up, down = nodes.up[1], nodes.down[1]
    for source, card in ((0, 0), (1, 0), (2, 1), (3, 1)):
        assert links_of(nodes, source, 7)[0] == [source, nodes.down[0] + 7, up + card, down + 3]


def test_only_what_changes_rails_passes_the_core():
    rails = wire(Network((NVLINK, CARDS), core_bandwidth_bytes_per_s=1.0, rails=True), 12)
    for source, target in ((0, 4), (3, 11), (1, 5)):
        assert rails.core not in links_of(rails, source, target)[0]
    for source, target in ((0, 5), (3, 8)):
        assert rails.core in links_of(rails, source, target)[0]
    assert rails.core not in links_of(rails, 0, 3)[0]  # of one node


def closed_form_s(near, groups, size):
    """Rings inside a node on 16 bytes/s, then of each card with its like on 2 bytes/s."""
    inside = 2 * (near - 1) * (0.25 + size / near / 16.0)
    return inside + 2 * (groups - 1) * (0.5 + size / (near * groups) / 2.0)


@pytest.mark.parametrize("groups", [1, 2, 3, 8])
@pytest.mark.parametrize("network", [{}, {"core_bandwidth_bytes_per_s": 1e-3, "rails": True}])
def test_two_levels_of_rings_use_every_card_and_no_core_of_rails(groups, network):
    wiring = wire(Network((NVLINK, CARDS), **network), 4 * groups)
    ends_s = AllReduce("two-level", wiring, group=4).ends_s(np.zeros(4 * groups), 64.0)
    assert ends_s == pytest.approx(closed_form_s(4, groups, 64.0), rel=1e-12)


def test_one_ring_over_all_uses_one_card_of_each_node():
    wiring = wire(Network((NVLINK, CARDS)), 8)
    ring_s = AllReduce("ring", wiring).ends_s(np.zeros(8), 64.0).max()
    assert ring_s == pytest.approx(2 * 7 * (0.5 + 8.0 / 2.0))
    assert ring_s > 3 * closed_form_s(4, 2, 64.0)


def test_workers_that_do_not_fill_their_groups_are_one_ring():
    found, ring = (schedule(name, 7, group=4).messages for name in ("two-level", "ring"))
    assert (found == ring).all()


def test_a_gather_sends_everything_to_everybody():
    wiring = wire(Network((Level(1, 4.0, 0.5),)), 5)
    assert AllReduce("gather", wiring).ends_s(np.zeros(5), 8.0, 0.125) == pytest.approx(
        4 * (0.5 + 8.0 / 4.0 + 8.0 * 0.125)
    )


def test_a_direction_may_be_slower_than_the_other():
    slow_up = wire(Network((Level(1, 1.0, down_bandwidth_bytes_per_s=8.0),)), 2)
    assert [slow_up.rate[link] for link in links_of(slow_up, 0, 1)[0]] == [1.0, 8.0]
    assert AllReduce("ring", slow_up).ends_s(np.zeros(2), 8.0).tolist() == [8.0, 8.0]


def test_a_groups_own_links_set_the_pace_of_a_ring(cluster):
    """Of four workers one sends at 1 byte/s and receives at 2; the others at 4 and 4."""
    slow = WorkerGroup(1, "unit", up_bytes_per_s=1.0, down_bytes_per_s=2.0)
    network = Network((Level(1, 4.0),), sending="buffered")
    built = replace(cluster(4), network=network, workers=(WorkerGroup(3, "unit"), slow))
    timeline = Simulation(built, Averaging(1), JOB).advance(folds=1)
    assert timeline.folds.time_s[0] == pytest.approx(1.0 + 6 * 2.0 / 1.0)
    quick = replace(built, workers=(WorkerGroup(3, "unit"), replace(slow, up_bytes_per_s=None)))
    timeline = Simulation(quick, Averaging(1), JOB).advance(folds=1)
    assert timeline.folds.time_s[0] == pytest.approx(1.0 + 6 * 2.0 / 2.0)


def test_a_groups_own_links_hold_on_the_way_to_a_server_with_or_without_a_network(cluster):
    """A round takes the others 0.25 + 1 + 1 + 1 + 0.25 s, the slow one 0.25 + 4 + 1 + 8 + 0.25."""
    slow = WorkerGroup(1, "unit", up_bytes_per_s=1.0, down_bytes_per_s=2.0)
    network = Network((Level(1, 8.0, 0.25),), server=Level())
    for parts in ({"network": network}, {"link": Link(0.25, 8.0)}):
        built = replace(cluster(3), workers=(WorkerGroup(2, "unit"), slow), **parts)
        timeline = Simulation(built, "parameter_server", JOB).advance(folds=7)
        assert timeline.folds.time_s.tolist() == [3.5, 3.5, 7.0, 7.0, 10.5, 10.5, 13.5]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Level(4, links=3), "divisors of workers_per_link, 4"),
        (lambda: Level(duplex="half", down_bandwidth_bytes_per_s=1.0), "duplex 'half'"),
        (lambda: Network((NVLINK,)), "not allowed at the highest level"),
        (lambda: Network((NVLINK, CARDS), rails=True), "core_bandwidth_bytes_per_s"),
    ],
)
def test_what_cannot_be_wired_is_refused(make, said):
    with pytest.raises(UserError, match=said):
        make()


def test_links_of_a_group_need_a_network_or_a_link_with_one_a_worker(cluster):
    own, link = (WorkerGroup(2, "unit", up_bytes_per_s=1.0),), Link(sharing="fifo")
    for network in (None, Network((Level(2, 1.0),)), Network((Level(1, 1.0, duplex="half"),))):
        with pytest.raises(UserError, match=r"workers\[0\].up_bytes_per_s"):
            replace(cluster(2), link=link, network=network, workers=own)
