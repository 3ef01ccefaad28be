"""The algorithms that come with the harness; a run file names them by their class.

Whatever derives from `Algorithm` and has been imported can be named as well.
"""

from __future__ import annotations

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaged_sgd import AveragedSgd
from harness.algorithms.contract import Algorithm
from harness.algorithms.gradient_averaging import GradientAveraging
from harness.algorithms.model_averaging import ModelAveraging

__all__ = ["Algorithm", "AsyncSgd", "AveragedSgd", "GradientAveraging", "ModelAveraging"]
