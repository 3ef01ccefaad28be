"""A claim made of judged quantities, and the power of its design.

A claim made of judged quantities: what every paper's claims end in.

What a design could have seen: the chance of ``reproduced`` if the paper is right. An estimate is
taken as normal about the true value with the measured standard error, and that error itself as
measured with the interval's degrees of freedom: the estimate's distance from an end, in measured
errors, is then a noncentral Student's t. The true error is taken to be the measured one, so of
designs with few seeds about half are told too much power and half too little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtr  # pyright: ignore[reportMissingTypeStubs]

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
"""Among the facts of results: how often their claims were judged, where that is more than once."""


@dataclass(frozen=True)
class Quantity:
    """One measured quantity of a claim.

    Attributes:
        label: which of the claim's.
        paper: the paper's figure as it is printed, or a word.
        value: ours.
        rule: where the paper has it; None for what is shown and not judged.
        true: the paper's figure in the unit of ``value``, where it prints one: power is asked
            there.
    """

    label: str
    paper: float | str | None
    value: Interval
    rule: Rule | None = None
    true: float | None = None

    @property
    def part(self) -> Part:
        """What the results file keeps of it."""
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
        """The chance of ``reproduced`` with the paper's figure true; None if it cannot be known."""
        if self.rule is None or self.true is None or math.isnan(self.true + self.value.estimate):
            return None
        return power(self.value, self.rule, self.true)


@dataclass(frozen=True)
class Precondition:
    """What the paper's statement presupposes, as the runs have it.

    Attributes:
        what: in words, with its unit.
        value: computed from the runs.
        rule: where it must lie; its estimate decides.
    """

    what: str
    value: Interval
    rule: Rule

    @property
    def condition(self) -> Condition:
        """What the results file keeps of it."""
        ends, holds = (self.rule.low, self.rule.high), self.rule.holds(self.value.estimate)
        return Condition(self.what, self.value.estimate, self.value.ci95, ends, holds)


def side_of_zero(
    label: str, difference: Interval, side: str, true: float | None = None
) -> Quantity:
    """A difference that the paper has ``"below"`` or ``"above"`` zero, judged by where it lies."""
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
    """A claim of one quantity, or of several whose judged ones must all hold.

    It is ``not testable`` where the paper leaves open what would decide, where a precondition
    does not hold, or where it would come out as ``reproduced`` with less than even chance if the
    paper were right. It is contradicted if a part is, after Holm's correction for their number.
    The first quantity is the headline; more than one are told one by one.

    Args:
        id_: as in the list of claims.
        statement: what the paper says.
        where: section, table or page.
        statistic: what is measured.
        quantities: at least one.
        runs: hashes of the runs behind them.
        note: a sentence for the reader.
        presumes: the paper's conditions.
        undetermined: what the paper does not say, if both answers follow from choices of ours.
        cannot_fail: why it holds by construction, if it does.
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

    The family are those that were tested and can fail; Holm's correction of the p-values.

    Args:
        claims: of one paper.
        looks: how often they were judged while seeds were added, this time included: Bonferroni's
            correction, which holds whatever was decided after the earlier ones.
    """
    family = [c for c in claims if c.p_value is not None and not c.cannot_fail]
    p_values = holm([looks * (c.p_value or 0.0) for c in family])
    lost = {c.id for c, p in zip(family, p_values, strict=True) if not significant(p)}
    return tuple(replace(c, corrected="undecided" if c.id in lost else c.verdict) for c in claims)


def _judge_all(quantities: Sequence[Quantity]) -> tuple[Verdict, float]:
    """The verdict of all, and its p-value; what is undecided has that of the nearer verdict."""
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
    """Which preconditions do not hold, or could not be computed."""
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
    """That the design could not have told."""
    if chance is None or chance >= ENOUGH:
        return ""
    percent = math.floor(100 * chance)  # never rounded up to what would be enough
    return f"If the stated figure is true, the chance of finding it reproduced is only {percent}%."


ENOUGH = 0.5
"""Below this chance of being reproduced a claim is not testable."""

WANTED = 0.8
"""The chance with which an effect counts as one that the design finds."""

POINTS = 400
"""Of the midpoint rule over the distribution of the measured error."""


def power(found: Interval, rule: Rule, true: float) -> float:
    """The probability that a quantity is judged ``reproduced``.

    Args:
        found: its interval, for the scatter; 0 is answered where it has no bounds.
        rule: where it should lie.
        true: where it does lie, in its own unit.
    """
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
    """How far beyond an end a quantity must lie to be told from it with 80% power.

    In the quantity's own unit; infinite where the interval has no bounds.
    """
    half = max(found.high - found.estimate, found.estimate - found.low)  # a rank's ends at 1
    return half * _detectable_half_widths(found.degrees) if math.isfinite(half) else math.inf


@lru_cache(maxsize=256)
def _detectable_half_widths(degrees: float) -> float:
    """The same, in half widths of the interval."""
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
    if math.isinf(degrees):
        return np.ones(1)
    shares = (np.arange(POINTS) + 0.5) / POINTS
    return np.sqrt(np.asarray(chdtri(degrees, shares), np.float64) / degrees)
