"""Kernels: whoever compiles them and whoever loads them compute the same bits."""

import os

import pytest

from tests import processes

SUMS = """
import numpy as np
from harness.acoustics.sums import occupancies
from harness.acoustics.graph import decoding_graph
from harness.acoustics.language_model import Lexicon
from harness.acoustics.language_model import train

draw = np.random.default_rng(0)
chains = {f"w{i:03d}": (tuple(draw.integers(0, 60, 9).tolist()),) for i in range(120)}
graph = decoding_graph(train([tuple(chains)], 1), Lexicon(chains, (0,)))
scores = draw.normal(size=(60, 60))
log_z, gamma = occupancies(graph, scores)
print(log_z.hex(), gamma.tobytes().hex())
"""


@pytest.mark.nightly
def test_a_process_that_compiles_and_one_that_loads_compute_the_same_bits(tmp_path):
    def computed():
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = processes.run(["-c", SUMS], environment=environment)
        assert done.returncode == 0, done.stderr
        return done

    compiled = computed().stdout
    kept = list(tmp_path.rglob("*.kernel"))
    assert kept
    assert computed().stdout == compiled
    assert list(tmp_path.rglob("*.kernel")) == kept
