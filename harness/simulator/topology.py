"""Moved to `harness.simulator.network`; this name goes with the next version."""

from __future__ import annotations

import warnings

from harness.base.log import FormerWarning
from harness.simulator.network import Level, Network, Wiring, wire

__all__ = ["Level", "Network", "Wiring", "wire"]

warnings.warn(
    "harness.simulator.topology is harness.simulator.network now",
    FormerWarning,
    stacklevel=2,
)
