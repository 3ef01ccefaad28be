"""What stands beside a verdict, in words: band, power, preconditions, corrections."""

from __future__ import annotations

import math
from dataclasses import replace

from harness.judge import Claim, Condition, Part, Results
from harness.judge.results import Bounds
from reports import numbers


def test_of(part: Part) -> str:
    """Where the paper has a quantity, and how well the design could tell; empty if not judged."""
    if part.band is None:
        return ""
    return " · ".join([f"holds {band(part.band)}", *_chances(part)])


def remarks(claim: Claim) -> list[str]:
    """Everything else that a reader of the verdict must know, one sentence each."""
    told = [_condition(each) for each in claim.preconditions]
    if sum(part.power is not None for part in claim.parts) > 1:
        told.append(f"Power of the parts together: {power(claim)}.")
    if claim.because:
        told.append(f"Not testable: {claim.because}")
    if claim.cannot_fail:
        told.append(f"Cannot fail: {claim.cannot_fail.rstrip('.')}.")
    if claim.verdict == "undecided" and "contradicted" in {part.verdict for part in claim.parts}:
        told.append("Contradicted in a part alone, not after the correction for their number.")
    if claim.corrected is not None and claim.corrected != claim.verdict:
        told.append(f"Corrected for the number of claims (Holm): {claim.corrected}.")
    return told


def corpus_of(results: Results) -> str:
    """The corpus, and whether seeds share it; of files that do not say, the name alone."""
    corpora = results.provenance.get("corpora")
    if not corpora:
        return results.corpus
    shared = "recorded" in corpora
    return f"{results.corpus}, {'the same for all seeds' if shared else 'another for each seed'}"


def several(claim: Claim) -> tuple[Part, ...]:
    """The parts of a claim of more than one quantity.

    Those of a claim that is not testable are shown without verdicts: whoever reads
    ``contradicted`` may rely on the paper's conditions having held.
    """
    parts = claim.parts if len(claim.parts) > 1 else ()
    judged = claim.verdict != "not testable"
    return parts if judged else tuple(replace(part, verdict=None) for part in parts)


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


def stated(item: Part | Claim) -> str:
    """The figure that a claim states; empty where it states none, as its band says enough.

    Example:
        >>> stated(Part("", 0.16)), stated(Part("", "above 0")), stated(Part(""))
        ('0.16', 'above 0', '')
    """
    return "" if item.paper is None else numbers.printed(item.paper)


def ends(part: Part) -> Bounds:
    """Where the paper has a quantity; of results that do not say, as far as its words do.

    Example:
        >>> ends(Part("", "above 0")), ends(Part("", 0.16)), ends(Part("", band=(None, 1.08)))
        ((0.0, None), (None, None), (None, 1.08))
    """
    words = {"above 0": (0.0, None), "below 0": (None, 0.0)}
    return part.band or words.get(str(part.paper), (None, None))


def power(part: Part | Claim) -> str:
    """The chance of ``reproduced`` if the paper is right; a dash where that is not known.

    Example:
        >>> power(Part("", power=0.834)), power(Part("")), power(Part("", power=0.9999))
        ('83%', '–', '> 99%')
    """
    if part.power is None:
        return numbers.MISSING
    if part.power == 1:
        return "100%"
    return "> 99%" if part.power > 0.99 else f"{math.floor(100 * part.power)}%"


def finds(part: Part) -> str:
    """The effect that is found with 80%, beyond an end of the band; blank where that says nothing.

    Example:
        >>> finds(Part("", measured=1.2, ci95=(1.0, 1.4), finds=0.3172)), finds(Part(""))
        ('0.32', '')
    """
    if not part.finds or part.ci95 is None or None in part.ci95:
        return ""
    if numbers.interval(part.measured, part.ci95) == numbers.SAME:
        return ""
    return numbers.printed(float(f"{part.finds:.2g}"))


def _chances(part: Part) -> list[str]:
    """Power, and the effect that is found."""
    if part.ci95 is not None and None in part.ci95:
        return ["no scatter is known"]
    told = [] if part.power is None else [f"power {power(part)}"]
    if found := finds(part):
        told.append(f"finds {found} beyond an end (80%)")
    return told


def _end(value: float) -> str:
    """An end of a band; of one that was computed four digits say enough."""
    return numbers.printed(float(f"{value:.4g}"))


def _condition(each: Condition) -> str:
    holds = "holds" if each.holds else "unknown" if each.measured is None else "does not hold"
    return f"Presumes {each.what}: {_found(each)} ({band(each.band)}), {holds}."


def _found(each: Condition) -> str:
    """What was measured of a condition; a whole number without chance in it is a count."""
    value, half = each.measured, numbers.half_width(each.ci95)
    if value is not None and half == 0 and float(value).is_integer():
        return numbers.measured(int(value), None)
    found = numbers.measured(value, each.ci95)
    return f"{found} [{numbers.interval(value, each.ci95)}]" if half else found
