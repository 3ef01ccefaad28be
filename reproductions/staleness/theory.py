"""The largest stable rate of delayed gradient descent with momentum on a quadratic.

``m_{t+1} = beta m_t + lambda theta_{t - tau}``, ``theta_{t+1} = theta_t - rate m_{t+1}``: with
x = rate lambda, iterates are sums of powers of the roots of ``z^tau (z - 1)(z - beta) + x z``, and
the rate is stable while these lie within the unit circle. Without momentum the end is known in
closed form, ``x = 2 sin(pi / (2 (2 tau + 1)))``.
"""

from __future__ import annotations

from functools import cache

import numpy as np

HALVINGS, ROUNDING = 50, 1e-9


@cache
def stable_rate(tau: int, momentum: float = 0.0) -> float:
    """The largest stable rate, times the curvature.

    Args:
        tau: versions that a gradient is late.
        momentum: beta, below 1.

    Example:
        >>> [round(stable_rate(tau), 4) for tau in (0, 1, 4)]
        [2.0, 1.0, 0.3473]
    """
    low, high = 0.0, 4.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        stable = _radius(middle, tau, momentum) < 1.0 + ROUNDING
        low, high = (middle, high) if stable else (low, middle)
    return low


def _radius(x: float, tau: int, momentum: float) -> float:
    """Of the largest root of ``z^tau (z - 1)(z - momentum) + x z``."""
    polynomial = np.zeros(tau + 3)
    polynomial[:3] = 1.0, -1.0 - momentum, momentum
    polynomial[tau + 1] += x
    return float(np.abs(np.roots(polynomial)).max())
