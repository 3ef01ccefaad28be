"""Generator of the verdict tables in README and docs, from ``reports/published``.

``python -m reports.verdicts`` rewrites the text between the markers of `PAGES`, tables in Markdown,
and the pictures of claims that are followed over scale.
A published report gives a reason for every claim that bears on its reference and does not hold
(`reports.verdict_notes`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from harness.base.errors import UserError
from harness.base.printable import printable
from harness.judge import Claim, Exhibit, Part, Results, read_results
from harness.judge.claims import VERDICTS
from harness.store.files import write_bytes
from reports import extrapolation, numbers, reference_terms, verdict_notes
from reports.factors import with_factors
from reports.summary import read_summary
from reports.verdict_notes import (
    EVERY_REASON,
    REASONS_TOML,
    heading,
    needs_reason,
    read_reasons,
)

BEGIN, END = "<!-- verdicts: begin -->", "<!-- verdicts: end -->"


SCALES = ("smoke", "laptop", "overnight", "gpu", "paper")
"""Scales of reproductions, the smallest first; one of another name comes after them."""


@dataclass(frozen=True)
class Publication:
    """One published result.

    Attributes:
        folder: ``reports/published/PAPER/SCALE``.
        results: its ``results.json``.
        reasons: claim id -> reason why it was not reproduced.
        found: what was found, in two sentences.
    """

    folder: Path
    results: Results
    reasons: Mapping[str, str]
    found: str = ""


def read_published(root: Path) -> list[Publication]:
    """Every result below ``root/reports/published``, by paper and scale.

    Raises:
        UserError: a damaged file, or reasons that do not fit the verdicts.
    """
    files = sorted((root / "reports" / "published").glob("*/*/results.json"))
    return [_read(path.parent) for path in files]


HEAD = ("report", "scale", "corpus", "seeds", *VERDICTS, "cannot fail", "stay when corrected")
"""Of the summary; the last two are of the decided claims, and of those of them that can fail."""


def summary(items: Sequence[Publication], to_root: str = "") -> str:
    """Markdown table: the number of claims with each verdict, one row a report.

    Args:
        items: published results, in the order of the rows.
        to_root: relative path from the page to the root of the project.
    """
    return _format_table(HEAD, (_counts(item, to_root) for item in items))


def short_summary(items: Sequence[Publication]) -> str:
    """``summary`` for the README: scale and seeds in one column, and only the verdicts counted."""
    rows = (_counts(item, "") for item in items)
    head = ("report", "scale", *VERDICTS)
    return _format_table(
        head,
        (
            (report, f"{scale}, {seeds} seeds", *counts[: len(VERDICTS)])
            for report, scale, _, seeds, *counts in rows
        ),
    )


def findings(items: Sequence[Publication]) -> str:
    """One line a paper, or set of predictions: its title and what was found at its largest scale.

    For a page in `PAPER_PAGES`' parent.
    """
    lines = [
        f"- **[{_text(_title(item))}](verdicts/{item.results.paper}.md)** {_text(item.found)}\n"
        for item in _largest(items)
    ]
    return "".join(lines)


def _title(item: Publication) -> str:
    return str(item.results.provenance.get("reference", {}).get("title", item.results.paper))


def overview(items: Sequence[Publication]) -> str:
    """The summary; one row a claim; and the verdicts that were others before.

    The measured value, its 95% interval and both answers are of the largest scale that has the
    claim.
    """
    scales = sorted({item.results.scale for item in items}, key=size_of_scale)
    head = ("claim", "statement", "claimed", "measured", *scales, "runs show", "bears")
    found: dict[str, dict[str, tuple[Claim, Publication]]] = {}
    for item in items:
        for claim in item.results.claims:
            found.setdefault(claim.id, {})[item.results.scale] = claim, item
    rows = [_claim_row(by_scale, scales) for by_scale in found.values()]
    claims = ["## Claims", "", count_answers(items), "", _format_table(head, rows)]
    curves = ["## Over scale", "", CURVES, "", list_curves(items)]
    changed = ["## Changed verdicts", "", list_changes(items)]
    return "\n".join([summary(items, "../"), *claims, *curves, *changed])


CURVES = (
    "Ratios of headline claims at sizes with fresh seeds, whose number is in brackets. A law "
    "through them gives the value at the paper's size, and is checked on the largest size that was "
    "run. The answer is unclear until all registered sizes are run."
)


def list_curves(items: Sequence[Publication]) -> str:
    """Table and pictures of the claims that are followed over scale."""
    curves = _curves(items)
    rows = [tuple(map(_text, row)) for _, each in curves for row in extrapolation.list_trends(each)]
    pictures = [f"\n![{_text(each.title)}](pictures/{each.id}.png)\n" for _, each in curves]
    return "".join([_format_table(extrapolation.HEAD, rows), *pictures])


def _curves(items: Sequence[Publication]) -> list[tuple[Results, Exhibit]]:
    """The curves of the largest scale of each paper."""
    return [
        (item.results, exhibit)
        for item in _largest(items)
        for exhibit in item.results.exhibits
        if exhibit.curve is not None
    ]


def _largest(items: Sequence[Publication]) -> list[Publication]:
    """Of each paper, the publication of its largest scale."""
    found = {
        item.results.paper: item
        for item in sorted(items, key=lambda item: size_of_scale(item.results.scale))
    }
    return [found[paper] for paper in sorted(found)]


def count_answers(items: Sequence[Publication]) -> str:
    """Sentence: how many claims hold, fail, are unclear or mixed at the largest scale, and bear."""
    told: list[str] = []
    for scale, group in groupby(_largest(items), key=lambda item: item.results.scale):
        same = list(group)
        claims = [claim for item in same for claim in item.results.claims]
        found = Counter(claim.here for claim in claims)
        names = ", ".join(item.results.paper for item in same)
        told.append(
            f"Of the {len(claims)} claims of {names} at {scale} scale, {found['holds']} hold, "
            f"{found['fails']} fail, {found['unclear']} are unclear and {found['mixed']} mixed; "
            f"{sum(claim.bears for claim in claims)} of these answers bear."
        )
    return " ".join(told)


NOTHING = "not testable"
"""Earlier verdict of a claim with a condition that was not met, whatever its runs had shown."""


def list_changes(items: Sequence[Publication]) -> str:
    """Count and table of claims with another verdict before, at the largest scale of each paper."""
    changed = [
        claim
        for item in _largest(items)
        for claim in item.results.claims
        if claim.before and {claim.verdict} != set(claim.before.split(", then "))
    ]
    silent = [claim for claim in changed if NOTHING in claim.before.split(", then ")]
    removed = sum(claim.before.startswith(f"contradicted, then {NOTHING}") for claim in silent)
    against = sum(claim.here in ("fails", "mixed") for claim in silent)
    unclear = sum(claim.here == "unclear" for claim in silent)
    rows = [
        (
            f"`{claim.id}`",
            claim.before,
            claim.verdict,
            "; ".join(filter(None, (RULES if claim in silent else "", claim.changed_after_runs))),
        )
        for claim in changed
    ]
    taken = f"Of all {len(silent)}, {removed} had been published as `contradicted` before. "
    return (
        f"By earlier rules {len(silent)} claims were `{NOTHING}`: of them {against} fail or are "
        f"mixed, {unclear} unclear; number that hold: {len(silent) - against - unclear}. "
        f"{taken if removed else ''}Where the table says {RULES}, a condition that is not met, a "
        "choice that the paper leaves open and few seeds no longer take away what the runs show."
        "\n\n" + _format_table(("claim", "was", "is", "why"), rows)
    )


RULES = "“the rules”"
"""Reason of a changed verdict of a claim that was `NOTHING`."""


def size_of_scale(scale: str) -> int:
    """Place of a scale among all, the smallest first."""
    return SCALES.index(scale) if scale in SCALES else len(SCALES)


def _claim_row(
    by_scale: Mapping[str, tuple[Claim, Publication]], scales: Sequence[str]
) -> tuple[str, ...]:
    claim, item = by_scale[max(by_scale, key=size_of_scale)]
    parts = len(verdict_notes.parts_of(claim))
    value = numbers.format_measured(claim.measured, claim.ci95)
    interval = numbers.interval(claim.measured, claim.ci95)
    measured = f"{parts} quantities" if parts else f"{value} ({interval})" if interval else value
    name = f"[`{claim.id}`](verdicts/{item.results.paper}.md)"
    claimed = "" if parts else _text(verdict_notes.format_paper_value(claim))
    verdicts = (by_scale[s][0].verdict if s in by_scale else "" for s in scales)
    bears = "yes" if claim.bears else "no"
    statement = _text(claim.statement.rstrip("."))
    return (name, statement, claimed, measured, *verdicts, claim.here, bears)


def pages(items: Sequence[Publication]) -> str:
    """Every claim of the published results of one paper, a section a scale, as Markdown."""
    return "\n".join(map(page, items))


def page(item: Publication) -> str:
    """Every claim with its parts, and the reasons below, as Markdown."""
    title = f"## {item.results.scale.capitalize()} scale"
    reasons = [
        f"- `{claim.id}`. {heading(claim.verdict)}: {item.reasons[claim.id]}"
        for claim in item.results.claims
        if claim.id in item.reasons
    ]
    facts = item.results.provenance
    source = f"From `{item.folder.as_posix()}/results.json`, commit {facts.get('git', 'unknown')}."
    parts = [title, source, verdict_table(item.results).strip()]
    return "\n\n".join([*parts, *(["\n".join(reasons)] if reasons else [])]) + "\n"


PAGES = {
    Path("README.md"): short_summary,
    Path("docs/index.md"): findings,
    Path("docs/verdicts.md"): overview,
}
"""The pages with the verdicts of all papers, each with its form."""
PAPER_PAGES = Path("docs/verdicts")
"""The folder of the pages of one paper, ``PAPER.md``."""


def render_pages(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Each page with its text as it is and as it should be.

    Raises:
        UserError: a page has no markers.
    """
    found = [_relative(item, root) for item in read_published(root)]
    forms = {name: form(found) for name, form in PAGES.items()}
    for paper, items in groupby(found, key=lambda item: item.results.paper):
        forms[PAPER_PAGES / f"{paper}.md"] = pages(list(items))
    for name, form in forms.items():
        text = (root / name).read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise UserError(f"{name}: the markers {BEGIN!r} and {END!r} are missing")
        yield root / name, text, f"{before}{BEGIN}\n{form}{END}{after}"


