"""Moved to `harness.networks.feedforward`; this name goes with the next version."""

from __future__ import annotations

import warnings

from harness.base.log import FormerWarning
from harness.networks.feedforward import Activation, Dnn, Inner, Visit

__all__ = ["Activation", "Dnn", "Inner", "Visit"]

warnings.warn(
    "harness.acoustics.dnn is harness.networks.feedforward now", FormerWarning, stacklevel=2
)
