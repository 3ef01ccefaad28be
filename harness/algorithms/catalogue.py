"""The algorithms and local optimizers included in the harness; a run file names their classes.

A run file can also name any imported class that derives from `Algorithm` or `LocalOptimizer`.
"""

from __future__ import annotations

from harness.algorithms.async_sgd import AsyncDescent, AsyncSgd, AveragedSgd, ClippedSgd
from harness.algorithms.averaging import Easgd, GradientAveraging, ModelAveraging
from harness.algorithms.compression import Compressed, Int8, PowerSgd, TopK
from harness.algorithms.contract import Algorithm
from harness.algorithms.descent import Adam, AdamW, LocalOptimizer, Momentum, Muon
from harness.algorithms.diloco import EagerDiLoCo, ElasticDiLoCo, StreamingDiLoCo
from harness.algorithms.stale import (
    DelayCompensated,
    DelayedNesterov,
    FedBuff,
    PartialFolds,
    Ringmaster,
    ServerDescent,
    StalenessAware,
)
from harness.algorithms.torch_optimizers import TorchOptimizer

__all__ = [
    "Adam",
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
    "TorchOptimizer",
]
