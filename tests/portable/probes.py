"""What a setting changes: hashes of one fixed computation of each library, as JSON.

``python -m tests.portable.probes``; the settings are those of its own environment.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from harness.acoustics.graph import Lexicon
from harness.acoustics.language_model import train
from harness.acoustics.mmi import Criterion, References, SequenceCriterion
from harness.algorithms.descent import PLAIN, descend
from harness.natural_gradient import NaturalGradient, Preconditioner
from harness.networks.contract import Minibatch
from harness.networks.feedforward import Dnn, Layout
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


LAYOUT = Layout((195, 128, 128, 128, 300))
"""As presets have: libraries choose their code by size."""


def _training() -> Tensor:
    """Plain steps of frames."""
    networks = [Dnn(LAYOUT, activation) for activation in ("relu", "sigmoid")]
    return torch.cat([_descended(PLAIN, network, 32) for network in networks])


def _natural() -> Tensor:
    """Natural gradient; of 8 frames, which are fewer than an estimate has directions, too."""
    descent = NaturalGradient(Preconditioner(10), Preconditioner(20))
    return torch.cat([_descended(descent, Dnn(LAYOUT), frames) for frames in (32, 8)])


def _descended(descent: NaturalGradient, network: Dnn, frames: int) -> Tensor:
    """Parameters of two replicas after twenty steps."""
    draw = torch.Generator().manual_seed(0)
    stack = 0.1 * torch.randn(2, LAYOUT.parameters, generator=draw)
    x = torch.randn(20, 2, frames, 195, generator=draw)
    y = torch.randint(0, 300, (20, 2, frames), generator=draw)
    minibatches = [Minibatch(*each) for each in zip(x, y, strict=True)]
    descend(descent, network, stack, minibatches, 0.1, descent.start(LAYOUT.sizes, 2))
    return stack


CRITERIA = (
    Criterion(numerator="sum", reject_below=0.0),
    Criterion(denominator="lattice", reject_below=0.0),
    Criterion("smbr"),
)


def _sequence() -> np.ndarray:
    """Outer gradients of two utterances by each criterion, in a loop of 50 words."""
    words = {f"w{i}": ((2 * i, 2 * i + 1, 2 * i + 2),) for i in range(50)}
    said = [(f"w{i}", f"w{49 - i}") for i in range(25)]
    lexicon = Lexicon(words, silence=(150,), stay=np.full(200, 0.6))
    references = References(train(said, 1), lexicon)
    prior = np.full(200, -5.0)
    found = [
        SequenceCriterion(criterion, references, prior).outer(-8.0 * np.abs(draws[:60]), reference)
        for criterion in CRITERIA
        for draws, reference in zip(DRAWS, said[:2], strict=False)
    ]
    return np.stack([outer.gradient for outer in found])


PROBES: dict[str, Callable[[], Any]] = {
    "numpy": _numpy,
    "openblas": _openblas,
    "torch": _torch,
    "mkl": _mkl,
    "eigh": _eigh,
    "numba": _numba,
    "libm": _libm,
    "training": _training,
    "natural gradient": _natural,
    "sequence": _sequence,
}


def hashes(names: Iterable[str] = PROBES) -> dict[str, str]:
    """The bytes of probes, hashed."""
    found = ((name, np.ascontiguousarray(PROBES[name]())) for name in names)
    return {name: hashlib.sha256(values.data).hexdigest() for name, values in found}


if __name__ == "__main__":
    flip_bases_of_environment()
    print(json.dumps(hashes()))
