"""A claim made of judged quantities: its two answers, and the power of its design.

The power is the probability of ``holds`` if the paper is right. An estimate is taken as
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

from harness.judge.claims import ABOVE, BELOW, Here, Rule, all_of, holm, significant
from harness.judge.interval import Interval
from harness.judge.results import Claim, Condition, Part
from harness.judge.statistics import t_quantile

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
        measure: error or reading that it is about, e.g. ``"frames"``, where a claim judges several.
        is_log2: whether its numbers are logarithms to base 2 of a factor.
    """

    label: str
    paper: float | str | None
    value: Interval
    rule: Rule | None = None
    true: float | None = None
    measure: str = ""
    is_log2: bool = False

    @property
    def part(self) -> Part:
        """Entry of the results file for this quantity."""
        part = Part(self.label, self.paper, self.value.estimate, self.value.ci95)
        part = replace(part, sample=self.value.sample, measure=self.measure, is_log2=self.is_log2)
        if self.rule is None:
            return part
        return replace(
            part, here=self.rule.judge(self.value), band=(self.rule.low, self.rule.high),
            power=self.power,
        )  # fmt: skip

    @property
    def power(self) -> float | None:
        """Probability of ``holds`` if the paper's figure is true; None if not computable."""
        if self.rule is None or self.true is None or math.isnan(self.true + self.value.estimate):
            return None
        return power(self.value, self.rule, self.true)


class Digits(float):
    """A number that a sentence has in digits: 117,000 where its format gives 1.17e+05."""

    def __format__(self, spec: str) -> str:
        text = super().__format__(spec)
        return f"{float(text):,.0f}" if "e+" in text else text


@dataclass(frozen=True)
class Precondition:
    """A condition of the paper's regime, measured on the runs.

    Attributes:
        what: the condition in words, with the unit.
        value: measured value.
        rule: band that the estimate must lie in.
        name: its name in the paper's ``registered.toml``.
        source: where the paper has the limit from.
        unmet: plain words on a value that does not hold, in which ``{value:…}`` takes its place.
    """

    what: str
    value: Interval
    rule: Rule
    name: str = ""
    source: str = ""
    unmet: str = ""

    @property
    def condition(self) -> Condition:
        """Entry of the results file for this condition."""
        ends, holds = (self.rule.low, self.rule.high), self.rule.holds(self.value.estimate)
        value, unmet = self.value, ""
        if self.unmet and not holds and not math.isnan(value.estimate):
            unmet = self.unmet.format(value=Digits(value.estimate))
        facts = (self.name, self.source, unmet)
        return Condition(self.what, value.estimate, value.ci95, ends, holds, *facts)


