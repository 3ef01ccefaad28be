"""Former name of `harness.networks.contract`; removed in the next version."""

from __future__ import annotations

import warnings

from harness.base.log import FormerWarning
from harness.networks.contract import Gradient, LayeredNetwork, Minibatch, Network, Views

__all__ = ["Gradient", "LayeredNetwork", "Minibatch", "Network", "Views"]

warnings.warn("harness.network is harness.networks.contract now", FormerWarning, stacklevel=2)
