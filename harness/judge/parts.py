"""A claim made of judged quantities, and the power of its design.

The power is the probability of ``reproduced`` if the paper is right. An estimate is taken as
normal about the true value with the measured standard error, and that error itself as measured
with the interval's degrees of freedom: the estimate's distance from an end, in measured errors,
is then a noncentral Student's t. The true error is taken to be the measured one, so for designs
with few seeds the computed power is too high about as often as it is too low.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from harness.judge.claims import ABOVE, BELOW, Rule, Verdict, all_of, holm, significant
from harness.judge.interval import Interval
from harness.judge.results import Claim, Condition, Part
from harness.judge.statistics import t_quantile

__all__ = [
    "LOOKS",
    "Precondition",
    "Quantity",
    "claim_of",
    "correct_verdicts",
    "finds",
    "power",
    "side_of_zero",
]

LOOKS = "looks"
"""Provenance key of the number of times the claims were judged, where that is more than one."""


@dataclass(frozen=True)
class Quantity:
    """One measured quantity of a claim.

    Attributes:
        label: name among the claim's quantities.
        paper: the paper's figure as it is printed, or a word.
        value: measured value.
        rule: band according to the paper; None if the quantity is shown and not judged.
        true: the paper's figure in the unit of ``value``, at which power is computed; None if
            the paper prints none.
    """

    label: str
    paper: float | str | None
    value: Interval
    rule: Rule | None = None
    true: float | None = None

    @property
    def part(self) -> Part:
        """Entry of the results file for this quantity."""
        made = Part(self.label, self.paper, self.value.estimate, self.value.ci95)
        made = replace(made, sample=self.value.sample)
        if self.rule is None:
            return made
        return replace(
            made, verdict=self.rule.judge(self.value), band=(self.rule.low, self.rule.high),
            power=self.power, finds=finds(self.value),
        )  # fmt: skip

    @property
    def power(self) -> float | None:
        """Probability of ``reproduced`` if the paper's figure is true; None if not computable."""
        if self.rule is None or self.true is None or math.isnan(self.true + self.value.estimate):
            return None
        return power(self.value, self.rule, self.true)


@dataclass(frozen=True)
class Precondition:
    """A condition that the paper's statement presupposes, measured on the runs.

    Attributes:
        what: the condition in words, with the unit.
        value: measured value.
        rule: band that the estimate must lie in.
    """

    what: str
    value: Interval
    rule: Rule

    @property
    def condition(self) -> Condition:
        """Entry of the results file for this precondition."""
        ends, holds = (self.rule.low, self.rule.high), self.rule.holds(self.value.estimate)
        return Condition(self.what, self.value.estimate, self.value.ci95, ends, holds)


def side_of_zero(
    label: str, difference: Interval, side: str, true: float | None = None
) -> Quantity:
    """Quantity of a difference that is ``"below"`` or ``"above"`` zero according to the paper."""
    return Quantity(label, f"{side} 0", difference, {"below": BELOW, "above": ABOVE}[side], true)


def claim_of(
    id_: str,
    statement: str,
    where: str,
    statistic: str,
    quantities: Sequence[Quantity],
    runs: tuple[str, ...],
    note: str = "",
    *,
    presumes: Sequence[Precondition] = (),
    undetermined: str = "",
    cannot_fail: str = "",
) -> Claim:
    """Judge a claim of one or more quantities; all those with a rule must hold.

    It is ``not testable`` where the paper leaves a deciding choice open, where a precondition
    does not hold, or where its power is below one half. It is contradicted if a part is, after
    Holm's correction for the number of parts. The first quantity is the headline.

    Args:
        id_: as in the list of claims.
        statement: the paper's statement.
        where: section, table or page.
        statistic: description of the measured statistic.
        quantities: at least one.
        runs: hashes of the runs behind them.
        note: a sentence for the reader.
        presumes: the paper's conditions.
        undetermined: choice that the paper leaves open, if the answer depends on it.
        cannot_fail: reason why it holds by construction, if it does.
    """
    conditions = tuple(each.condition for each in presumes)
    known = [each.power for each in quantities if each.power is not None]
    chance = math.prod(known) if known else None
    verdict, p = _judge_all([q for q in quantities if q.rule is not None])
    because = undetermined or _format_unmet(conditions) or _too_weak(chance)
    head = quantities[0]
    return Claim(
        id_, statement, where, statistic, head.paper, head.value.estimate, head.value.ci95,
        "not testable" if because else verdict, runs, note,
        tuple(each.part for each in quantities), power=chance, preconditions=conditions,
        because=because, cannot_fail=cannot_fail, p_value=None if because else p,
    )  # fmt: skip


