"""What all tests share: one thread a process, no clock over examples, what is imported once."""

import gc
import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from harness.base import forks

# Read when torch and numpy are first imported, which no plugin does before this file.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# A first call may compile, and machines are shared: examples may take their time to be drawn, too.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# No machine loses power while tests run, and a sync takes 10 ms: two thirds of the time of some.
# What a loss of power leaves is tested by what was recorded (`harness/store/crashes.py`).
os.fsync = lambda fd: None

# Half a million objects of torch and numba live as long as the tests do: a tenth of the time was
# spent on looking through them.
gc.set_threshold(20_000, 50, 50)

pytest_plugins = ["tests.invariants", "tests.portable.flips"]

forks.context(
    "harness.processes.rounds",
    "harness.processes.worker",
    "harness.processes.rank_main",
    "harness.kernels.preload",
    "harness.speech.sequence_task",
    "harness.modules.task",
    "harness.rollouts.task",
    "harness.experiment.run",
    "lagbench",
    "pyarrow.parquet",
    "reproductions.reproduce",
    "torch._dynamo",  # which torch imports at the first call of `vmap`: three seconds
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as nightly all cells but every n-th of a test that is ``sampled(n)``."""
    seen = Counter[str]()
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker(pytest.mark.nightly)
            seen[test] += 1


def pytest_collection_finish() -> None:
    gc.freeze()