def side_of_zero(
    label: str, difference: Interval, side: str, true: float | None = None, measure: str = ""
) -> Quantity:
    """Quantity of a difference that is ``"below"`` or ``"above"`` zero according to the paper."""
    rule = {"below": BELOW, "above": ABOVE}[side]
    return Quantity(label, f"{side} 0", difference, rule, true, measure)


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
    """Judge a claim of one or more quantities, and whether that bears on the paper.

    The claim holds if all quantities with a rule do. It fails if a part does, after Holm's
    correction for the number of parts. Where quantities are of several measures and one measure
    holds while another fails, it is ``mixed``. The first quantity is the headline.

    It does not bear on the paper where the paper leaves a deciding choice open, where a condition
    of the paper's regime does not hold, and, if it is ``unclear``, where its power is below one
    half: an interval wholly outside of the band has seen its effect.

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
    conditions = tuple(entry.condition for entry in presumes)
    powers = [entry.power for entry in quantities if entry.power is not None]
    chance = math.prod(powers) if powers else None
    judged = [(q.value, q.rule, q.measure) for q in quantities if q.rule is not None]
    answer, p = judge_quantities(judged)
    head = quantities[0]
    return Claim(
        id_, statement, where, statistic, head.paper, head.value.estimate, head.value.ci95,
        answer, undetermined, conditions, cannot_fail, runs=runs, note=note,
        parts=tuple(entry.part for entry in quantities), power=chance, p_value=p,
    )  # fmt: skip


def correct_verdicts(claims: Sequence[Claim], looks: int = 1) -> tuple[Claim, ...]:
    """The same claims, each with its answer after a correction over all of them.

    The family is the claims that can fail; their p-values are corrected by Holm.

    Args:
        claims: claims of one paper.
        looks: number of times they were judged while seeds were added, this time included.
            P-values are multiplied by it (Bonferroni), valid for any rule of adding seeds.
    """
    family = [c for c in claims if c.p_value is not None and not c.cannot_fail]
    p_values = holm([looks * (c.p_value or 0.0) for c in family])
    lost = {c.id for c, p in zip(family, p_values, strict=True) if not significant(p)}
    return tuple(replace(c, corrected="unclear" if c.id in lost else c.here) for c in claims)


Judged = tuple[Interval, Rule, str]
"""A quantity that is judged: value, band, and the measure that it is about."""


def judge_quantities(quantities: Sequence[Judged]) -> tuple[Here, float]:
    """Joint answer and p-value; ``mixed`` if one measure holds while another fails.

    A quantity without a measure belongs to every one.
    """
    measures = dict.fromkeys(measure for _, _, measure in quantities if measure)
    answers = [
        _judge_all([quantity for quantity in quantities if quantity[2] in ("", measure)])
        for measure in measures
    ]
    if {"holds", "fails"} <= {answer for answer, _ in answers}:
        return "mixed", max(p for answer, p in answers if answer in ("holds", "fails"))
    return _judge_all(quantities)


def _judge_all(quantities: Sequence[Judged]) -> tuple[Here, float]:
    """Joint answer and its p-value; an unclear one has the p-value of the nearer answer."""
    p_values = [rule.p_values(value) for value, rule, _ in quantities]
    against = holm([inside for _, inside in p_values])
    answers: list[Here] = []
    for (value, rule, _), p in zip(quantities, against, strict=True):
        answer = rule.judge(value)
        lost = answer == "fails" and len(quantities) > 1 and not significant(p)
        answers.append("unclear" if lost else answer)
    joint = all_of(answers)
    holds, fails = max(outside for outside, _ in p_values), min(against)
    return joint, {"holds": holds, "fails": fails}.get(joint, min(holds, fails))


POINTS = 400
"""Points of the midpoint rule over the distribution of the measured error."""


def power(value: Interval, rule: Rule, true: float) -> float:
    """Probability that a quantity is judged ``holds``.

    Mean over ratios r of measured to true standard error of Φ((high - a r - true) / e) - Φ((low +
    b r - true) / e), with a, b the interval's upper and lower half widths and e its error.

    Args:
        value: measured interval, for the scatter; the power is 0 if it is unbounded.
        rule: band according to the paper.
        true: assumed true value, in the quantity's unit.
    """
    from scipy.special import ndtr  # pyright: ignore[reportMissingTypeStubs]

    below, above = value.estimate - value.low, value.high - value.estimate
    if not math.isfinite(below + above):
        return 0.0
    if below == above == 0:
        return float(rule.holds(true))
    t = t_quantile(value.degrees)
    error = (below + above) / 2 / t
    stretch = _standard_error_ratios(value.degrees)
    with np.errstate(invalid="ignore"):
        highest = (rule.high - above * stretch - true) / error
        lowest = (rule.low + below * stretch - true) / error
    return float(np.maximum(ndtr(highest) - ndtr(lowest), 0.0).mean())


@lru_cache(maxsize=256)
def _standard_error_ratios(degrees: float) -> npt.NDArray[np.float64]:
    """Equally likely ratios of a measured to the true standard error."""
    from scipy.special import chdtri  # pyright: ignore[reportMissingTypeStubs]

    if math.isinf(degrees):
        return np.ones(1)
    shares = (np.arange(POINTS) + 0.5) / POINTS
    return np.sqrt(np.asarray(chdtri(degrees, shares), np.float64) / degrees)
