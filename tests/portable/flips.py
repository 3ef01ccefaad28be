"""Another LAPACK: bases whose signs and degenerate directions are drawn anew (``--flip-bases``).

An eigenvector may be negated, and where eigenvalues are equal any rotation of their vectors is as
good. Libraries and processors choose differently; what is right must not depend on it. Under
``--flip-bases SEED`` every decomposition gives another of its correct answers. The answer is a
function of the seed and the matrix, so what is promised to be equal bytes on one machine stays so.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

Turn = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From a matrix and its values, one a column of the basis, to an orthogonal ``[k, k]``."""


ENVIRONMENT = "LAGBENCH_FLIP_BASES"
"""Where a seed stands for processes that have no options; the option's default."""


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = f"another sign or turn for every basis of a decomposition (or {ENVIRONMENT}=SEED)"
    default = os.environ.get(ENVIRONMENT)
    parser.addoption("--flip-bases", type=int, default=default, metavar="SEED", help=help_)


@pytest.fixture(autouse=True)
def flipped_bases(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of the session under ``--flip-bases SEED``."""
    seed = request.config.getoption("--flip-bases")
    with pytest.MonkeyPatch.context() as patch:
        if seed is not None:
            flip_bases(patch, seed)
        yield


def flip_bases(patch: pytest.MonkeyPatch, seed: int) -> None:
    """Put turned decompositions in the place of numpy's and torch's."""
    for library in (np.linalg, torch.linalg):
        for name, parts in (("eigh", _eigh), ("svd", _svd), ("qr", _qr)):
            patch.setattr(library, name, _turned(getattr(library, name), parts, turns(seed)))


def turns(seed: int) -> Turn:
    """Random turns: a function of the seed and the matrix's bytes."""

    def turn(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
        digest = hashlib.sha256(f"{seed}".encode() + np.ascontiguousarray(matrix).tobytes())
        rng = np.random.Generator(np.random.Philox(int.from_bytes(digest.digest()[:16], "little")))
        found = np.diag(rng.choice([-1.0, 1.0], len(values)))
        for own in _equal(values, max(matrix.shape)):
            found[own, own] = _rotation(rng, own.stop - own.start)
        return found

    return turn


def _equal(values: np.ndarray, size: int) -> Iterator[slice]:
    """Runs of neighbouring values that rounding cannot tell apart."""
    near = np.abs(np.diff(values)) <= size * np.finfo(values.dtype).eps * np.abs(values).max()
    edges = np.flatnonzero(np.diff(np.concatenate(([False], near, [False]))))
    yield from (slice(a, b + 1) for a, b in edges.reshape(-1, 2))


def _rotation(rng: np.random.Generator, size: int) -> np.ndarray:
    """An orthogonal matrix, by Householder reflections along random directions."""
    found = np.eye(size)
    for axis in rng.standard_normal((size, size)):
        found -= 2.0 * np.outer(found @ axis, axis) / (axis @ axis)
    return found


def _turned(original: Any, turned: Callable[..., Any], turn: Turn) -> Any:
    """A decomposition whose parts are ``turned(each, *parts)``.

    ``each`` gives the turns ``[..., k, k]`` of a batch for values ``[..., k]``.
    """

    def decompose(matrix: Any, *args: Any, **options: Any) -> Any:
        found = original(matrix, *args, **options)
        if not isinstance(found, tuple):
            return found  # values without a basis
        flat = np.asarray(matrix).reshape(-1, *matrix.shape[-2:])

        def each(values: np.ndarray) -> np.ndarray:
            k = values.shape[-1]
            turns_ = [turn(m, v) for m, v in zip(flat, values.reshape(-1, k), strict=True)]
            return np.array(turns_, values.dtype).reshape(*values.shape[:-1], k, k)

        parts = turned(each, *(np.asarray(part).copy() for part in found))
        if isinstance(matrix, torch.Tensor):
            return type(found)([torch.from_numpy(part) for part in parts])
        return type(found)(*parts)

    return decompose


def _eigh(each: Any, values: np.ndarray, vectors: np.ndarray) -> Any:
    return values, vectors @ each(values)


def _svd(each: Any, u: np.ndarray, values: np.ndarray, v: np.ndarray) -> Any:
    k, by = values.shape[-1], each(values)
    u[..., :k] = u[..., :k] @ by
    v[..., :k, :] = np.swapaxes(by, -1, -2) @ v[..., :k, :]
    return u, values, v


def _qr(each: Any, q: np.ndarray, r: np.ndarray) -> Any:
    """Directions follow from the order of the columns; signs are free."""
    k = min(q.shape[-1], r.shape[-2])
    distinct = np.broadcast_to(np.arange(k, dtype=r.dtype), (*r.shape[:-2], k))
    signs = np.diagonal(each(distinct), axis1=-2, axis2=-1)
    q[..., :k] *= signs[..., None, :]
    r[..., :k, :] *= signs[..., :, None]
    return q, r
