"""Settings of one physical kind share one range: no typing slip gives an endless duration."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from harness.base.settings import setting

__all__ = ["duration", "rate", "ratio", "size"]

LEAST_RATE, GREATEST_RATE = 1e-6, 1e21
GREATEST_SIZE = 1e21
GREATEST_DURATION_S = 1e9
GREATEST_RATIO = 1e6


def rate(default: object = None, *, added: bool = False) -> Any:
    """Bytes or floating-point operations a second; by default none, which is infinitely fast."""
    return setting(default, at_least=LEAST_RATE, at_most=GREATEST_RATE, added=added)


def duration(default: object = 0.0, *, added: bool = False) -> Any:
    """Seconds, up to some thirty years."""
    return setting(default, at_least=0.0, at_most=GREATEST_DURATION_S, added=added)


def size(default: object = MISSING) -> Any:
    """Bytes, or floating-point operations."""
    return setting(default, at_least=0.0, at_most=GREATEST_SIZE)


def ratio(
    default: object = 1.0, *, at_least: float = 1.0 / GREATEST_RATIO, added: bool = False
) -> Any:
    """How many times as much."""
    return setting(default, at_least=at_least, at_most=GREATEST_RATIO, added=added)
