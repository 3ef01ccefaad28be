"""Moved to `harness.simulator.collectives`; this name goes with the next version."""

from __future__ import annotations

import warnings

from harness.base.log import FormerWarning
from harness.simulator.collectives import AllReduce

__all__ = ["AllReduce"]

warnings.warn(
    "harness.simulator.exchange is harness.simulator.collectives now",
    FormerWarning,
    stacklevel=2,
)
