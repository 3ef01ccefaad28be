"""Exponents that grids of staleness and rate read from runs which follow a law exactly."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from harness.store import Run
from reproductions.staleness_laws import BiasGrid, CollapseGrid

SCALES = (1.0, 2.0, 0.7)
"""A factor of each seed."""

BIAS = BiasGrid((1e-4, 2e-4), (1, 4))
COLLAPSE = CollapseGrid((2, 4, 16), (1e-3, 2e-3), (4e-3, 8e-3))


def run(summary: dict[str, float]) -> Run:
    return Run("hash", {}, "done", summary, "", Path())


def test_a_bias_like_staleness_and_the_root_of_the_rate_has_these_exponents():
    def summary(scale: float, rate: float) -> dict[str, float]:
        return {f"bias_square/{age}": scale * age**2 * rate for age in BIAS.ages}

    runs = {BIAS.name(rate): [run(summary(scale, rate)) for scale in SCALES] for rate in BIAS.rates}
    found = {name: each.estimate for name, each in BIAS.exponents(runs).items()}
    assert found["staleness alone"] == pytest.approx(1.0)
    assert found["rate alone"] == pytest.approx(0.5)
    rows = BIAS.rows(runs)
    assert [row.column for row in rows] == pytest.approx([0.1, 0.4, 0.2, 0.8])
    assert rows[1].measured == pytest.approx(np.sqrt(np.mean(SCALES) * 16 * 1e-4))


def test_collapses_after_one_over_the_rate_and_limits_of_one_over_the_staleness():
    def summary(scale: float, eta: int, rate: float) -> dict[str, float]:
        told = {"stable": 1.0, "clipped": 0.1 * scale}
        return told if eta * rate < 0.017 else {**told, "stable": 0.0, "collapse": scale / rate}

    cells = product(COLLAPSE.etas, COLLAPSE.rates)
    runs = {
        COLLAPSE.name(*cell): [run(summary(scale, *cell)) for scale in SCALES] for cell in cells
    }
    limits = COLLAPSE.limits(runs)
    assert limits.tolist() == [[8e-3, 4e-3, 1e-3]] * len(SCALES)
    assert COLLAPSE.limit(runs)["largest stable rate"].estimate == pytest.approx(-1.0)
    found = COLLAPSE.exponents(runs)
    assert found["η = 16"].estimate == pytest.approx(-1.0)
    assert np.isinf(found["η = 2"].high)  # nothing collapsed there
    assert COLLAPSE.clip_share(runs, [16]).estimate == pytest.approx(0.1 * np.mean(SCALES))
