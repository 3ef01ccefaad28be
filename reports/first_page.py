"""One line a claim, as the first page has them: statement, reference, ours, verdict, and why not.

A claim of several quantities is told by the one that decides it. Its interval is drawn beside the
band and the reference's value, on a scale of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from harness.judge import Claim, Condition, Part
from reports import numbers, verdict_notes
from reports.reference_terms import PAPER, Words

__all__ = ["deciding_parts", "format_claim", "format_claims", "marks", "most_important_reason"]

MARGIN = 0.08
"""Share of a picture's width on either side of what is drawn."""
DIGITS = 4
MEASURES = re.compile(r",? of (?:words|characters) and of frames")
"""What a statistic says of its measures, which each quantity names itself."""
BAND = re.compile(r"at |above|below|within|wholly|inside|[\d.]+ to ")
"""Beginning of the band behind a statistic; anything else is a second statistic."""
SAME = "the reason is that of the line above"


def format_claims(claims: Sequence[Claim], said: Words = PAPER) -> list[dict[str, Any]]:
    """The lines of claims that `with_factors` has made; a reason is told once in a row."""
    lines = [format_claim(claim, said) for claim in claims]
    reasons = ["", *(line["why"] for line in lines)]
    return [
        line | {"why": SAME} if line["why"] and line["why"] == before else line
        for line, before in zip(lines, reasons, strict=False)
    ]


def format_claim(claim: Claim, said: Words = PAPER) -> dict[str, Any]:
    """The line of a claim that `with_factors` has made."""
    first, *more = deciding_parts(claim)
    labels = [_label(first, claim), *(part.label for part in more)]
    return {
        "id": claim.id,
        "statement": claim.statement.rstrip("."),
        "lines": [_line(part, label) for part, label in zip((first, *more), labels, strict=True)],
        "verdict": claim.verdict,
        "marks": marks(claim),
        "why": most_important_reason(claim, said) or _tell_correction(first, claim),
    }


def _tell_correction(part: Part, claim: Claim) -> str:
    """Why a claim is unclear of which a quantity fails; empty for any other."""
    if claim.here != "unclear" or part.here != "fails":
        return ""
    judged = sum(each.here is not None for each in claim.parts)
    return f"this quantity fails, but one of {judged} does so by chance too easily"


def deciding_parts(claim: Claim) -> list[Part]:
    """The quantity that decides a claim; of a mixed one, one that holds and one that fails."""
    judged = [part for part in claim.parts if part.here is not None]
    if not judged:
        return [Part("", claim.paper, claim.measured, claim.ci95, claim.here)]
    wanted = ("holds", "fails") if claim.here == "mixed" else (claim.here,)
    first = [next((part for part in judged if part.here == here), None) for here in wanted]
    found = [part for part in first if part is not None]
    against = [part for part in judged if part.here != "holds"]  # alone, before the correction
    return sorted(found, key=judged.index) or against[:1] or judged[:1]


def _label(part: Part, claim: Claim) -> str:
    """The statistic and the name of the quantity, with the unit where the names leave it out."""
    statistic, _, more = claim.statistic.partition("; ")
    if len(claim.parts) < 2 or not part.label:
        return statistic
    head = MEASURES.sub("", statistic)
    if "(%)" not in part.label:
        head = head.replace("(%)", "(points)")  # parts of such claims are differences
    return part.label if more and not BAND.match(more) else f"{head}: {part.label}"


def most_important_reason(claim: Claim, said: Words = PAPER) -> str:
    """Why a claim does not bear, in one short sentence; empty if it does.

    Of several conditions that do not hold it is the one that is missed by the largest factor.
    """
    if claim.bears:
        return ""
    failed = [each for each in claim.conditions if not each.holds and each.measured is not None]
    if failed:
        worst = max(failed, key=_miss)
        value = verdict_notes.format_measurement(worst, with_interval=False)
        told = worst.unmet or f"{worst.what} is {value}"
        return f"condition not met: {told} (needed: {_limit(worst)})"
    if claim.undetermined:
        return _first_clause(claim.undetermined)
    unknown = [each for each in claim.conditions if each.measured is None]
    if unknown:
        return f"condition not measured: {unknown[0].what}"
    chance = verdict_notes.power(claim)
    return f"too few seeds: if {said.the} is right, such runs show it with a chance of {chance}"


