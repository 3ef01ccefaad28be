"""Why paper 2's epochs on 8, 16 and 32 GPUs are simulated too short."""

from itertools import product

import numpy as np
import pytest

from reproductions.paper2_ng_averaging.prediction import (
    EVERY,
    REPORTED,
    averaging,
    cluster,
    load_fit,
    workload,
)
from tests.reproductions.epochs import simulate_epoch

GPUS = np.array(REPORTED["timings"]["gpus"][1:])
MINIBATCHES = 94922
HALF_UNIT = 0.05


def minutes(name: str) -> tuple[np.ndarray, np.ndarray]:
    """In MPI and outside it, on 2 to 32 GPUs."""
    total, mpi = (np.array(REPORTED[name][key][1:]) for key in ("total_min", "mpi_min"))
    return mpi, total - mpi


def round_s(mpi_min: np.ndarray) -> np.ndarray:
    return 60.0 * mpi_min / (MINIBATCHES / (GPUS * EVERY))


def simulated() -> tuple[np.ndarray, np.ndarray]:
    machine = cluster(load_fit().free)
    epochs = [simulate_epoch(machine, averaging(), workload(), int(n)) for n in GPUS]
    mpi = np.array([epoch.messages_s for epoch in epochs]) / 60.0
    return mpi, np.array([epoch.total_s for epoch in epochs]) / 60.0 - mpi


def test_what_is_missing_is_partly_in_mpi_and_partly_outside():
    (mpi, outside), (known, beside) = simulated(), minutes("timings")
    assert (mpi - known)[2:] == pytest.approx([-0.40, -0.49, -0.34], abs=0.01)
    assert (outside - beside)[2:] == pytest.approx([-0.48, -0.17, -0.16], abs=0.01)


def test_two_exchanges_that_share_only_their_rounds_grow_alike():
    """An all-reduce sends 2(N - 1)/N of the model, a butterfly's round the same for any N."""
    all_reduce, butterfly = (round_s(minutes(n)[0]) for n in ("timings", "timings_butterfly"))
    sent = 2.0 * (GPUS - 1) / GPUS
    by_bytes = all_reduce[0] + np.diff(all_reduce[:2]) * (sent - sent[0]) / np.diff(sent[:2])
    beyond, growth = all_reduce - by_bytes, butterfly - butterfly[:2].mean()
    assert 1e3 * beyond[2:] == pytest.approx([22, 54, 76], abs=0.5)
    assert 1e3 * growth[2:] == pytest.approx([10, 58, 74], abs=0.5)
    assert np.abs(beyond - growth)[2:].max() < 0.012
    assert np.abs(beyond - growth)[3:].max() < 0.005


def test_rounding_of_the_fitted_timings_explains_what_is_missing_outside_mpi_but_on_8():
    _, outside = minutes("timings")
    signs = np.array(list(product((-1, 1), repeat=2)))
    fitted_to = outside[:2] + 2.0 * HALF_UNIT * signs  # a total and a part, each to 0.1 minutes
    fixed = 2.0 * fitted_to[:, 1] - fitted_to[:, 0]
    foretold = (2.0 * (fitted_to[:, 0] - fixed))[:, None] / GPUS[2:] + fixed[:, None]
    assert (fixed.min(), fixed.max()) == pytest.approx((2.4, 3.0), abs=0.01)
    within = foretold.max(axis=0) >= outside[2:]
    assert within.tolist() == [False, True, True]
    assert outside[2] - foretold[:, 0].max() == pytest.approx(0.3, abs=0.05)
    eight = minutes("timings_butterfly")[1][2]
    assert eight == pytest.approx(outside[2], abs=0.05)
