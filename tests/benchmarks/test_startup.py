"""How soon the command answers, and the simulator is there: beside the imports of others."""

import os
import subprocess
import sys

import pytest

from tests.benchmarks.conftest import ROOMS, find_planted

HELP = ("-m", "harness", "--help")
TORCH = ("-c", "import torch")
SIMULATOR = ("-c", "import harness.simulator.simulation")
NUMBA = ("-c", "import numba, scipy.stats, pyarrow.parquet")


def child_s(arguments: tuple[str, ...]) -> float:
    """Processor time of a fresh interpreter."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user - before.children_user
    return used + after.children_system - before.children_system


@pytest.mark.parametrize(
    ("ours", "other", "bound"),
    [(HELP, TORCH, 0.2), (SIMULATOR, NUMBA, 1.0)],
    ids=["help over torch", "simulator over numba"],
)
def test_a_start_over_an_import(benchmark, note, ours, other, bound):
    rounds = 3 if benchmark.enabled else 1
    pairs = [(child_s(ours), child_s(other)) for _ in range(rounds)]
    note(min(one for one, _ in pairs) / min(two for _, two in pairs), bound)


def test_what_is_planted_exists():
    assert all(callable(getattr(*find_planted(room))) for room in ROOMS)
