"""Moved to `harness.networks.feedforward`; this name goes with the next version."""

from __future__ import annotations

import warnings

from harness.base.log import FormerWarning
from harness.networks.feedforward import Affine, Layout, random_parameters

__all__ = ["Affine", "Layout", "random_parameters"]

warnings.warn(
    "harness.acoustics.stack is harness.networks.feedforward now", FormerWarning, stacklevel=2
)
