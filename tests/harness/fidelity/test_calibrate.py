import tomllib
from pathlib import Path

import numpy as np
import pytest

from harness.fidelity import calibrate as measure
from harness.fidelity.calibrate import (
    Calibration,
    Measurement,
    calibrate,
    cluster_text,
    fit_costs,
)
from harness.simulator.cluster import Workload, cluster_from
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation

PRICES = np.array([2e-5, 3e-12])


def points(noise: float, seed: int = 1) -> list[Measurement]:
    draws = np.random.default_rng(seed)
    terms = [(1.0, 10.0**k) for k in range(3, 10)]
    return [Measurement(t, np.dot(t, PRICES) * draws.lognormal(0.0, noise, 40)) for t in terms]


def test_prices_that_made_the_timings_are_found_again_exactly_where_nothing_varies() -> None:
    for price, found in zip(PRICES, fit_costs(points(0.0)), strict=True):
        assert found == pytest.approx(price, rel=1e-9)
    for price, found in zip(PRICES, fit_costs(points(0.1)), strict=True):
        assert found == pytest.approx(price, rel=0.1)


def test_no_price_is_negative_where_a_term_costs_nothing() -> None:
    flat = [Measurement((1.0, float(k)), np.full(5, 1e-3 - 1e-6 * k)) for k in range(1, 9)]
    assert fit_costs(flat)[1] == 0.0


def test_a_cluster_file_says_what_was_fitted(tmp_path: Path) -> None:
    values = (1e-5, 2e-11, 8.0, 1e-4, 5e-10, 3e-6, 1e-11)
    found = Calibration(*values, cv=0.05)
    text = cluster_text(found, 3, "x")
    cluster = cluster_from(tomllib.loads(text), tmp_path)
    device = cluster.devices["this"]
    assert (device.launch_s, device.half_rate_frames) == (1e-5, 8.0)
    assert device.achieved_flops_per_s == 5e10
    assert cluster.link.latency_s == 1e-4
    assert cluster.link.bandwidth_bytes_per_s == 2e9
    assert cluster.host.memory_bytes_per_s is not None
    assert cluster.network is not None
    (level,) = cluster.network.levels
    assert (level.latency_s, level.bandwidth_bytes_per_s) == (1e-4, 2e9)
    assert cluster.server.fold_traffic / cluster.host.memory_bytes_per_s == pytest.approx(1e-11)


def test_a_price_of_zero_leaves_the_rate_out(tmp_path: Path) -> None:
    text = cluster_text(Calibration(*[0.0] * 7, cv=0.0), 1, "x")
    cluster = cluster_from(tomllib.loads(text), tmp_path)
    assert cluster.link.bandwidth_bytes_per_s is None


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_simulated_average_is_made_of_the_messages_that_were_measured(workers: int) -> None:
    alpha, beta, add, size = 2e-4, 4e-10, 1e-11, 4_000_000
    found = Calibration(0.0, 0.0, 0.0, alpha, beta, 0.0, add, cv=0.0)
    cluster = cluster_from(tomllib.loads(cluster_text(found, workers, "x")), Path())
    work = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=size)
    times = Simulation(cluster, Averaging(1), work, workers, 0).advance(folds=3).folds.time_s
    bytes_each = size * (workers - 1) / workers
    one = 2 * (workers - 1) * alpha + bytes_each * (2 * beta + add)
    assert np.diff(times) == pytest.approx(one, rel=1e-3)


def test_this_machine_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # The larger network's products take some milliseconds: of less, a busy machine says nothing.
    small = {"MINIBATCHES": (1, 64), "BYTES": (4_000, 400_000), "REPEATS": 4}
    for name, value in {**small, "SMALL": (40, 30, 20), "LARGE": (40, 1000, 20)}.items():
        monkeypatch.setattr(measure, name, value)
    found = calibrate(lambda line: None)
    assert found.seconds_per_flop > 0.0
    assert found.fold_s >= 0.0
    assert found.latency_s > 0.0
