"""The parameter server over a network: contention message by message."""

from dataclasses import replace

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator import Cluster, Device, Fault, WorkerGroup, Workload
from harness.simulator import star as star_module
from harness.simulator.cluster import Host, Jitter, Server
from harness.simulator.network import Level, Network
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation, describe_doubts
from tests.harness.simulator import simpy_network
from tests.harness.simulator.conftest import sequence

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
LOGNORMAL = Jitter("lognormal", 0.3)
SWITCHED = Network((Level(1, 40.0, 1e-3),), server=Level(1, 80.0, 2e-3))


@pytest.fixture
def run(cluster):
    """A parameter server on a network; a computation takes a second."""

    def build(network, workers=8, jitter=LOGNORMAL, host=None, faults=(), fold_s=0.05, **settings):
        plain = cluster(workers, jitter=jitter, network=network, faults=faults)
        machine = replace(plain, host=host or Host(), server=Server(fold_s, 0.0, jitter))
        return Simulation(machine, ParameterServer(**settings), JOB, workers, 3)

    return build


def with_sharing(network, sharing):
    return Network(
        network.levels, sharing, "rendezvous", network.core_bandwidth_bytes_per_s, network.server
    )


@pytest.fixture
def general(monkeypatch):
    """Fair messages go the general way, one by one, whatever the network."""
    monkeypatch.setattr(star_module, "layout_of", lambda *_: None)


@pytest.mark.usefixtures("general")
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_pageable_buffers_are_copied_once_more_on_both_sides(run, sharing):
    host = Host(staging="pageable", staging_bytes_per_s=16.0)
    simulation = run(with_sharing(SWITCHED, sharing), host=host)
    model = simpy_network.NetworkedModel(simulation.cluster, JOB, 8, 3)
    assert sequence(simulation.advance(folds=200)) == model.run(200)
    alone = run(with_sharing(SWITCHED, sharing), 1, Jitter(), host, fold_s=0.0)
    once_s = 1 + 2 * (0.5 + 8 / 40 + 3e-3)
    assert alone.advance(folds=1).folds.time_s[0] == pytest.approx(once_s, rel=1e-15)


def star(of_worker=None, of_server=None, sharing="fair", **server):
    return Network((Level(1, of_worker),), sharing, server=Level(1, of_server, **server))


@pytest.mark.parametrize("sharing", ["fifo", "fair"])
def test_a_contribution_that_fetches_nothing_is_pushed_with_all_its_bytes(run, sharing):
    """A worker under way twice fetches every other time; 8 bytes take 0.1 s at 80 a second."""
    network = with_sharing(star(40.0, 80.0), sharing)
    spans = run(network, 1, depth=2, fetch_every=2).advance(folds=50).spans
    pushes = spans.kind == 2
    assert pushes.sum() == 50
    assert (spans.end_s - spans.start_s)[pushes] == pytest.approx(8.0 / 40.0)


def test_a_network_without_a_servers_link_leaves_the_parameter_server_on_its_own_link(run):
    plain, joined = run(None), run(Network((Level(1, 1.0),)))
    assert plain.advance(folds=100).sha256() == joined.advance(folds=100).sha256()


def test_a_lost_message_is_sent_again_and_shares_the_links_again(run):
    faults = (Fault("message", probability=0.5, retry_s=10.0),)
    timeline = run(star(32.0), 1, Jitter(), faults=faults, fold_s=0.0).advance(folds=400)
    lost = (np.diff(timeline.folds.time_s, prepend=0.0) - 1.5) / 10.25
    assert lost == pytest.approx(np.round(lost), abs=1e-9)
    assert lost.mean() == pytest.approx(1.0, abs=0.2)  # p / (1 - p) a contribution


def test_a_protocol_that_knows_only_a_link_refuses_a_server_on_a_network(cluster):
    """Their copies would cost nothing where the file has no link."""
    with pytest.raises(UserError, match=r"network\.server: not simulated in protocol 'sequence'"):
        Simulation(cluster(4, network=star(1.0, 1.0)), "sequence", JOB)


def test_rounds_on_a_star_share_the_servers_link(cluster):
    """Four models at once take four copies' time on the server's link, and so do the gradients."""
    machine = cluster(4, network=star(1.0, 1.0))
    segment = Simulation(machine, "backup_workers", JOB).advance(folds=2)
    assert segment.folds.time_s.tolist() == [4 * 8 + 1 + 4 * 8, 2 * (4 * 8 + 1 + 4 * 8)]


