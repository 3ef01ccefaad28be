"""The verdict table as Markdown, for a README."""

from __future__ import annotations

from harness.judge import Claim, Part, Results
from reports import judged, numbers, reference_terms

HEAD = ("claim", "statement", "measured", "95% interval", "band", "power", "finds", "verdict")
"""Beside what the claims are held against."""


def verdict_table(results: Results) -> str:
    """One row per claim, and one below it for each of its parts.

    The line above the table says at which scale the verdicts were reached.
    """
    seeds = f"{len(results.seeds)} seed{'s' if len(results.seeds) != 1 else ''}"
    said = reference_terms.of(results)
    caution = f" These are not verdicts on {said.whole}." if results.scale == "smoke" else ""
    head = (*HEAD[:2], said.noun, *HEAD[2:])
    rows = [head, ("---",) * len(head)]
    for claim in results.claims:
        statement = f"{claim.statement.rstrip('.')}."
        parts = judged.several(claim)
        told = " ".join([_text(statement), *map(_text, judged.remarks(claim))])
        rows.append((f"`{claim.id}`", told, *_judged(claim)))
        rows += [("", "· " + _text(part.label), *_judged(part)) for part in parts]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    corpus = judged.corpus_of(results)
    where = f"{results.paper}, {results.scale} scale, {seeds}, corpus {_text(corpus)}."
    return f"{where}{caution}\n\n{table}\n"


def _judged(item: Claim | Part) -> tuple[str, ...]:
    silent = isinstance(item, Claim) and bool(judged.several(item))  # the parts below say it
    alone = item.parts[0] if isinstance(item, Claim) and item.parts else item
    band = alone.band if isinstance(alone, Part) else None
    figures = (
        _text(judged.stated(item)),
        numbers.measured(item.measured, item.ci95),
        numbers.interval(item.measured, item.ci95),
        "" if band is None else judged.band(band),
    )
    shown = ("",) * len(figures) if silent else figures
    found = judged.finds(alone) if isinstance(alone, Part) and not silent else ""
    return (*shown, judged.power(item), found, f"**{item.verdict}**" if item.verdict else "")


def _text(text: str) -> str:
    """Plain text in a cell: what Markdown would read as markup is escaped."""
    for mark in "\\|*_<`[":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())