PICTURES = Path("docs/pictures")


def draw_curves(root: Path) -> Iterator[tuple[Path, bytes]]:
    """The pictures that `list_curves` shows, by their paths."""
    for results, exhibit in _curves(read_published(root)):
        drawn = extrapolation.draw_curve(exhibit, reference_terms.words_of(results).printed)
        yield root / PICTURES / f"{exhibit.id}.png", dict(drawn)["png"]


def main(root: Path) -> int:
    """Rewrite the pages that are out of date, and the pictures; returns the exit code."""
    for path, text, fresh in render_pages(root):
        if text != fresh:
            write_bytes(path, fresh.encode())
            print(path)
    for path, drawn in draw_curves(root):
        if not path.exists() or path.read_bytes() != drawn:
            write_bytes(path, drawn)
            print(path)
    return 0


def _format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _read(folder: Path) -> Publication:
    results = with_factors(printable(read_results(folder / "results.json")))
    reasons = read_reasons(folder, results)
    if not reasons and any(map(needs_reason, results.claims)):
        raise UserError(f"{folder / REASONS_TOML}: no such file; needed: {EVERY_REASON}")
    return Publication(folder, results, reasons, read_summary(folder, results))


def _relative(item: Publication, root: Path) -> Publication:
    return replace(item, folder=item.folder.relative_to(root))


