"""From an interval to the two answers of a verdict.

The first answer, `Here`, is about the runs alone. Each rule asks whether the whole interval lies
in the band (``holds``), outside of it (``fails``), or neither (``unclear``), so no interval earns
both, and widening one never earns an answer. No condition or power of the design changes it.

The second answer is whether that bears on the paper (`parts.claim_of`). `verdict_of` names the
pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from harness.judge.interval import Interval
from harness.judge.statistics import ALPHA, errors_from

Here = Literal["holds", "fails", "unclear", "mixed"]
"""What runs show of a statement; ``mixed`` if frame and recognition errors disagree."""
Verdict = Literal["reproduced", "holds here", "unclear", "mixed", "fails here", "contradicted"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def verdict_of(here: Here, bears: bool) -> Verdict:
    """The verdict of both answers.

    Args:
        here: what the runs show.
        bears: whether that bears on the paper.

    Example:
        >>> verdict_of("fails", bears=True), verdict_of("fails", bears=False)
        ('contradicted', 'fails here')
    """
    if here == "holds":
        return "reproduced" if bears else "holds here"
    if here == "fails":
        return "contradicted" if bears else "fails here"
    return here


@dataclass(frozen=True)
class Rule:
    """Band that a quantity lies in if the paper's statement holds.

    Attributes:
        low, high: ends of the band, in the quantity's unit; either may be infinite.
        open: whether a finite end itself is outside, as zero is for a direction.

    Raises:
        ValueError: the band is empty.
    """

    low: float = -math.inf
    high: float = math.inf
    open: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"band {self.low, self.high} is empty")

    def judge(self, value: Interval) -> Here:
        """``holds`` if the whole interval lies in the band, ``fails`` if none of it.

        An interval that contains an end of the band is ``unclear``.

        Example:
            >>> BELOW.judge(Interval(-0.2, -0.3, -0.1))
            'holds'
        """
        if self.holds(value.low) and self.holds(value.high):
            return "holds"
        outside = value.high < self.low or value.low > self.high
        return "fails" if outside else "unclear"

    def holds(self, value: float) -> bool:
        """Whether a number lies in the band; an infinite end itself always does."""
        if value in (self.low, self.high):
            return not (self.open and math.isfinite(value))
        return self.low < value < self.high

    def p_values(self, value: Interval) -> tuple[float, float]:
        """P-values of two hypotheses: the quantity lies outside the band, and inside it.

        Two-sided: for intervals of Student's t and Fieller's, the first is below 5% exactly when
        the answer is ``holds``, the second when it is ``fails``.
        """
        if math.isnan(value.estimate):  # an open end leaves no standard error, only the answer
            answer = self.judge(value)
            return ALPHA if answer == "holds" else 1.0, ALPHA if answer == "fails" else 1.0
        ends = [(self.low, 1.0), (self.high, -1.0)]
        finite = [(end, side) for end, side in ends if math.isfinite(end)]
        outside = max((self._p(value, end, side) for end, side in finite), default=0.0)
        inside = min((self._p(value, end, -side, True) for end, side in finite), default=1.0)
        return outside, inside

    def _p(self, value: Interval, end: float, side: float, beyond: bool = False) -> float:
        """P-value of the quantity lying across ``end``; ``side`` is 1 for an estimate above it.

        ``beyond``: the hypothesis lies strictly across the end.
        """
        away = side * (value.estimate - end)
        half = value.estimate - value.low if side > 0 else value.high - value.estimate
        if away < 0 or math.isinf(half):
            return 1.0
        if half == 0:  # an exact quantity: certain either way
            return 0.0 if away > 0 or not (self.open or beyond) else 1.0
        return 2.0 * tail(errors_from(value, end), value.degrees)


BELOW, ABOVE = Rule(high=0.0, open=True), Rule(low=0.0, open=True)
"""The two directions of a difference."""


def rule_near(paper: float, band: float = 0.10) -> Rule:
    """Band of a prediction: ``paper (1 ± band)``, ends included.

    Raises:
        ValueError: the paper's figure is zero or not finite.
    """
    relative_error(paper, paper)
    low, high = sorted((paper * (1 - band), paper * (1 + band)))
    return Rule(low, high)


def relative_error(predicted: Interval | float, paper: float) -> Interval:
    """Predicted / paper - 1, which a prediction claim prints.

    Raises:
        ValueError: the paper's figure is zero or not finite.
    """
    if not math.isfinite(paper) or paper == 0:
        raise ValueError(f"no relative error against {paper}")
    interval = predicted if isinstance(predicted, Interval) else Interval.exact(predicted)
    return (1 / paper) * interval - 1


def all_of(answers: Iterable[Here]) -> Here:
    """Answer of a claim of several parts: ``holds`` if all parts do.

    Otherwise ``fails`` if any part does, else ``unclear``.

    Raises:
        ValueError: there are no parts.
    """
    parts = set(answers)
    if not parts:
        raise ValueError("a claim without parts has no verdict")
    for answer in ("fails", "unclear"):
        if answer in parts:
            return answer
    return "holds"


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number, in the order given (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def significant(p: float) -> bool:
    """Whether a p-value is at most 5%, one minus the level of every interval here."""
    return p <= ALPHA


def tail(t: float, degrees: float) -> float:
    """Probability that Student's t exceeds ``t``; of a normal if the degrees are infinite."""
    from scipy.special import ndtr, stdtr  # pyright: ignore[reportMissingTypeStubs]

    return float(ndtr(-t)) if math.isinf(degrees) else float(stdtr(degrees, -t))
