"""Moved to `harness.algorithms.averaging`; this name goes with the next version."""

from __future__ import annotations

import warnings

from harness.algorithms.averaging import BlockMomentum, Mean, OuterNesterov
from harness.base.log import FormerWarning

__all__ = ["BlockMomentum", "Mean", "OuterNesterov"]

warnings.warn(
    "harness.algorithms.outer_step is harness.algorithms.averaging now",
    FormerWarning,
    stacklevel=2,
)
