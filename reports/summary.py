"""The findings of a report, in two sentences.

A published report has them in ``summary.toml`` beside its results, written for its claims. Figures
are not written there but filled in: ``{p3.mmi-gain/small task:%}`` is the measured value of that
quantity in percent. The file names the verdict of each claim that it speaks of, and is refused
where a verdict is another one. Any other report gets sentences made of its claims' statements. Its
``terms`` explain the paper's own words, which statements and quantities use. ::

    terms = "MMI: training that sets the spoken words against their rivals."
    found = "MMI training lowers the word error by {p3.mmi-gain/small task:%}."
    [verdicts]
    "p3.mmi-gain" = "reproduced"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.base.errors import UserError, name_error
from harness.judge import Claim, Part, Results
from reports import numbers
from reports.factors import with_factors

__all__ = ["SUMMARY_TOML", "read_summary", "read_terms", "summarise"]

SUMMARY_TOML = "summary.toml"
SHOWN = 3
"""Number of statements that a sentence names; the others are counted."""
PLACE = re.compile(r"\{([a-z0-9]+\.[a-z0-9-]+)/?([^{}:]*)(?::([%~×]))?\}")
FORMS: dict[str | None, Callable[[float], str]] = {
    None: lambda value: numbers.format_fixed(value, 2).rstrip("0").rstrip("."),
    "%": lambda value: f"{100 * value:.0f}%",
    "~": lambda value: f"{100 * abs(value - 1):.0f}%",  # the distance of a ratio from 1
    "×": lambda value: f"{value:.1f}",
}
"""Forms of a figure, by the mark behind the colon."""


def read_summary(folder: Path, results: Results) -> str:
    """The written sentences with their figures; made of the claims where there is no file.

    Raises:
        UserError: the file speaks of another verdict, or of a claim that the results lack.
    """
    path = folder / SUMMARY_TOML
    if not path.exists():
        return summarise(results)
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    claims = {claim.id: claim for claim in with_factors(results).claims}
    for id_, verdict in told.get("verdicts", {}).items():
        if id_ not in claims:
            raise name_error(f"{path}: verdicts", id_, claims)
        if claims[id_].verdict != verdict:
            raise UserError(
                f"{path}: {id_}: speaks of {verdict!r}; measured: {claims[id_].verdict!r}"
            )

    def fill(match: re.Match[str]) -> str:
        id_, label, form = match.groups()
        if id_ not in told.get("verdicts", {}):
            raise UserError(f"{path}: {id_}: its verdict is missing; needed: a line of [verdicts]")
        parts = {part.label: part for part in claims[id_].parts}
        if label not in parts:
            raise name_error(f"{path}: {id_}", label, parts)
        return _format(parts[label], form, f"{path}: {id_}/{label}")

    return PLACE.sub(fill, " ".join(told["found"].split()))


def read_terms(folder: Path) -> str:
    """The paper's own words, explained; empty where there is no file, or nothing in it."""
    path = folder / SUMMARY_TOML
    told = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return " ".join(str(told.get("terms", "")).split())


def _format(part: Part, form: str | None, where: str) -> str:
    if part.measured is None:
        raise UserError(f"{where}: was not measured")
    return FORMS[form](part.measured)


def summarise(results: Results) -> str:
    """Two sentences made of the claims: those that hold, and those that fail.

    Those that bear on the reference come first; what cannot fail is left out while there is more.
    """
    if not results.claims:
        return "No claim was judged."
    pairs = [("holds", "reproduced"), ("fails", "contradicted")]
    told = [_sentence(results.claims, here, verdict) for here, verdict in pairs]
    return " ".join(told)


def _sentence(claims: Sequence[Claim], here: str, verdict: str) -> str:
    found = sorted(
        (claim for claim in claims if claim.here == here),
        key=lambda claim: (claim.verdict != verdict, bool(claim.cannot_fail)),
    )
    if not found:
        return "No claim holds here." if here == "holds" else "None fails."
    named = ", ".join(f"“{claim.statement.rstrip('.')}”" for claim in found[:SHOWN])
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{'Holds' if here == 'holds' else 'Fails'} here: {named}{more}."
