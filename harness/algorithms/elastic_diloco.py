"""Elastic, decoupled DiLoCo: a fragment is averaged once enough workers have handed it in.

Douillard et al. (arXiv 2604.21428): no worker waits for another, and who has done more counts for
more. Without their grace window: a quorum that is complete is folded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.algorithms.fragments import Fragmented
from harness.algorithms.local_descent import PLAIN, Descent
from harness.algorithms.outer_step import OuterNesterov
from harness.base.settings import setting


@dataclass(frozen=True)
class ElasticDiLoCo(Fragmented):
    """``theta_p <- OuterOpt(theta_p, sum w D / sum w)`` over a quorum's contributions of p.

    w is the minibatches that a contribution was computed from.

    Args:
        descent: makes the local steps, in the paper AdamW.
        outer: the server's step.
        fragments: P.
        mixing: a worker's own part in what it goes on with when it finds a new fragment.
        quorum: contributions of a fragment for a step of it.
    """

    descent: Descent = PLAIN
    outer: OuterNesterov = field(default_factory=OuterNesterov)
    fragments: int = setting(1, at_least=1, at_most=4096)
    mixing: float = setting(0.0, at_least=0.0, at_most=1.0)
    quorum: int = setting(2, at_least=1)

    @property
    def needed(self) -> int:
        """The quorum."""
        return self.quorum
