"""Claims as data to print: their quantities, why an answer does not bear, and notes.

The templates of the page and of the PDF print these rows; sentences on a verdict are made here and
nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import Any

from harness.judge.results import Bounds, Claim, Condition, Part
from reports import numbers
from reports.reference_terms import Words

Data = dict[str, Any]
UNBOUNDED = (None, None)


def row_of_claim(claim: Claim, words: Words, reason: str = "", bad: Collection[str] = ()) -> Data:
    """What is printed of a claim whose logarithms are factors.

    Args:
        claim: with its verdict.
        words: terms for its reference.
        reason: why it was not reproduced, as written beside its results.
        bad: hashes of runs that diverged or failed.
    """
    deciding, bad_runs = find_deciding(claim), len(set(claim.runs) & set(bad))
    return {
        "id": claim.id,
        "statement": claim.statement.rstrip("."),
        "where": claim.where,
        "statistic": claim.statistic,
        "verdict": claim.verdict,
        "place": "certain" if claim.cannot_fail else "cannot" if claim.here == "unclear" else "can",
        "survives": {None: "", claim.here: "yes"}.get(claim.corrected, "no"),
        "flag": bad_runs > 0,
        "limits": _find_limits(claim, words),
        "why": explain_bearing(claim, words),
        "notes": list(filter(None, [reason, *_notes(claim), claim.note, tell_bad_runs(bad_runs)])),
        "parts": [_row_of_part(part) | {"decides": part in deciding} for part in parts_of(claim)],
        "counts": _count_answers(claim, len(deciding)),
    }


def parts_of(claim: Claim) -> tuple[Part, ...]:
    """The quantities of a claim; one without parts is its own only quantity."""
    return claim.parts or (Part("", claim.paper, claim.measured, claim.ci95, claim.here),)


def find_deciding(claim: Claim) -> list[Part]:
    """The quantity that decides a claim; of a mixed or unclear one, also one that fails."""
    judged = [part for part in parts_of(claim) if part.here is not None] or [*parts_of(claim)]
    answer = {"mixed": "holds"}.get(claim.here, claim.here)
    answers = (answer, "fails") if claim.here in ("mixed", "unclear") else (answer,)
    parts = [next((part for part in judged if part.here == answer), None) for answer in answers]
    return [part for part in parts if part is not None] or judged[:1]


def _count_answers(claim: Claim, shown: int) -> str:
    """How many quantities hold, fail and are unclear, if more are judged than shown, and differ."""
    counts = Counter(part.here for part in parts_of(claim) if part.here is not None)
    words = {"fails": "fail", "unclear": "unclear", "holds": "hold"}
    texts = [f"{counts[answer]} {word}" for answer, word in words.items() if counts[answer]]
    is_needed = counts.total() > shown and len(texts) > 1
    return f"of {counts.total()}: {', '.join(texts)}" if is_needed else ""


def explain_bearing(claim: Claim, words: Words) -> list[str]:
    """Why an answer does not bear on its reference: a sentence for each of its ``reasons``."""
    sentences = {
        "undetermined": claim.undetermined,
        "conditions": f"Conditions that do not hold here: {'; '.join(_unmet_conditions(claim))}.",
        "power": f"Too few seeds: if {words.the} is right, such runs show it with a chance of "
        f"{_format_chance(claim.power)}.",
    }
    return [sentences[reason] for reason in claim.reasons]


def number_limits(rows: Collection[Data]) -> dict[str, str]:
    """What limits the claims' answers, by the short name under which their rows list it."""
    texts = dict.fromkeys(text for row in rows for text in row["limits"])
    return {text: f"L{number}" for number, text in enumerate(texts, 1)}


def _find_limits(claim: Claim, words: Words) -> list[str]:
    """Why an answer does not bear: what leaves it open, else conditions that are not met."""
    unmet = _unmet_conditions(claim)
    if "undetermined" in claim.reasons or not unmet:
        return explain_bearing(claim, words)[:1]
    return unmet


def _unmet_conditions(claim: Claim) -> list[str]:
    texts = (
        c.unmet or f"{c.what}: {'not measured' if c.measured is None else 'not met'}"
        for c in claim.conditions
        if not c.holds
    )
    return [*dict.fromkeys(texts)]  # several arms may miss a condition by the same value


def rows_of_conditions(claims: Collection[Claim]) -> list[list[str]]:
    """What, limit, measured value, answer and source of each condition that claims were asked."""
    conditions = {c.what: c for claim in claims for c in claim.conditions}
    return [
        [c.what, format_band(c.band), _format_value(c), ("fails", "holds")[c.holds], c.source]
        for c in conditions.values()
    ]


def tell_bad_runs(count: int) -> str:
    """Explanation of the dagger beside a figure; empty without such runs."""
    return f"† Rests on {count} run{'s' * (count != 1)} that diverged or failed." if count else ""


def format_band(ends: Bounds | None) -> str:
    """The band of a quantity, with at most four digits.

    Example:
        >>> format_band((None, 1.08)), format_band((5.0, 8.0)), format_band((0.0, None))
        ('at most 1.08', '5 to 8', 'at least 0')
    """
    low, high = (
        None if end is None else numbers.format_number(float(f"{end:.4g}"))
        for end in ends or UNBOUNDED
    )
    if low is None or high is None:
        return f"at least {low}" if low else f"at most {high}" if high else ""
    return f"{low} to {high}"


def _notes(claim: Claim) -> list[str]:
    notes = [f"Cannot fail: {claim.cannot_fail.rstrip('.')}."] if claim.cannot_fail else []
    if claim.here == "unclear" and "fails" in {part.here for part in claim.parts}:
        notes.append("A quantity alone fails, but not after the correction for their number.")
    if claim.corrected not in (None, claim.here):
        notes.append(f"After the correction for the number of claims: {claim.corrected}.")
    return notes


def _format_value(condition: Condition) -> str:
    value, half = condition.measured, numbers.half_width(condition.ci95)
    figure = numbers.format_measured(value, condition.ci95)
    return f"{figure} ({numbers.interval(value, condition.ci95)})" if half else figure


def _row_of_part(part: Part) -> Data:
    has_figure = isinstance(part.paper, int | float)
    return {
        "label": part.label,
        "paper": numbers.format_number(float(f"{part.paper:.4g}")) if has_figure else "",
        "needed": part.paper if isinstance(part.paper, str) else format_band(part.band),
        "measured": numbers.format_measured(part.measured, part.ci95),
        "interval": numbers.interval(part.measured, part.ci95),
        "here": part.here or "",
        "power": "" if part.power is None else _format_chance(part.power),
    }


def _format_chance(chance: float | None) -> str:
    """A power, rounded down: one just below a threshold does not read as reaching it."""
    if chance is None or chance == 1:
        return "" if chance is None else "100%"
    return "> 99%" if chance > 0.99 else f"{math.floor(100 * chance)}%"
