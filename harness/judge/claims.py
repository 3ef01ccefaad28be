"""From an interval to a verdict.

Each rule asks whether the whole interval agrees with the paper
(``reproduced``), the whole interval disagrees (``contradicted``), or neither
(``undecided``). So no interval earns both, and widening one never earns a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from harness.judge.statistics import Interval

Verdict = Literal["reproduced", "contradicted", "undecided"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "contradicted", "undecided")
Side = Literal["below", "above"]
Band = tuple[float, float]


def judge_direction(difference: Interval, paper_side: Side) -> Verdict:
    """A direction claim: on which side of zero does the difference lie?

    Args:
        difference: a paired difference, e.g. CER of ASGD minus CER of SGD.
        paper_side: ``"below"`` zero or ``"above"``, as the paper has it.

    Example:
        >>> judge_direction(Interval(-0.2, -0.3, -0.1), "below")
        'reproduced'
    """
    toward = difference if paper_side == "above" else -difference
    if toward.low > 0:
        return "reproduced"
    return "contradicted" if toward.high < 0 else "undecided"


def judge_size(size: Interval, band: Band) -> Verdict:
    """A size claim: does the quantity lie in the stated band?

    ``reproduced`` if the whole interval lies in the band (ends included),
    ``contradicted`` if none of it does; an interval across an end is too wide to say.

    Args:
        size: the measured quantity.
        band: lowest and highest value that still agrees; an end may be infinite.

    Raises:
        ValueError: the band is empty.
    """
    lowest, highest = band
    if not lowest <= highest:
        raise ValueError(f"band {band} is empty")
    if lowest <= size.low and size.high <= highest:
        return "reproduced"
    return "contradicted" if size.high < lowest or size.low > highest else "undecided"


def judge_prediction(predicted: Interval | float, paper: float, band: float = 0.10) -> Verdict:
    """A prediction claim: the simulator against a reported time or speed-up.

    Args:
        predicted: the simulator's figure; a number if it has no chance in it.
        paper: the reported figure, in the same unit.
        band: largest relative error that still agrees.

    Raises:
        ValueError: the paper's figure is zero or not finite.
    """
    return judge_size(relative_error(predicted, paper), (-band, band))


def relative_error(predicted: Interval | float, paper: float) -> Interval:
    """Predicted / paper - 1, which a prediction claim prints.

    Raises:
        ValueError: the paper's figure is zero or not finite.
    """
    if not math.isfinite(paper) or paper == 0:
        raise ValueError(f"no relative error against {paper}")
    it = predicted if isinstance(predicted, Interval) else Interval.exact(predicted)
    ends = sorted((it.low / paper - 1, it.high / paper - 1))
    return Interval(it.estimate / paper - 1, *ends)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """A claim of several parts: it holds if all do, and falls with any one of them.

    Raises:
        ValueError: there are no parts.
    """
    parts = set(verdicts)
    if not parts:
        raise ValueError("a claim without parts has no verdict")
    if "contradicted" in parts:
        return "contradicted"
    return "undecided" if "undecided" in parts else "reproduced"