def _limit(condition: Condition) -> str:
    low, high = (None if end is None else numbers.format_number(float(f"{end:.3g}"))
                 for end in condition.band)  # fmt: skip
    if low is None or high is None:
        return f"at least {low}" if high is None else f"at most {high}"
    return f"{low} to {high}"


def _miss(condition: Condition) -> float:
    """Factor by which a condition's value misses the nearer end of its band, as a logarithm."""
    value = condition.measured or 0.0
    low, high = condition.band
    ends = [
        end
        for end, missed in (
            (low, low is not None and value < low),
            (high, high is not None and value > high),
        )
        if missed
    ]
    end = ends[0] if ends else 0.0
    if not end or not value:
        return math.inf
    return abs(math.log(abs(value) / abs(end)))


def _first_clause(text: str) -> str:
    return text.split(":")[0].split(";")[0].split(". ")[0].rstrip(".")


def marks(claim: Claim) -> list[str]:
    """Marks beside a verdict: what cannot fail, and what was another verdict or was changed."""
    found = ["cannot fail"] if claim.cannot_fail else []
    if claim.before and claim.before.split(", then ")[-1] != claim.verdict:
        found.append(f"was {claim.before}")
    if claim.changed_after_runs:
        found.append("changed after its runs")
    return found


def _line(part: Part, label: str) -> dict[str, Any]:
    measured, interval = _format_part(part)
    return {
        "label": label,
        "paper": _format_printed(part),
        "needed": _format_needed(part),
        "measured": measured,
        "interval": interval,
        "picture": picture(part),
    }


def _format_part(part: Part) -> tuple[str, str]:
    """The value and its interval with at most so many digits; no interval that shows no width."""
    value, ends = part.measured, part.ci95
    shown = numbers.format_measured(value, ends)
    if value is None or ends is None or None in ends or not numbers.half_width(ends):
        return shown, ""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    places = min(numbers.decimals(value, ends), max(0, DIGITS - 1 - magnitude))
    low, high = (numbers.format_fixed(end or 0.0, places) for end in ends)
    return numbers.format_fixed(value, places), f"{low} to {high}" if low != high else ""


def _format_printed(part: Part) -> str:
    """The reference's figure or word; empty where that is only its band."""
    if isinstance(part.paper, int | float):
        return numbers.format_number(float(f"{part.paper:.4g}"))
    told = part.paper or ""
    return "" if re.match(r"(above|below|at (most|least)) ", told) else told


def _format_needed(part: Part) -> str:
    """The band, in which the value must lie for the claim to hold; empty for one value alone."""
    low, high = part.band or (None, None)
    if low == high:
        return ""
    if None not in (low, high):
        return verdict_notes.band((low, high)).removeprefix("from ")
    if 0.0 in (low, high):
        return "above 0" if high is None else "below 0"
    return verdict_notes.band((low, high)).replace("up to", "at most").replace("from", "at least")


def picture(part: Part) -> dict[str, Any] | None:
    """Places of band, interval, estimate and the reference's value, from 0 to 1 of the width.

    None where there is nothing to compare.
    """
    band, ci95 = part.band or (None, None), part.ci95 or (None, None)
    printed = float(part.paper) if isinstance(part.paper, int | float) else None
    known = [v for v in (*band, *ci95, part.measured, printed) if v is not None]
    if part.measured is None or part.band is None or None in ci95:
        return None
    low, high = min(known), max(known)
    if high <= low:
        return None
    room = MARGIN * (high - low)
    low, high = low - room, high + room

    def place(value: float) -> float:
        return round((value - low) / (high - low), 4)

    return {
        "band": [
            0.0 if band[0] is None else place(band[0]),
            1.0 if band[1] is None else place(band[1]),
        ],
        "interval": _places(ci95, place),
        "measured": place(part.measured),
        "paper": None if printed is None else place(printed),
    }


def _places(ends: Sequence[float | None], place: Any) -> list[float]:
    return [place(end) for end in ends if end is not None]