def correct_verdicts(claims: Sequence[Claim], looks: int = 1) -> tuple[Claim, ...]:
    """The same claims, each with its verdict after a correction over all of them.

    The family is the claims that were tested and can fail; their p-values are corrected by Holm.

    Args:
        claims: claims of one paper.
        looks: number of times they were judged while seeds were added, this time included.
            P-values are multiplied by it (Bonferroni), valid for any rule of adding seeds.
    """
    family = [c for c in claims if c.p_value is not None and not c.cannot_fail]
    p_values = holm([looks * (c.p_value or 0.0) for c in family])
    lost = {c.id for c, p in zip(family, p_values, strict=True) if not significant(p)}
    return tuple(replace(c, corrected="undecided" if c.id in lost else c.verdict) for c in claims)


def _judge_all(quantities: Sequence[Quantity]) -> tuple[Verdict, float]:
    """Joint verdict and its p-value; an undecided one has the p-value of the nearer verdict."""
    each = [(q.rule or ABOVE).p_values(q.value) for q in quantities]
    against = holm([inside for _, inside in each])
    verdicts: list[Verdict] = []
    for q, p in zip(quantities, against, strict=True):
        found = (q.rule or ABOVE).judge(q.value)
        lost = found == "contradicted" and len(quantities) > 1 and not significant(p)
        verdicts.append("undecided" if lost else found)
    verdict = all_of(verdicts)
    holds, fails = max(outside for outside, _ in each), min(against)
    p = {"reproduced": holds, "contradicted": fails}.get(verdict, min(holds, fails))
    return verdict, p


def _format_unmet(conditions: Sequence[Condition]) -> str:
    """Sentences on the preconditions that do not hold or could not be computed."""
    unknown = [each.what for each in conditions if each.measured is None]
    failed = [each.what for each in conditions if not each.holds and each.measured is not None]
    told = [
        f"{said}: {'; '.join(which)}."
        for said, which in (
            ("Its conditions do not hold", failed),
            ("Runs that did not end leave its conditions unknown", unknown),
        )
        if which
    ]
    return " ".join(told)


def _too_weak(chance: float | None) -> str:
    """Sentence on a power that is too low for a test; empty if it is enough or unknown."""
    if chance is None or chance >= ENOUGH:
        return ""
    percent = math.floor(100 * chance)  # never rounded up to what would be enough
    return f"If the stated figure is true, the chance of finding it reproduced is only {percent}%."


ENOUGH = 0.5
"""A claim with a power below this is not testable."""

WANTED = 0.8
"""Power at which an effect counts as detectable."""

POINTS = 400
"""Points of the midpoint rule over the distribution of the measured error."""


def power(found: Interval, rule: Rule, true: float) -> float:
    """Probability that a quantity is judged ``reproduced``.

    Mean over ratios r of measured to true standard error of Φ((high - a r - true) / e) - Φ((low +
    b r - true) / e), with a, b the interval's upper and lower half widths and e its error.

    Args:
        found: measured interval, for the scatter; the power is 0 if it is unbounded.
        rule: band according to the paper.
        true: assumed true value, in the quantity's unit.
    """
    from scipy.special import ndtr  # pyright: ignore[reportMissingTypeStubs]

    below, above = found.estimate - found.low, found.high - found.estimate
    if not math.isfinite(below + above):
        return 0.0
    if below == above == 0:
        return float(rule.holds(true))
    t = t_quantile(found.degrees)
    error = (below + above) / 2 / t
    stretch = _standard_error_ratios(found.degrees)
    with np.errstate(invalid="ignore"):
        highest = (rule.high - above * stretch - true) / error
        lowest = (rule.low + below * stretch - true) / error
    return float(np.maximum(ndtr(highest) - ndtr(lowest), 0.0).mean())


def finds(found: Interval) -> float:
    """Smallest distance from an end of a band that is detected with 80% power.

    In the quantity's own unit; infinite if the interval is unbounded.
    """
    half = max(found.high - found.estimate, found.estimate - found.low)  # a rank's ends at 1
    return half * _detectable_half_widths(found.degrees) if math.isfinite(half) else math.inf


@lru_cache(maxsize=256)
def _detectable_half_widths(degrees: float) -> float:
    """The distance that `finds` computes, in half widths of the interval."""
    unit = Interval(0.0, -1.0, 1.0, degrees)
    low, high = 0.0, 1.0
    while power(unit, ABOVE, high) < WANTED:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        enough = power(unit, ABOVE, middle) >= WANTED
        low, high = (low, middle) if enough else (middle, high)
    return high


@lru_cache(maxsize=256)
def _standard_error_ratios(degrees: float) -> npt.NDArray[np.float64]:
    """Equally likely ratios of a measured to the true standard error."""
    from scipy.special import chdtri  # pyright: ignore[reportMissingTypeStubs]

    if math.isinf(degrees):
        return np.ones(1)
    shares = (np.arange(POINTS) + 0.5) / POINTS
    return np.sqrt(np.asarray(chdtri(degrees, shares), np.float64) / degrees)
