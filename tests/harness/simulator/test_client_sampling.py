"""Federated rounds, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Compression, Host, WorkerGroup, Workload
from harness.simulator.network import Level, Network
from harness.simulator.protocols.client_sampling import ClientSampling
from harness.simulator.simulation import Simulation

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)


@pytest.fixture
def machine(cluster):
    def build(workers, jitter=None, faults=(), fold_s=0.0, **own):
        network = Network((Level(1, 4.0, 0.125),))
        groups = (WorkerGroup(workers, "unit", **own),)
        built = cluster(workers, jitter=jitter, fold_s=fold_s)
        return replace(built, network=network, workers=groups, faults=tuple(faults))

    return build


def test_a_round_is_a_download_minibatches_and_an_upload(machine):
    built = machine(6, up_bytes_per_s=1.0, down_bytes_per_s=8.0)
    timeline = Simulation(built, ClientSampling(2, every=3), JOB).advance(folds=2)
    each_s = 8 / 8 + 0.125 + 3.0 + 8 / 1 + 0.125
    assert timeline.folds.time_s.tolist() == [each_s, 2 * each_s]
    names = [timeline.kinds[kind] for kind in timeline.spans.kind[:3]]
    assert names == ["fetch", "compute", "push"]


def test_a_servers_narrow_link_is_shared_by_those_who_are_sent_the_model(machine):
    """Four downloads of eight bytes over four bytes a second: 8 s; so are four uploads."""
    built = replace(machine(9), network=Network((Level(1, 4.0),), server=Level(1, 4.0)))
    timeline = Simulation(built, ClientSampling(4, every=1), JOB).advance(folds=1)
    assert timeline.folds.time_s.tolist() == [8.0 + 1.0 + 8.0]


@pytest.mark.parametrize("shared", ["a limited core", "a half-duplex link of the server"])
def test_an_answer_shares_a_link_with_a_late_clients_model(machine, shared):
    """Client 1 takes 1 of 4 bytes a second for 8 s: client 0 has 3 for its model and its answer."""
    groups = tuple(
        WorkerGroup(1, "unit", down_bytes_per_s=rate, up_bytes_per_s=8.0) for rate in (8, 1)
    )
    if shared == "a limited core":
        network = Network((Level(1, 8.0),), core_bandwidth_bytes_per_s=4.0)
    else:
        network = Network((Level(1, 8.0),), server=Level(1, 4.0, duplex="half"))
    built = replace(machine(2), workers=groups, network=network)
    timeline = Simulation(built, ClientSampling(2, needed=1, every=1), JOB).advance(folds=1)
    assert timeline.folds.time_s[0] == pytest.approx(8 / 3 + 1.0 + 8 / 3, rel=1e-12)


def test_clients_are_drawn_evenly(machine):
    timeline = Simulation(machine(40), ClientSampling(10, every=1), JOB).advance(folds=400)
    often = np.bincount(timeline.folded().worker, minlength=40)
    assert abs(often - 100).max() < 5 * np.sqrt(100 * 0.75)


def test_compressed_answers_are_smaller_and_the_model_is_not(machine):
    built = replace(machine(3), compression=Compression(0.25, 8.0, 16.0))
    timeline = Simulation(built, ClientSampling(1, every=1), JOB).advance(folds=1)
    assert timeline.folds.time_s[0] == 2.125 + 1.0 + 1.0 + 0.625 + 0.5


def test_what_is_not_simulated_is_refused(machine):
    pageable = replace(machine(2), host=Host(staging="pageable", staging_bytes_per_s=1.0))
    with pytest.raises(UserError, match="'pageable'"):
        Simulation(pageable, ClientSampling(2), JOB)
    with pytest.raises(UserError, match="at most sampled"):
        ClientSampling(3, needed=4)
