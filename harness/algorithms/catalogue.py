"""The algorithms and local optimizers that come with the harness; a run file names their classes.

Whatever derives from `Algorithm` or `LocalOptimizer` and has been imported can be named as well.
"""

from __future__ import annotations

from harness.algorithms.adamw import AdamW
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaged_sgd import AveragedSgd
from harness.algorithms.contract import Algorithm
from harness.algorithms.gradient_averaging import GradientAveraging
from harness.algorithms.local_optimizer import LocalOptimizer
from harness.algorithms.model_averaging import ModelAveraging
from harness.algorithms.momentum import Momentum
from harness.algorithms.muon import Muon

__all__ = [
    "AdamW",
    "Algorithm",
    "AsyncSgd",
    "AveragedSgd",
    "GradientAveraging",
    "LocalOptimizer",
    "ModelAveraging",
    "Momentum",
    "Muon",
]
