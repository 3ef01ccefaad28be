"""Random factors as pure functions of (key, worker, step).

The generator is Philox 4×32 with 10 rounds (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011): 128 counter bits are worker, step and draw, 64 key bits come
from `harness.base.seeds.stream_key` of the seed and the purpose. There is no generator state, so
under every protocol a worker takes the same time for its n-th minibatch. An empirical law has its
durations in the cluster file, or in a text file that it names.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np

from harness.base.errors import UserError
from harness.base.seeds import stream_key
from harness.base.settings import text_of
from harness.simulator.events import kernel

CONSTANT, LOGNORMAL, GAMMA, SHIFTED_EXPONENTIAL, EMPIRICAL = range(5)
LAW_CODES = {
    "constant": CONSTANT,
    "lognormal": LOGNORMAL,
    "gamma": GAMMA,
    "shifted-exponential": SHIFTED_EXPONENTIAL,
    "empirical": EMPIRICAL,
}

MOST_DURATIONS = 100_000

LONGEST_S = 1e9

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLY_0, _MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_TO_53_BITS = np.uint64(11)


def with_durations(table: dict[str, Any], path: Path) -> None:
    """Replace every ``file`` of a jitter table by the file's durations.

    Args:
        table: of a cluster file; malformed entries are left for the schema to reject.
        path: the cluster file; file names are relative to its folder.

    Raises:
        UserError: such a file cannot be read, or contains a line that is not a duration.
    """
    server = table.get("server")
    inner = cast(dict[str, Any], server) if isinstance(server, dict) else {}
    for key, value in (("jitter", table.get("jitter")), ("server.jitter", inner.get("jitter"))):
        if not isinstance(value, dict):
            continue
        jitter = cast(dict[str, Any], value)
        name = jitter.get("file")
        if isinstance(name, str) and name and "values" not in jitter:
            place = f"{path}: {key}.file"
            jitter["values"] = read_durations(path.parent / name, place)
            del jitter["file"]


def read_durations(path: Path, place: str) -> list[float]:
    """The numbers of a text file, one per line; empty lines and ``#`` comments are skipped.

    Args:
        path: the file.
        place: the key that refers to it, for messages.

    Raises:
        UserError: it cannot be read, or a line is not a finite number of at least 0.
    """
    lines = text_of(path, place).splitlines()
    numbered = ((number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1))
    seconds = [
        _duration(text, f"{place}: {path.name} line {number}") for number, text in numbered if text
    ]
    if len(seconds) > MOST_DURATIONS:
        allowed = f"at most {MOST_DURATIONS}"
        raise UserError(f"{place}: {path.name} has {len(seconds)} durations; allowed: {allowed}")
    return seconds


def _duration(text: str, place: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= LONGEST_S:
        allowed = f"a number from 0 to {LONGEST_S:g}"
        raise UserError(f"{place}: {text[:40]!r} is not allowed; allowed: {allowed}")
    return seconds


def purpose_key(seed: int, purpose: str) -> Any:
    """The 64-bit Philox key of one purpose under a seed, as uint64."""
    return np.uint64(stream_key(seed, purpose) & 0xFFFFFFFFFFFFFFFF)


@kernel
def philox(a: Any, b: Any, c: Any, d: Any, key: Any) -> tuple[Any, Any, Any, Any]:
    """Four 32-bit words for a counter of four 32-bit words (all held in uint64)."""
    k0, k1 = key & _MASK, key >> _HALF
    for _ in range(10):
        p, q = _MULTIPLY_0 * a, _MULTIPLY_1 * c
        a, b, c, d = (q >> _HALF) ^ b ^ k0, q & _MASK, (p >> _HALF) ^ d ^ k1, p & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return a, b, c, d


@kernel
def uniforms(key: Any, worker: int, step: int, draw: int) -> tuple[float, float]:
    """Two independent numbers, uniform on the open interval (0, 1), 53 bits each."""
    w, s = np.uint64(worker), np.uint64(step)
    a, b, c, d = philox(s & _MASK, s >> _HALF, w & _MASK, np.uint64(draw), np.uint64(key))
    u = ((a << _HALF) | b) >> _TO_53_BITS
    v = ((c << _HALF) | d) >> _TO_53_BITS
    # int64 converts to float exactly below 2**53, and faster than uint64
    return (np.int64(u) + 0.5) * 2.0**-53, (np.int64(v) + 0.5) * 2.0**-53


@kernel
def normal(key: Any, worker: int, step: int, draw: int) -> float:
    """A standard normal number (Box and Muller 1958)."""
    u, v = uniforms(key, worker, step, draw)
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


@kernel
def lognormal(key: Any, worker: int, step: int, cv: float) -> float:
    """Lognormal with mean 1 and standard deviation ``cv``: σ² = ln(1 + cv²), μ = −σ²/2."""
    variance = math.log1p(cv * cv)
    return math.exp(math.sqrt(variance) * normal(key, worker, step, 0) - 0.5 * variance)


@kernel
def gamma(key: Any, worker: int, step: int, cv: float) -> float:
    """Gamma with mean 1 and standard deviation ``cv``, by rejection.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000), with
    shape α = 1/cv²; below α = 1 a draw for α + 1 is multiplied by U^(1/α).
    """
    if cv == 0.0:
        return 1.0
    shape = 1.0 / (cv * cv)
    boost = 1.0
    if shape < 1.0:
        boost = uniforms(key, worker, step, 0)[0] ** (1.0 / shape)
    d = (shape if shape >= 1.0 else shape + 1.0) - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    # Draw 0 is the boost's, and every try takes two of its own: no number serves twice.
    draw = 1
    while True:
        x = normal(key, worker, step, draw)
        u = uniforms(key, worker, step, draw + 1)[0]
        draw += 2
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(u) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
            return boost * d * v / shape


@kernel
def draw_factor(key: Any, worker: int, step: int, law: int, cv: float) -> float:
    """One draw, with mean 1, of a law that is neither constant nor empirical."""
    if law == LOGNORMAL:
        return lognormal(key, worker, step, cv)
    if law == GAMMA:
        return gamma(key, worker, step, cv)
    # Shifted by 1 − cv, an exponential of mean cv has mean 1 and deviation cv.
    return (1.0 - cv) - cv * math.log(uniforms(key, worker, step, 0)[0])


@kernel
def factor(key: Any, worker: int, step: int, law: int, cv: float, values: np.ndarray) -> float:
    """One draw of a jitter law with mean 1.

    Args:
        key: of the purpose (see `purpose_key`).
        worker: index of the worker.
        step: the worker's own count of computations.
        law: one of the codes above.
        cv: coefficient of variation.
        values: [V] equally likely factors with mean 1, for the empirical law.
    """
    if law == CONSTANT:
        return 1.0
    if law == EMPIRICAL:
        return values[int(uniforms(key, worker, step, 0)[0] * len(values))]
    return draw_factor(key, worker, step, law, cv)
