from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from harness.execution.calibrate import (
    Calibration,
    Fitted,
    Measured,
    calibrate,
    cluster_text,
    fitted,
)
from harness.simulator.cluster import cluster_from

PRICES = np.array([2e-5, 3e-12])


def points(noise: float, seed: int = 1) -> list[Measured]:
    draws = np.random.default_rng(seed)
    terms = [(1.0, 10.0**k) for k in range(3, 10)]
    return [Measured(t, np.dot(t, PRICES) * draws.lognormal(0.0, noise, 40)) for t in terms]


def test_prices_that_made_the_timings_are_found_again_exactly_where_nothing_varies() -> None:
    for price, found in zip(PRICES, fitted(points(0.0)), strict=True):
        assert found.value == pytest.approx(price, rel=1e-9)
        assert found.low == pytest.approx(found.high, rel=1e-9)


def test_the_intervals_cover_the_prices_about_as_often_as_they_say() -> None:
    fits = [fitted(points(0.1, seed)) for seed in range(40)]
    covered = [f.low <= p <= f.high for fit in fits for p, f in zip(PRICES, fit, strict=True)]
    assert 0.85 <= np.mean(covered) <= 1.0


def test_the_interval_grows_with_the_variation() -> None:
    for quiet, loud in zip(fitted(points(0.02)), fitted(points(0.2)), strict=True):
        assert loud.high - loud.low > quiet.high - quiet.low


def test_no_price_is_negative_where_a_term_costs_nothing() -> None:
    flat = [Measured((1.0, float(k)), np.full(5, 1e-3 - 1e-6 * k)) for k in range(1, 9)]
    assert fitted(flat)[1].value == 0.0


def test_a_cluster_file_says_what_was_fitted(tmp_path: Path) -> None:
    values = (1e-5, 2e-11, 8.0, 1e-4, 5e-10, 3e-6, 1e-11)
    a, b, c, d, e, f, g = (Fitted(x, 0.9 * x, 1.1 * x) for x in values)
    text = cluster_text(Calibration(a, b, c, d, e, f, g, 0.05), 3, "x")
    cluster = cluster_from(tomllib.loads(text), tmp_path)
    device = cluster.devices["this"]
    assert (device.launch_s, device.half_rate_frames) == (1e-5, 8.0)
    assert device.achieved_flops_per_s == 5e10
    assert cluster.link.latency_s == 1e-4
    assert cluster.link.bandwidth_bytes_per_s == 2e9
    assert cluster.host.memory_bytes_per_s is not None
    assert cluster.server.fold_traffic / cluster.host.memory_bytes_per_s == pytest.approx(1e-11)


def test_a_price_of_zero_leaves_the_rate_out(tmp_path: Path) -> None:
    no = Fitted(0.0, 0.0, 0.0)
    text = cluster_text(Calibration(no, no, no, no, no, no, no, 0.0), 1, "x")
    cluster = cluster_from(tomllib.loads(text), tmp_path)
    assert cluster.link.bandwidth_bytes_per_s is None


def test_this_machine_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MINIBATCHES": (1, 8), "BYTES": (4_000, 400_000), "REPEATS": 4}.items():
        monkeypatch.setattr(f"harness.execution.calibrate.{name}", value)
    monkeypatch.setattr("harness.execution.calibrate.SMALL", (40, 30, 20))
    monkeypatch.setattr("harness.execution.calibrate.LARGE", (40, 60, 20))
    monkeypatch.setattr("harness.execution.calibrate._copying", lambda: points(0.1))
    found = calibrate(lambda line: None)
    assert found.seconds_per_flop.value > 0.0
    assert found.fold_s.value >= 0.0
    assert found.latency_s.value > 0.0
