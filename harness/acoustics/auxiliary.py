"""The auxiliary function of paper 3, section 3.3: what a replica climbs between two decodes.

With the outer gradient o of θ' held fixed,

    A(θ; θ') = F(θ') + Σ_t Σ_s o_t(s; θ') (log p_θ(s|x_t) - log p_θ'(s|x_t))

touches the criterion F at θ': it has F's value there (paper 3 leaves the constant out) and,
by the chain rule, F's gradient. It looks like a frame criterion with o as its targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.acoustics.mmi import Outer


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """A tangent of the criterion for one utterance.

    Args:
        outer: value and outer gradient at θ'. Where frames were rejected or cancelled, the
            tangent is that of what is left.
        log_posteriors: float [T, K], log p_θ'(s|x_t).
    """

    outer: Outer
    log_posteriors: np.ndarray

    def value(self, log_posteriors: np.ndarray) -> float:
        """A(θ; θ') from log p_θ(s|x_t), float [T, K]; finite wherever θ' gives no -inf."""
        moved = np.asarray(log_posteriors, np.float64) - self.log_posteriors
        return self.outer.value + float((self.outer.gradient * moved).sum())

    def slope(self) -> np.ndarray:
        """∂A/∂log p, float64 [T, K]: the same everywhere."""
        return self.outer.gradient
