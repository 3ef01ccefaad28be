"""Gradients that travel in buckets while the rest of them is computed.

Li et al., "PyTorch distributed: experiences on accelerating data parallel training" (VLDB 2020):
gradients are ready from the last layer to the first, and are averaged a bucket at a time, in
that order, the same on every worker. Here

- the last ``backward_share`` of a round's last minibatch computes gradients, at an even pace;
- a worker enters the all-reduce of a bucket when the bucket is full and it has left that of the
  bucket before;
- from entering one until leaving it the worker computes ``overlap_slowdown`` times as slowly: the
  all-reduce needs some of the device.

With r the instant a worker's bucket is full, e the one at which it leaves that bucket's
all-reduce, d the time the next bucket takes to compute alone, σ the slowdown and b = max(e − r, 0),
the next bucket is full at r + min(σ d, d + b (1 − 1/σ)): all of it computed slowly, or b seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.simulator.exchange import AllReduce

__all__ = ["MOST_BUCKETS", "in_buckets", "sizes"]

MOST_BUCKETS = 10_000


def sizes(buckets: Sequence[float], size_bytes: float) -> list[float]:
    """Bytes of each bucket: those named in order, the last of them as often as needed.

    Example:
        >>> sizes((1.0, 4.0), 10.0)
        [1.0, 4.0, 4.0, 1.0]

    Raises:
        UserError: too many to simulate.
    """
    found, left = list[float](), size_bytes
    while left > 0.0:
        if len(found) == MOST_BUCKETS:
            told = f"more than {MOST_BUCKETS} of them for {size_bytes:g} bytes"
            raise UserError(f"buckets: {told}; allowed: larger ones")
        found.append(min(buckets[min(len(found), len(buckets) - 1)], left))
        left -= found[-1]
    return found or [0.0]


def in_buckets(
    collective: AllReduce,
    parts: Sequence[float],
    begins_s: Any,
    backward_s: Any,
    slowdown: float,
    pause_s: float = 0.0,
    add_s_per_byte: float = 0.0,
    ratio: float = 1.0,
) -> tuple[Any, Any]:
    """Compute and average bucket after bucket.

    Args:
        collective: among the M members.
        parts: [B] bytes of each bucket.
        begins_s: [M] when each begins to compute gradients.
        backward_s: [M] how long that takes it alone.
        slowdown: of computing while a bucket is averaged.
        pause_s: before a worker enters the last all-reduce.
        add_s_per_byte: time it takes to add what has been received.
        ratio: bytes that are sent over those of the gradients.

    Returns:
        [M] when each member has its last gradients, and [M] when it has all averages.
    """
    whole, last = sum(parts), len(parts) - 1
    full_s, left_s = np.asarray(begins_s, np.float64), np.full(len(begins_s), -np.inf)
    for place, part in enumerate(parts):
        alone_s = np.asarray(backward_s) * (part / whole if whole else 1.0)
        slowly_s = np.maximum(left_s - full_s, 0.0) * (1.0 - 1.0 / slowdown)
        full_s = full_s + np.minimum(slowdown * alone_s, alone_s + slowly_s)
        joined_s = np.maximum(full_s, left_s) + (pause_s if place == last else 0.0)
        left_s = collective.ends_s(joined_s, part * ratio, add_s_per_byte)
    return full_s, left_s
