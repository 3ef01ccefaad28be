"""Written words beside published results: ``summary.toml`` and ``reasons.toml``.

``summary.toml`` has the findings in two sentences. Figures are not written there but filled in:
``{p3.mmi-gain/small task:%}`` is the measured value of that quantity in percent. The file names the
verdict of each claim that it speaks of. ``reasons.toml`` has the verdict and its reason for every
claim that bears on its reference and does not hold. A file that speaks of another verdict than the
measured one is refused. ::

    figure = "p3.fig6"  # exhibit on the first page; a ratio over scale if none is named
    terms = "MMI: training that sets the spoken words against their rivals."
    found = "MMI training lowers the word error by {p3.mmi-gain/small task:%}."
    [verdicts]
    "p3.mmi-gain" = "reproduced"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.base.errors import UserError, name_error
from harness.base.settings import load_toml
from harness.judge.results import Claim, Results
from reports import numbers
from reports.factors import with_factors

SUMMARY, REASONS = "summary.toml", "reasons.toml"
SHOWN = 3
"""Number of statements that a sentence names; the others are counted."""
PLACE = re.compile(r"\{([a-z0-9]+\.[a-z0-9-]+)/?([^{}:]*)(?::([%~×]))?\}")
EMPHASIS = re.compile(r"(?<!\w)\*(\S(?:[^*]*\S)?)\*")
"""A pair of stars with text between; a star behind a letter, as in T*, is part of a name."""
FORMS: dict[str | None, Callable[[float], str]] = {
    None: lambda value: numbers.format_fixed(value, 2).rstrip("0").rstrip("."),
    "%": lambda value: f"{100 * value:.0f}%",
    "~": lambda value: f"{100 * abs(value - 1):.0f}%",  # the distance of a ratio from 1
    "×": lambda value: f"{value:.1f}",
}
"""Forms of a figure, by the mark behind the colon."""


def read_summary(folder: Path, results: Results) -> str:
    """The written findings with their figures; made of the claims where there is no file.

    Raises:
        UserError: the file speaks of another verdict, or of a claim that the results lack.
    """
    path = folder / SUMMARY
    if not path.exists():
        return summarise(results)
    table = _read(path)
    claims = {claim.id: claim for claim in with_factors(results).claims}
    verdicts = table.get("verdicts", {})
    _check(f"{path}: verdicts", verdicts, claims)

    def fill(match: re.Match[str]) -> str:
        id_, label, form = match.groups()
        if id_ not in verdicts:
            raise UserError(f"{path}: {id_}: its verdict is missing; needed: a line of [verdicts]")
        values = {part.label: part.measured for part in claims[id_].parts}
        if (value := values.get(label)) is None:
            raise name_error(f"{path}: {id_}", label, values)
        return FORMS[form](value)

    return PLACE.sub(fill, " ".join(table["found"].split()))


def read_words(folder: Path) -> dict[str, str]:
    """The paper's own words, explained, and the id of the first page's figure; empty if missing."""
    table = _read(folder / SUMMARY)
    return {key: " ".join(str(table.get(key, "")).split()) for key in ("terms", "figure")}


def read_reasons(folder: Path, results: Results) -> dict[str, str]:
    """Claim id -> reason from ``reasons.toml`` in ``folder``; empty without that file.

    Raises:
        UserError: the reasons do not fit the verdicts.
    """
    path = folder / REASONS
    if not path.exists():
        return {}
    reasons = _read(path)
    claims = {claim.id: claim for claim in results.claims}
    if missing := {claim.id for claim in results.claims if needs_reason(claim)} - reasons.keys():
        raise UserError(f"{path}: {', '.join(sorted(missing))}: missing; needed: a reason for each "
                        "claim that bears and does not hold")  # fmt: skip
    _check(str(path), {id_: reason["verdict"] for id_, reason in reasons.items()}, claims)
    return {id_: _plain(reason["why"]) for id_, reason in reasons.items()}


def _plain(text: str) -> str:
    """A text on one line, without Markdown's marks of emphasis and code.

    Example:
        >>> _plain("*Hand* is level with `search`, and T* is 0.3")
        'Hand is level with search, and T* is 0.3'
    """
    return EMPHASIS.sub(r"\1", " ".join(text.split())).replace("`", "")


def needs_reason(claim: Claim) -> bool:
    """Whether a claim needs a written reason: it bears on its reference, and does not hold."""
    return claim.bears and claim.here != "holds"


def summarise(results: Results) -> str:
    """Two sentences made of the claims: those that hold, and those that fail.

    Those that bear on the reference come first; what cannot fail is left out while there is more.
    """
    if not results.claims:
        return "No claim was judged."
    return f"{_name(results.claims, 'holds')} {_name(results.claims, 'fails')}"


def _name(claims: Sequence[Claim], here: str) -> str:
    chosen = [claim for claim in claims if claim.here == here]
    chosen.sort(key=lambda claim: (not claim.bears, bool(claim.cannot_fail)))
    if not chosen:
        return "No claim holds here." if here == "holds" else "None fails."
    statements = ", ".join(f"“{claim.statement.rstrip('.')}”" for claim in chosen[:SHOWN])
    count = f" and {len(chosen) - SHOWN} more" if len(chosen) > SHOWN else ""
    return f"{here.capitalize()} here: {statements}{count}."


def _read(path: Path) -> dict[str, Any]:
    return load_toml(path) if path.exists() else {}


def _check(where: str, verdicts: Mapping[str, str], claims: Mapping[str, Claim]) -> None:
    """Refuse words about claims that are not there, or that have another verdict."""
    for id_, verdict in verdicts.items():
        if id_ not in claims:
            raise name_error(where, id_, claims)
        if claims[id_].verdict != verdict:
            raise UserError(f"{where}: {id_}: {verdict!r}; measured: {claims[id_].verdict!r}")