def test_averaging_has_no_use_for_a_server_and_does_not_mind_one(cluster):
    machines = [cluster(4, network=Network((Level(1, 8.0),), server=s)) for s in (None, Level(1))]
    one, other = (Simulation(machine, "averaging", JOB, 4) for machine in machines)
    assert one.advance(folds=3).sha256() == other.advance(folds=3).sha256()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("sharing", ["fifo", "fair"])
@pytest.mark.parametrize("size", [0.0, 8.0])
def test_a_network_that_costs_nothing_is_serial(size, sharing, shards):
    """Nothing to carry over slow links, or much over links without a limit."""
    links = (Level(1, None), None) if size else (Level(1, 5.0), 7.0)
    network = Network(links[:1], sharing, server=Level(1, links[1]))
    machine = Cluster("free", {"u": Device()}, (WorkerGroup(5, "u"),), network=network)
    job = Workload(minibatch_frames=1, flops_per_frame=0.0, parameter_bytes=size)
    simulation = Simulation(machine, ParameterServer(shards=shards), job, 5)
    timeline = simulation.advance(folds=50)
    assert timeline.folded().worker.tolist() == list(range(5)) * 10
    assert set(timeline.staleness().tolist()) == {0}
    assert simulation.now_s == 0.0
    with pytest.raises(UserError, match="no time passes"):
        simulation.advance(seconds=1.0)


CARDS = {
    "a card a GPU": Network((Level(4, 50.0, links=4),), server=Level(1, 60.0)),
    "two cards a node": Network((Level(1, 90.0), Level(4, 40.0, links=2)), server=Level(1, 60.0)),
    "links inside": Network(
        (Level(1, 9.0, 0.5, inside=True), Level(4, 50.0)), server=Level(1, 60.0)
    ),
    "slow uplinks": Network(
        (Level(1, 20.0, down_bandwidth_bytes_per_s=50.0),),
        server=Level(1, 60.0, down_bandwidth_bytes_per_s=90.0),
    ),
}


@pytest.mark.parametrize("name", CARDS)
def test_by_clocks_cards_and_links_inside_a_node_are_what_they_are_message_by_message(
    run, name, monkeypatch
):
    by_clocks = run(CARDS[name])
    assert by_clocks._state.links.traffic is None
    monkeypatch.setattr(star_module, "layout_of", lambda *_: None)
    found, expected = (sequence(each.advance(folds=60)) for each in (by_clocks, run(CARDS[name])))
    assert [row[1:] for row in found] == [row[1:] for row in expected]
    assert [row[0] for row in found] == pytest.approx([row[0] for row in expected], rel=1e-12)


@pytest.mark.parametrize("depth", [1, 2])
def test_by_clocks_groups_with_links_of_their_own_are_what_they_are_message_by_message(
    cluster, depth, monkeypatch
):
    groups = (
        WorkerGroup(3, "unit", up_bytes_per_s=20.0, down_bytes_per_s=90.0),
        WorkerGroup(3, "unit", speed=0.5, up_bytes_per_s=4.0, down_bytes_per_s=9.0),
        WorkerGroup(2, "unit"),
    )
    plain = cluster(8, jitter=LOGNORMAL, network=star(40.0, 60.0))
    machine = replace(plain, workers=groups, server=Server(0.05, 0.0, LOGNORMAL))
    by_clocks = Simulation(machine, ParameterServer(depth=depth), JOB, 8, 3)
    assert by_clocks._state.links.traffic is None
    monkeypatch.setattr(star_module, "layout_of", lambda *_: None)
    general = Simulation(machine, ParameterServer(depth=depth), JOB, 8, 3)
    found, expected = (sequence(each.advance(folds=60)) for each in (by_clocks, general))
    assert [row[1:] for row in found] == [row[1:] for row in expected]
    assert [row[0] for row in found] == pytest.approx([row[0] for row in expected], rel=1e-12)


def test_messages_that_no_link_delays_are_told_of_where_the_network_would(cluster):
    way, free = Network((Level(1, 40.0),)), replace(JOB, parameter_bytes=0.0)
    asked = [
        *((cluster(network=way), protocol, JOB) for protocol in (ParameterServer(), Averaging())),
        *((cluster(network=network), ParameterServer(), JOB) for network in (SWITCHED, Network())),
        (cluster(network=Network((Level(4, latency_s=1.0),))), BackupWorkers(), JOB),
        (cluster(copy_s=0.1, network=way), ParameterServer(), JOB),
        (cluster(network=way), ParameterServer(), free),
    ]
    assert [len([*describe_doubts(*each, 2)]) for each in asked] == [1, 0, 0, 0, 1, 0, 0]
