"""Moved to `harness.algorithms.averaging`; this name goes with the next version."""

from __future__ import annotations

import warnings

from harness.algorithms.averaging import BlockMomentum, Mean, OuterNesterov

__all__ = ["BlockMomentum", "Mean", "OuterNesterov"]

warnings.warn(
    "harness.algorithms.outer_step is harness.algorithms.averaging now",
    DeprecationWarning,
    stacklevel=2,
)
