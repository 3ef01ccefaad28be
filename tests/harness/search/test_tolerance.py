from dataclasses import replace

import numpy as np
import pytest

from harness.algorithms.catalogue import AsyncSgd, GradientAveraging, ModelAveraging
from harness.base.errors import UserError
from harness.search.knobs import KNOBS, knob_of
from harness.simulator.cluster import Cluster, Device, Jitter, Link, WorkerGroup, Workload
from harness.simulator.network import Level, Network, route, wire
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation

CLUSTER = Cluster("c", {"d": Device(launch_s=1.0)}, (WorkerGroup(2, "d"),), link=Link(0.5))


def test_a_delay_and_losses_are_put_into_the_cluster():
    assert KNOBS["delay"].turned(CLUSTER, 2.0).link.latency_s == 2.5
    (fault,) = KNOBS["loss"].turned(CLUSTER, 0.25).faults
    assert (fault.kind, fault.probability, fault.retry_s) == ("message", 0.25, 1.0)
    assert KNOBS["loss"].turned(CLUSTER, 0.0) == KNOBS["workers"].turned(CLUSTER, 7) == CLUSTER


NETWORKS = [
    Network((), server=Level(latency_s=0.3)),
    Network((Level(latency_s=0.1),)),
    Network((Level(latency_s=0.1), Level(4, latency_s=0.2)), server=Level(latency_s=0.3)),
    Network((Level(inside=True), Level(4, latency_s=0.2)), server=Level()),
    Network((Level(1, inside=True), Level(2, inside=True), Level(4), Level(8, latency_s=0.7))),
]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_delay_is_added_once_to_the_way_of_every_message(network):
    """Between any two workers, and between each and the server; asked of the ways themselves."""
    later = KNOBS["delay"].turned(replace(CLUSTER, network=network), 1.5).network
    shards = 1 if network.server else 0
    ways = [wire(each, 16, shards) for each in (network, later)]
    workers = range(16) if network.levels else ()
    pairs = [(a, b) for a in workers for b in workers if a != b]
    pairs += [pair for worker in range(16 * shards) for pair in ((worker, 16), (16, worker))]
    for source, target in pairs:
        before, after = (route(w, source, target, np.zeros(w.longest, np.int64))[0] for w in ways)
        assert after == pytest.approx(before + 1.5)
    assert KNOBS["delay"].turned(replace(CLUSTER, network=network), 0.0).network == network


@pytest.mark.parametrize("network", [n for n in NETWORKS if n.server])
def test_a_lost_message_is_sent_again_by_the_latency_of_its_own_way(network):
    (fault,) = KNOBS["loss"].turned(replace(CLUSTER, network=network), 0.25).faults
    wiring = wire(network, 16, 1)
    way_s = route(wiring, 3, 16, np.zeros(wiring.longest, np.int64))[0]
    assert fault.retry_s == pytest.approx(max(2 * way_s, 1e-6))


@pytest.mark.parametrize(
    ("algorithm", "protocol", "workers", "network", "reached"),
    [
        (AsyncSgd(), ParameterServer(), 2, None, True),
        (AsyncSgd(), ParameterServer(), 1, Network((), server=Level()), True),
        (GradientAveraging(), BackupWorkers(1), 2, None, True),
        (ModelAveraging(), Averaging(2), 4, Network((Level(), Level(8))), True),
        (ModelAveraging(), Averaging(2), 1, None, False),
        (ModelAveraging(), Averaging(2), 4, Network((), server=Level()), False),
        (ModelAveraging(), Averaging(2), 4, Network((Level(8),)), False),
    ],
)
def test_a_delay_that_meets_no_message_is_refused(
    algorithm, protocol, workers, network, reached, configure
):
    knob = KNOBS["delay"]
    least, most = (
        configure(
            algorithm=algorithm,
            protocol=protocol,
            workers=workers,
            cluster=knob.turned(replace(CLUSTER, network=network), value),
        )
        for value in (0.0, 1e-3)
    )
    if reached:
        knob.check_reach(least, most)
        return
    with pytest.raises(UserError, match=r"tolerate: delay: no message of averaging with . of"):
        knob.check_reach(least, most)


@pytest.mark.parametrize("value", [0, 1, 7])
def test_staleness_is_exact_once_every_worker_has_read_a_model_in_its_turn(value):
    varied = replace(CLUSTER, jitter=Jitter("lognormal", 0.5), heterogeneity_cv=0.3)
    cluster, workers = KNOBS["staleness"].apply(varied, 2, value)
    timeline = Simulation(cluster, ParameterServer(), Workload(8, 0.0, 4.0), workers).advance(
        folds=100
    )
    assert set(timeline.staleness()[value:]) == {value}
    assert [*timeline.staleness()[:value]] == [*range(value)]


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match=r"what: unknown 'dealy' \(did you mean 'delay'"):
        knob_of("dealy")
    KNOBS["staleness"].check(AsyncSgd())
    with pytest.raises(UserError, match="staleness: ModelAveraging folds in rounds"):
        KNOBS["staleness"].check(ModelAveraging())
