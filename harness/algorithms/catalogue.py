"""The algorithms and local optimizers that come with the harness; a run file names their classes.

Whatever derives from `Algorithm` or `LocalOptimizer` and has been imported can be named as well.
"""

from __future__ import annotations

from harness.algorithms.adamw import AdamW
from harness.algorithms.async_descent import AsyncDescent
from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaged_sgd import AveragedSgd
from harness.algorithms.clipped_sgd import ClippedSgd
from harness.algorithms.coders import Int8, PowerSgd, TopK
from harness.algorithms.compressed import Compressed
from harness.algorithms.contract import Algorithm
from harness.algorithms.delay_compensation import DelayCompensated
from harness.algorithms.delayed_nesterov import DelayedNesterov
from harness.algorithms.eager_diloco import EagerDiLoCo
from harness.algorithms.easgd import Easgd
from harness.algorithms.elastic_diloco import ElasticDiLoCo
from harness.algorithms.fedbuff import FedBuff
from harness.algorithms.gradient_averaging import GradientAveraging
from harness.algorithms.local_optimizer import LocalOptimizer
from harness.algorithms.model_averaging import ModelAveraging
from harness.algorithms.momentum import Momentum
from harness.algorithms.muon import Muon
from harness.algorithms.partial_folds import PartialFolds
from harness.algorithms.ringmaster import Ringmaster
from harness.algorithms.server_descent import ServerDescent
from harness.algorithms.staleness_aware import StalenessAware
from harness.algorithms.streaming_diloco import StreamingDiLoCo

__all__ = [
    "AdamW",
    "Algorithm",
    "AsyncDescent",
    "AsyncSgd",
    "AveragedSgd",
    "ClippedSgd",
    "Compressed",
    "DelayCompensated",
    "DelayedNesterov",
    "EagerDiLoCo",
    "Easgd",
    "ElasticDiLoCo",
    "FedBuff",
    "GradientAveraging",
    "Int8",
    "LocalOptimizer",
    "ModelAveraging",
    "Momentum",
    "Muon",
    "PartialFolds",
    "PowerSgd",
    "Ringmaster",
    "ServerDescent",
    "StalenessAware",
    "StreamingDiLoCo",
    "TopK",
]
