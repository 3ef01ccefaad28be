"""What a setting changes: hashes of one fixed computation of each library, as JSON.

``python -m tests.portable.probes``; the settings are those of its own environment.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from harness.acoustics.dnn import Dnn
from harness.acoustics.stack import Layout
from harness.algorithms.contract import Minibatch
from harness.algorithms.local_descent import descend
from harness.algorithms.ng_estimate import Preconditioner
from harness.algorithms.ng_layer import NaturalGradient
from tests.portable.flips import flip_bases_of_environment

DRAWS = np.random.Generator(np.random.Philox(0)).standard_normal((4, 200, 200))


def _numpy() -> np.ndarray:
    return np.stack([np.exp(DRAWS), np.log(np.abs(DRAWS)), np.cos(DRAWS)])


def _openblas() -> np.ndarray:
    """Products, and sums of products: these are taken as many at a time as registers hold."""
    return np.append(DRAWS[0] @ DRAWS[1], [row @ row for row in DRAWS[0]])


def _torch() -> Tensor:
    x = torch.from_numpy(DRAWS)
    return torch.cat([x.sigmoid(), x.exp(), x.softmax(2), x.float().tanh()])


def _mkl() -> Tensor:
    x = torch.from_numpy(DRAWS).float()
    return torch.bmm(x[:2], x[2:])


def _eigh() -> Tensor:
    x = torch.from_numpy(DRAWS[:, :40])
    return torch.linalg.eigh(torch.bmm(x, x.mT))[1]


@numba.njit(fastmath=True)
def _sum(values: np.ndarray) -> float:
    total = 0.0
    for value in values:
        total += value * value
    return total


def _numba() -> np.ndarray:
    return np.array([_sum(row) for row in DRAWS.reshape(-1, 200)])


def _libm() -> np.ndarray:
    return np.array([math.cos(8 * x) + math.exp(x) for x in DRAWS.ravel().tolist()])


def _training() -> Tensor:
    """Parameters after twenty steps of natural gradient."""
    layout, draw = Layout((20, 30, 30, 10)), torch.Generator().manual_seed(0)
    stack = 0.3 * torch.randn(2, layout.parameters, generator=draw)
    x = torch.randn(20, 2, 64, 20, generator=draw)
    y = torch.randint(0, 10, (20, 2, 64), generator=draw)
    minibatches = [Minibatch(*each) for each in zip(x, y, strict=True)]
    options = NaturalGradient(Preconditioner(5), Preconditioner(5))
    descend(options, Dnn(layout), stack, minibatches, 0.01, options.start(layout.sizes, 2))
    return stack


PROBES: dict[str, Callable[[], Any]] = {
    "numpy": _numpy,
    "openblas": _openblas,
    "torch": _torch,
    "mkl": _mkl,
    "eigh": _eigh,
    "numba": _numba,
    "libm": _libm,
    "training": _training,
}


def hashes() -> dict[str, str]:
    """The bytes of every probe, hashed."""
    found = ((name, np.ascontiguousarray(probe())) for name, probe in PROBES.items())
    return {name: hashlib.sha256(values.data).hexdigest() for name, values in found}


if __name__ == "__main__":
    flip_bases_of_environment()
    print(json.dumps(hashes()))
