from __future__ import annotations

from dataclasses import replace

import pytest

from harness.simulator import Jitter, Simulation, Workload
from harness.simulator.cluster import Parallel
from harness.simulator.protocols.averaging import Averaging
from reproductions.paper2_ng_averaging.fit import Epoch, fit, simulate_epoch
from tests.harness.simulator.conftest import make_cluster

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)
TRUE = {"copy_s": 0.05, "epoch_s": 30.0, "slowdown": 1.25}
GUESS = {"copy_s": 0.2, "epoch_s": 5.0, "slowdown": 1.0}
PROTOCOL = Averaging(every=5)


@pytest.fixture
def simulate():
    def epoch(free, workers):
        machine = make_cluster(4, copy_s=free["copy_s"], jitter=Jitter("lognormal", 0.1))
        parallel = Parallel(free["slowdown"], 0.0, 4000, free["epoch_s"])
        return simulate_epoch(replace(machine, parallel=parallel), PROTOCOL, JOB, workers)

    return epoch


def test_a_fit_finds_the_parameters_that_made_the_epochs(simulate):
    found = fit([simulate(TRUE, n) for n in (1, 2, 4)], GUESS, simulate, most_workers=4)
    assert found.free == pytest.approx(TRUE, rel=1e-3)
    assert found.largest_error < 1e-3
    assert [epoch.workers for epoch in found.epochs] == [1, 2, 4]


def test_a_fit_refuses_what_is_to_be_predicted(simulate):
    epochs = [simulate(TRUE, n) for n in (1, 2, 8)]
    with pytest.raises(ValueError, match=r"\[8\] workers in a fit on at most 4"):
        fit(epochs, GUESS, simulate, most_workers=4)


def test_a_fit_refuses_more_parameters_than_figures(simulate):
    with pytest.raises(ValueError, match="3 free parameters for 1"):
        fit([simulate(TRUE, 1)], GUESS, simulate, most_workers=4)


def test_an_epoch_from_its_first_rounds_is_that_of_all_its_rounds():
    parallel = Parallel(1.2, 0.5, 4000, 20.0)
    machine = replace(make_cluster(4, copy_s=0.1, latency_s=0.01), parallel=parallel)
    quick = simulate_epoch(machine, PROTOCOL, JOB, 4)
    whole = Simulation(machine, PROTOCOL, JOB, 4)
    whole.advance(folds=200)
    assert quick.total_s == pytest.approx(whole.now_s, rel=1e-9)
    assert quick.messages_s == pytest.approx(200 * 6 * (0.01 + 0.1 * 8 / 4), rel=1e-9)
    assert simulate_epoch(machine, PROTOCOL, JOB, 1) == Epoch(1, pytest.approx(4020.0), 0.0)


def test_an_epoch_without_a_length_cannot_be_timed():
    with pytest.raises(ValueError, match="epoch_minibatches is 0"):
        simulate_epoch(make_cluster(2), PROTOCOL, JOB, 2)
