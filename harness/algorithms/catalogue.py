"""The algorithms and local optimizers included in the harness; a run file names their classes.

A run file can also name any imported class that derives from `Algorithm` or `LocalOptimizer`.
"""

# ruff: noqa: F401
# pyright: reportUnusedImport=false

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
