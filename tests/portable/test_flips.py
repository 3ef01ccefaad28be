from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.portable.flips import flip_bases

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
