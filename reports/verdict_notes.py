"""Notes beside a verdict: band, power, conditions, corrections, and why it is as it is.

Beside a published ``results.json`` lies ``reasons.toml``: for every claim that bears on its
reference and does not hold, the verdict and its reason. Another claim may have an entry too, a
reservation. A reason for another verdict than the measured one is rejected.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.judge import Claim, Condition, Part, Results
from harness.judge.results import Bounds
from reports import numbers
from reports.reference_terms import PAPER, Words


def test_of(part: Part) -> str:
    """The paper's band, power and detectable effect of a quantity; empty if it is not judged."""
    if part.band is None:
        return ""
    return " · ".join([f"holds {band(part.band)}", *_chances(part)])


def remarks(claim: Claim) -> list[str]:
    """Conditions, power, corrections and other notes on a verdict, one sentence each."""
    told = [_condition(each) for each in claim.conditions]
    if sum(part.power is not None for part in claim.parts) > 1:
        told.append(f"If the claim is true, all are seen to hold: {power(claim)}.")
    if claim.cannot_fail:
        told.append(f"Cannot fail: {claim.cannot_fail.rstrip('.')}.")
    if claim.here == "unclear" and "fails" in {part.here for part in claim.parts}:
        told.append("A part alone fails, but not after the correction for their number.")
    if claim.corrected is not None and claim.corrected != claim.here:
        told.append(f"After the correction for the number of claims: {claim.corrected}.")
    if claim.changed_after_runs:
        told.append(f"Changed after its runs: {claim.changed_after_runs.rstrip('.')}.")
    if claim.before:
        told.append(f"Published before as {claim.before}.")
    return told


def corpus_of(results: Results) -> str:
    """The corpus, and whether seeds share it; the name alone where the results do not record it."""
    corpora = results.provenance.get("corpora")
    if not corpora:
        return results.corpus
    if "recorded" in corpora:
        return f"{results.corpus}, recorded, the same for all seeds"
    return f"{results.corpus}, synthetic, another for each seed"


def parts_of(claim: Claim) -> tuple[Part, ...]:
    """The parts of a claim of more than one quantity."""
    return claim.parts if len(claim.parts) > 1 else ()


def band(ends: Bounds) -> str:
    """A band in words.

    Example:
        >>> band((None, 1.08)), band((5.0, 8.0)), band((0.0, None))
        ('up to 1.08', 'from 5 to 8', 'from 0')
    """
    low, high = ends
    told = (
        "" if low is None else f"from {_end(low)}",
        "" if high is None else f"{'up ' if low is None else ''}to {_end(high)}",
    )
    return " ".join(filter(None, told)) or "anywhere"


def format_paper_value(item: Part | Claim) -> str:
    """The figure that a claim states; empty where it states none, as its band says enough.

    Example:
        >>> parts = Part("", 0.16), Part("", "above 0"), Part("")
        >>> tuple(map(format_paper_value, parts))
        ('0.16', 'above 0', '')
    """
    return "" if item.paper is None else numbers.format_number(item.paper)


def ends(part: Part) -> Bounds:
    """The paper's band of a quantity; where the results have none, the one in the paper's words.

    Example:
        >>> ends(Part("", "above 0")), ends(Part("", 0.16)), ends(Part("", band=(None, 1.08)))
        ((0.0, None), (None, None), (None, 1.08))
    """
    words = {"above 0": (0.0, None), "below 0": (None, 0.0)}
    return part.band or words.get(str(part.paper), (None, None))


def power(part: Part | Claim) -> str:
    """The chance of ``holds`` if the paper is right; a dash where that is not known.

    Example:
        >>> power(Part("", power=0.834)), power(Part("")), power(Part("", power=0.9999))
        ('83%', '–', '> 99%')
    """
    if part.power is None:
        return numbers.MISSING
    if part.power == 1:
        return "100%"
    # Rounded down, so that a power just below a threshold does not read as reaching it.
    return "> 99%" if part.power > 0.99 else f"{math.floor(100 * part.power)}%"


def detectable_effect(part: Part) -> str:
    """The effect that is found with 80%, beyond an end of the band; blank where that says nothing.

    Example:
        >>> parts = Part("", measured=1.2, ci95=(1.0, 1.4), finds=0.3172), Part("")
        >>> tuple(map(detectable_effect, parts))
        ('0.32', '')
    """
    if not part.finds or part.ci95 is None or None in part.ci95:
        return ""
    if numbers.interval(part.measured, part.ci95) == numbers.SAME:
        return ""
    return numbers.format_number(float(f"{part.finds:.2g}"))


def _chances(part: Part) -> list[str]:
    """Power, and the effect that is found."""
    if part.ci95 is not None and None in part.ci95:
        return ["one seed: no interval"]
    told = [] if part.power is None else [f"if the claim is true, seen to hold {power(part)}"]
    if found := detectable_effect(part):
        told.append(f"{found} beyond an end is seen four times in five")
    return told


def _end(value: float) -> str:
    """An end of a band; of one that was computed four digits say enough."""
    return numbers.format_number(float(f"{value:.4g}"))


