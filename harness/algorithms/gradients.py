"""Moved to `harness.algorithms.async_sgd`; this name goes with the next version."""

from __future__ import annotations

import warnings

from harness.algorithms.async_sgd import Gradients, PlainFolds
from harness.base.log import FormerWarning

__all__ = ["Gradients", "PlainFolds"]

warnings.warn(
    "harness.algorithms.gradients is harness.algorithms.async_sgd now",
    FormerWarning,
    stacklevel=2,
)
