from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.portable.flips import ENVIRONMENT, flip_bases
from tests.portable.probes import hashes

SYMMETRIC = np.diag([1.0, 2.0, 2.0, 2.0, 5.0])
"""One direction, three that are alike, one."""


@pytest.fixture(params=[1, 2, 3])
def flipped(request, monkeypatch):
    flip_bases(monkeypatch, request.param)


@pytest.mark.usefixtures("flipped")
def test_turned_decompositions_are_decompositions():
    matrix = np.random.default_rng(0).standard_normal((2, 5, 3))
    for library, of in ((np.linalg, np.asarray), (torch.linalg, torch.from_numpy)):
        values, vectors = map(np.asarray, library.eigh(of(SYMMETRIC)))
        np.testing.assert_allclose(vectors @ np.diag(values) @ vectors.T, SYMMETRIC, atol=1e-14)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(5), atol=1e-14)
        u, values, v = map(np.asarray, library.svd(of(matrix), full_matrices=False))
        np.testing.assert_allclose(u * values[:, None, :] @ v, matrix, atol=1e-14)
        q, r = map(np.asarray, library.qr(of(matrix)))
        np.testing.assert_allclose(q @ r, matrix, atol=1e-14)
        assert not np.tril(r, -1).any()


def test_signs_and_equal_directions_differ_from_seed_to_seed():
    found = []
    for seed in range(8):
        with pytest.MonkeyPatch.context() as patch:
            flip_bases(patch, seed)
            found.append(np.linalg.eigh(SYMMETRIC)[1])
    assert {float(vectors[0, 0]) for vectors in found} == {-1.0, 1.0}
    assert len({float(vectors[1, 1]) for vectors in found}) == 8
    assert all(np.abs(vectors[4, :4]).max() == 0.0 for vectors in found), "no direction mixes"


@pytest.mark.usefixtures("flipped")
def test_the_same_matrix_is_turned_the_same_way():
    draw = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(0))
    gram = draw @ draw.mT
    together = torch.linalg.eigh(gram)[1]
    assert torch.equal(torch.linalg.eigh(gram)[1], together)
    assert torch.equal(torch.linalg.eigh(gram[:1])[1], together[:1])


IN_A_GRID = """
from concurrent.futures import ProcessPoolExecutor
from harness.base import forks as forked
from tests.portable.probes import hashes

if __name__ == "__main__":
    with ProcessPoolExecutor(1, forked.context("harness.grid.grid")) as pool:
        print(pool.submit(hashes, ["eigh"]).result()["eigh"])
"""


def test_processes_that_train_compute_with_the_turned_bases_of_their_command(tmp_path, monkeypatch):
    (tmp_path / "in_a_grid.py").write_text(IN_A_GRID)
    paths = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.portable.flipped", "in_a_grid"],
        env={**os.environ, "PYTHONPATH": paths, ENVIRONMENT: "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    straight = hashes(["eigh"])
    flip_bases(monkeypatch, 3)
    assert hashes(["eigh"]) != straight
    assert hashes(["eigh"]) == {"eigh": done.stdout.strip()}
