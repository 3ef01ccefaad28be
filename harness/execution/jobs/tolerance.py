"""How much of something training stands: where quality breaks, found by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.errors import UserError, unknown
from harness.simulator import Cluster, Fault

RETRY_OF_LATENCIES, LEAST_RETRY_S = 2.0, 1e-6
"""A lost message is sent again after so many latencies of the link."""


@dataclass(frozen=True)
class Knob:
    """What is turned up until training breaks.

    Attributes:
        name: on the command line.
        axis: in a picture, with its unit.
        whole: whether its values are whole numbers.
        turned: the cluster at a value, where it is the cluster that changes.
    """

    name: str
    axis: str
    whole: bool
    turned: Callable[[Cluster, float], Cluster]

    def between(self, low: float, high: float) -> float | None:
        """The value to try next, in the middle on a logarithmic scale; None if there is none."""
        middle = math.sqrt(low * high) if low > 0.0 else high / 2.0
        if not self.whole:
            return middle
        inside = round(middle)
        return inside if low < inside < high else None


def _same(cluster: Cluster, value: float) -> Cluster:
    del value
    return cluster


def _delayed(cluster: Cluster, value: float) -> Cluster:
    link = replace(cluster.link, latency_s=cluster.link.latency_s + value)
    return replace(cluster, link=link)


def _lossy(cluster: Cluster, value: float) -> Cluster:
    if value == 0.0:
        return cluster
    retry_s = max(LEAST_RETRY_S, RETRY_OF_LATENCIES * cluster.link.latency_s)
    fault = Fault("message", probability=value, retry_s=retry_s)
    return replace(cluster, faults=(*cluster.faults, fault))


KNOBS = {
    knob.name: knob
    for knob in (
        Knob("workers", "workers", True, _same),
        Knob("delay", "further latency of the link (s)", False, _delayed),
        Knob("loss", "share of messages lost", False, _lossy),
    )
}


def knob_of(name: str) -> Knob:
    """What a name stands for.

    Raises:
        UserError: nothing.
    """
    if name not in KNOBS:
        raise unknown("tolerate", name, KNOBS)
    return KNOBS[name]


def check_ends(knob: Knob, low: float, high: float) -> None:
    """Refuse what no search can go on between.

    Raises:
        UserError: ``low`` is not below ``high``, or one of them is no whole number of workers.
    """
    if not 0.0 <= low < high < math.inf:
        raise UserError(f"tolerate: from {low:g} to {high:g}; allowed: from less to more, from 0")
    if knob.whole and not (float(low).is_integer() and float(high).is_integer()):
        raise UserError(f"tolerate: from {low:g} to {high:g} {knob.name}; allowed: whole numbers")


def bracketed(
    knob: Knob, low: float, high: float, halvings: int, breaks: Callable[[float], bool]
) -> tuple[float, float]:
    """The largest value that was tolerated and the smallest that was not.

    What breaks at a value is taken to break at all larger ones.

    Args:
        knob: whose values.
        low: tolerated, by definition: quality is compared with what it is there.
        high: tried first.
        halvings: how often to halve the distance of the logarithms, at most.
        breaks: asked once for each value that is tried.

    Returns:
        The two; infinity for the second if even ``high`` is tolerated.

    Raises:
        UserError: see `check_ends`.

    Example:
        >>> bracketed(KNOBS["workers"], 1, 64, 10, lambda value: value > 11)
        (11, 12)
    """
    check_ends(knob, low, high)
    if not breaks(high):
        return high, math.inf
    for _ in range(halvings):
        middle = knob.between(low, high)
        if middle is None:
            break
        low, high = (low, middle) if breaks(middle) else (middle, high)
    return low, high