def _condition(each: Condition) -> str:
    holds = "holds" if each.holds else "unknown" if each.measured is None else "does not hold"
    return f"Condition, {each.what}: {format_measurement(each)} ({band(each.band)}), {holds}."


def format_measurement(each: Condition, *, with_interval: bool = True) -> str:
    """The measured value of a condition; a whole number without scatter is a count."""
    value, half = each.measured, numbers.half_width(each.ci95)
    if value is not None and half == 0 and float(value).is_integer():
        return numbers.format_measured(int(value), None)
    found = numbers.format_measured(value, each.ci95)
    return f"{found} [{numbers.interval(value, each.ci95)}]" if half and with_interval else found


REASONS_TOML = "reasons.toml"

EMPHASIS = re.compile(r"(?<!\w)\*(\S(?:[^*]*\S)?)\*")
"""A pair of stars with text between; a star behind a letter, as in T*, is part of a name."""

EVERY_REASON = "a reason for each claim that bears and does not hold"


def needs_reason(claim: Claim) -> bool:
    """Whether a claim needs a written reason: it bears on its reference, and does not hold."""
    return claim.bears and claim.here != "holds"


def read_reasons(folder: Path, results: Results) -> dict[str, str]:
    """Claim id -> reason from ``reasons.toml`` in ``folder``; empty without that file.

    Raises:
        UserError: the reasons do not fit the verdicts.
    """
    path = folder / REASONS_TOML
    if not path.exists():
        return {}
    reasons = tomllib.loads(path.read_text(encoding="utf-8"))
    verdicts = {claim.id: claim.verdict for claim in results.claims}
    needed = {claim.id for claim in results.claims if needs_reason(claim)}
    if missing := needed - reasons.keys():
        raise UserError(f"{path}: {', '.join(sorted(missing))}: missing; needed: {EVERY_REASON}")
    if odd := reasons.keys() - verdicts.keys():
        raise UserError(f"{path}: {min(odd)}: no claim; allowed: {', '.join(verdicts)}")
    for id_, reason in reasons.items():
        if reason["verdict"] != verdicts[id_]:
            raise UserError(
                f"{path}: {id_}: explains {reason['verdict']!r}; measured: {verdicts[id_]!r}"
            )
    return {id_: " ".join(reason["why"].split()) for id_, reason in reasons.items()}


def why(claim: Claim, said: Words = PAPER) -> str:
    """Explanation of a verdict: why it does not bear, and its intervals where it does not hold.

    Args:
        claim: with its verdict.
        said: terms for its reference.
    """
    bearing = f"It does not bear on {said.the}: {' '.join(claim.reasons)}" if claim.reasons else ""
    return " ".join(filter(None, [_why_here(claim, said), bearing]))


def _why_here(claim: Claim, said: Words) -> str:
    """The intervals of a claim that does not hold."""
    if claim.here == "holds":
        return ""
    parts = claim.parts or (Part("", claim.paper, claim.measured, claim.ci95, claim.here),)
    of = len(parts)
    against = [part for part in parts if part.here == "fails"]
    if claim.here == "fails":
        return _format_intervals(
            against, f"No value of its interval agrees with {said.the}", of, said
        )
    if claim.here == "mixed":
        return _format_intervals(against, "One measure holds, another does not", of, said)
    crossing = [part for part in parts if part.here == "unclear"]
    told = [
        _format_intervals(crossing, "Its interval crosses an end", of, said),
        _format_intervals(
            against, "Fails by itself, but not after the correction for the parts", of, said
        ),
        _format_missing(parts),
    ]
    return " ".join(filter(None, told)) or "It was not measured."


def heading(verdict: str) -> str:
    """Heading of a reason; that of a reproduced claim is a reservation.

    Example:
        >>> heading("unclear"), heading("reproduced"), heading("holds here")
        ('Why unclear', 'With a reservation', 'Why it holds here only')
    """
    if verdict in ("holds here", "fails here"):
        return f"Why it {verdict} only"
    return "With a reservation" if verdict == "reproduced" else f"Why {verdict}"


def plain(text: str) -> str:
    """Text without Markdown's emphasis and code marks.

    Example:
        >>> plain("*Hand* is level with `search`, and T* is 0.3")
        'Hand is level with search, and T* is 0.3'
    """
    return EMPHASIS.sub(r"\1", text).replace("`", "")


def _format_intervals(parts: Sequence[Part], what: str, of: int, said: Words) -> str:
    known = [_interval(part, said, named=of > 1) for part in parts if part.measured is not None]
    return f"{what}: {'; '.join(known)}." if known else ""


def _format_missing(parts: Sequence[Part]) -> str:
    missing = [part.label for part in parts if part.here and part.measured is None]
    return f"No estimate: {'; '.join(missing)}." if any(missing) else ""


def _interval(part: Part, said: Words, *, named: bool) -> str:
    held = f" ({said.the} holds {band(part.band)})" if part.band else ""
    label = f"{part.label}, " if named and part.label else ""
    return f"{label}{numbers.interval(part.measured, part.ci95)}{held}"
