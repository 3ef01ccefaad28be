"""Results as reports print them: quantities whose numbers are logarithms become factors.

Intervals and p-values are computed on the logarithms, and ``results.json`` keeps these. A factor,
its interval and its band follow from them end by end, so no answer changes.
"""

from __future__ import annotations

from dataclasses import replace

from harness.judge.results import Bounds, Claim, Part, Results

WORDS = {"above 0": "above 1", "below 0": "below 1"}


def with_factors(results: Results) -> Results:
    """The same results with factors in place of logarithms.

    Example:
        >>> made = _part(Part("", "above 0", 1.0, (0.0, 2.0), band=(0.0, None), is_log2=True))
        >>> made.paper, made.measured, made.ci95, made.band
        ('above 1', 2.0, (1.0, 4.0), (1.0, None))
    """
    return replace(results, claims=tuple(map(_claim, results.claims)))


def _claim(claim: Claim) -> Claim:
    parts = tuple(_part(part) if part.is_log2 else part for part in claim.parts)
    if not (claim.parts and claim.parts[0].is_log2):
        return replace(claim, parts=parts)
    head = parts[0]
    return replace(claim, paper=head.paper, measured=head.measured, ci95=head.ci95, parts=parts)


def _part(part: Part) -> Part:
    paper = part.paper
    paper = WORDS.get(paper, paper) if isinstance(paper, str) else _factor(paper)
    return replace(
        part,
        paper=paper,
        measured=_factor(part.measured),
        ci95=None if part.ci95 is None else _ends(part.ci95),
        band=None if part.band is None else _ends(part.band),
        sample=None,  # values of logarithms
        is_log2=False,
    )


def _ends(ends: Bounds) -> Bounds:
    low, high = map(_factor, ends)
    return low, high


def _factor(value: float | None) -> float | None:
    return None if value is None else float(2.0**value)
