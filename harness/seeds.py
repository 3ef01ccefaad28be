"""Named, counter-based random streams.

A stream is a pure function of (seed, purpose, keys): drawing from one never moves
another. So two protocols see the same workers (common random numbers), and
training draws never move timing draws.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream_key(seed: int, purpose: str, *keys: int) -> int:
    """A 128-bit key for the stream named by ``purpose`` and ``keys`` under ``seed``."""
    text = "\x1f".join([str(seed), purpose, *map(str, keys)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """A numpy generator (Philox) for one purpose.

    Args:
        seed: of the run.
        purpose: what is drawn; another purpose draws other numbers.
        keys: which of the draws of this purpose, such as an epoch or a worker and a step.

    Example:
        >>> a, b = (stream(0, "order", epoch).permutation(5).tolist() for epoch in (1, 1))
        >>> a == b == stream(0, "order", 2).permutation(5).tolist()
        False
        >>> a == b
        True
    """
    return np.random.Generator(np.random.Philox(key=stream_key(seed, purpose, *keys)))
