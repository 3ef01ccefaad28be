"""Streaming DiLoCo: rounds in which one fragment of the model is averaged after the other.

Douillard et al. (arXiv 2501.18512), algorithm 2. Under overlapped rounds a worker trains on while
its fragment travels, and mixes in what comes back a round late (their tau and alpha).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from harness.algorithms.fragments import Fragmented
from harness.algorithms.local_descent import PLAIN, Descent
from harness.algorithms.outer_step import OuterNesterov
from harness.base.settings import setting


@dataclass(frozen=True)
class StreamingDiLoCo(Fragmented):
    """With one fragment and no mixing it is DiLoCo; a round has H / P of its local steps.

    Args:
        descent: makes the local steps, in the paper AdamW.
        outer: the server's step.
        fragments: P.
        mixing: alpha, a worker's own part in what it goes on with; 0.5 in the paper under overlap.
    """

    rounds: ClassVar[bool] = True

    descent: Descent = PLAIN
    outer: OuterNesterov = field(default_factory=OuterNesterov)
    fragments: int = setting(4, at_least=1, at_most=4096)
    mixing: float = setting(0.0, at_least=0.0, at_most=1.0)