def _counts(item: Publication, to_root: str) -> tuple[str, ...]:
    results = item.results
    report = f"[{results.paper}]({to_root}{item.folder.as_posix()}/report.pdf)"
    found = Counter(claim.verdict for claim in results.claims)
    counts = (str(found[verdict]) for verdict in VERDICTS)
    decided = [claim for claim in results.claims if claim.decided]
    open_ = [c for c in decided if not c.cannot_fail]
    stay = sum(c.corrected in (None, c.here) for c in open_)
    sure = str(len(decided) - len(open_))
    last = (sure, f"{stay} of {len(open_)}")
    return (report, results.scale, results.corpus, str(len(results.seeds)), *counts, *last)


COLUMNS = ("claim", "statement", "measured", "95% interval", "band", "power", "finds", "verdict")
"""Columns of the verdict table, beside the reference's."""


def verdict_table(results: Results) -> str:
    """One row per claim, and one below it for each of its parts.

    The line above the table says at which scale the verdicts were reached.
    """
    seeds = f"{len(results.seeds)} seed{'s' if len(results.seeds) != 1 else ''}"
    said = reference_terms.words_of(results)
    caution = f" These are not verdicts on {said.whole}." if results.scale == "smoke" else ""
    head = (*COLUMNS[:2], said.noun, *COLUMNS[2:])
    rows = [head, ("---",) * len(head)]
    for claim in results.claims:
        statement = f"{claim.statement.rstrip('.')}."
        parts = verdict_notes.parts_of(claim)
        told = " ".join([_text(statement), *map(_text, verdict_notes.remarks(claim))])
        rows.append((f"`{claim.id}`", told, *_verdict_cells(claim)))
        rows += [("", "· " + _text(part.label), *_verdict_cells(part)) for part in parts]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    corpus = verdict_notes.corpus_of(results)
    where = f"{results.paper}, {results.scale} scale, {seeds}, corpus {_text(corpus)}."
    return f"{where}{caution}\n\n{table}\n"


def _verdict_cells(item: Claim | Part) -> tuple[str, ...]:
    silent = isinstance(item, Claim) and bool(
        verdict_notes.parts_of(item)
    )  # the parts below say it
    alone = item.parts[0] if isinstance(item, Claim) and item.parts else item
    band = alone.band if isinstance(alone, Part) else None
    figures = (
        _text(verdict_notes.format_paper_value(item)),
        numbers.format_measured(item.measured, item.ci95),
        numbers.interval(item.measured, item.ci95),
        "" if band is None else verdict_notes.band(band),
    )
    shown = ("",) * len(figures) if silent else figures
    found = verdict_notes.detectable_effect(alone) if isinstance(alone, Part) and not silent else ""
    word = item.verdict if isinstance(item, Claim) else item.here
    return (*shown, verdict_notes.power(item), found, f"**{word}**" if word else "")


def _text(text: str) -> str:
    """Plain text in a cell: what Markdown would read as markup is escaped."""
    for mark in "\\|*_<`[":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
