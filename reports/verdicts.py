"""Generator of the verdict tables in docs, from ``reports/published``.

``python -m reports.verdicts`` rewrites the text between the markers of `PAGES`, tables in Markdown,
the pictures of claims that are followed over scale, and the regime map.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.base.log import printable
from harness.judge.claims import VERDICTS
from harness.judge.results import Claim, Exhibit, Results, read_results
from harness.store.files import write_bytes
from reports import SCALES, extrapolation, numbers, reference_terms
from reports.claims import find_deciding
from reports.factors import with_factors
from reports.regime_map import draw_map
from reports.written import read_summary

BEGIN, END = "<!-- verdicts: begin -->", "<!-- verdicts: end -->"
PICTURES = Path("docs/pictures")

Published = dict[Path, Results]
"""Published results by their folder, ``reports/published/PAPER/SCALE``."""


def read_published(root: Path) -> Published:
    """Every result below ``root/reports/published``, by paper and scale, with factors."""
    paths = sorted((root / "reports" / "published").glob("*/*/results.json"))
    return {path.parent: with_factors(printable(read_results(path))) for path in paths}


def count_verdicts(published: Published, root: Path) -> str:
    """Markdown table: the number of claims with each verdict, one row a report."""
    rows: list[Sequence[str]] = []
    for folder, results in published.items():
        counts = Counter(claim.verdict for claim in results.claims if not claim.cannot_fail)
        report = f"[{results.paper}]({_link(folder, root)})"
        scale = f"{results.scale}, {len(results.seeds)} seeds"
        rows.append((report, scale, *(str(counts[verdict]) for verdict in VERDICTS)))
    return _format_table(("report", "scale", *VERDICTS), rows)


def list_findings(published: Published, root: Path) -> str:
    """One line a paper or set of predictions: title, and what was found at its largest scale."""
    lines = [
        f"- **[{_text(str(results.provenance.get('reference', {}).get('title', results.paper)))}]"
        f"({_link(folder, root)})** {_text(read_summary(folder, results))}\n"
        for folder, results in _largest(published).items()
    ]
    return "".join(lines)


def list_claims(published: Published, root: Path) -> str:
    """The counts, a row for each claim, and the claims that are followed over scale."""
    scales = sorted({results.scale for results in published.values()}, key=_place_of_scale)
    claims: dict[str, dict[str, Claim]] = {}
    for results in published.values():
        for claim in results.claims:
            claims.setdefault(claim.id, {})[results.scale] = claim
    table = _format_table(
        ("claim", "statement", "measured", *scales),
        (_row_of_claim(by_scale, scales) for by_scale in claims.values()),
    )
    curves = [
        f"{_text(sentence)}\n"
        + f"\n![{_text(exhibit.title)}](pictures/{exhibit.id}.png)\n" * _is_drawn(exhibit)
        for results in _largest(published).values()
        for exhibit, sentence in zip(
            _curves(results), extrapolation.sentences(results), strict=True
        )
    ]
    heads = ("\n## Claims\n\n", table, "\n## Over scale\n\n", "\n".join(curves))
    return count_verdicts(published, root) + "".join(heads)


def _row_of_claim(by_scale: dict[str, Claim], scales: Sequence[str]) -> Sequence[str]:
    claim = by_scale[max(by_scale, key=_place_of_scale)]
    measured = [
        f"{numbers.format_measured(part.measured, part.ci95)} "
        f"({numbers.interval(part.measured, part.ci95)}) {_text(part.label)}".rstrip()
        for part in find_deciding(claim)
    ]
    verdicts = (by_scale[scale].verdict if scale in by_scale else "" for scale in scales)
    return (f"`{claim.id}`", _text(claim.statement.rstrip(".")), "; ".join(measured), *verdicts)


def _largest(published: Published) -> Published:
    """Of each paper, the results of its largest scale."""
    ordered = sorted(published.items(), key=lambda item: _place_of_scale(item[1].scale))
    folders = {results.paper: folder for folder, results in ordered}
    return {folders[paper]: published[folders[paper]] for paper in sorted(folders)}


def _curves(results: Results) -> list[Exhibit]:
    return [exhibit for exhibit in results.exhibits if exhibit.curve is not None]


def _is_drawn(exhibit: Exhibit) -> bool:
    return any(row.measured is not None for row in exhibit.rows)


def _place_of_scale(scale: str) -> int:
    return SCALES.index(scale) if scale in SCALES else len(SCALES)


PAGES = {
    Path("docs/index.md"): list_findings,
    Path("docs/verdicts.md"): list_claims,
}
"""The pages with the verdicts of all papers, each with its form."""


def render_pages(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Each page with its text as it is and as it should be.

    Raises:
        UserError: a page has no markers.
    """
    published = read_published(root)
    for name, form in PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        before, begin, after_begin = text.partition(BEGIN)
        _, end, after = after_begin.partition(END)
        if not (begin and end):
            raise UserError(f"{name}: the markers {BEGIN!r} and {END!r} are missing")
        yield root / name, text, f"{before}{BEGIN}\n{form(published, root)}{END}{after}"


def draw_curves(root: Path) -> Iterator[tuple[Path, bytes]]:
    """The pictures of claims over scale and the regime map, by their paths."""
    largest = _largest(read_published(root))
    if content := draw_map({results.paper: results for results in largest.values()}):
        yield root / PICTURES / "regime.png", content
    for results in largest.values():
        printed = reference_terms.words_of(results).printed
        for exhibit in filter(_is_drawn, _curves(results)):
            images = dict(extrapolation.draw_curve(exhibit, printed))
            yield root / PICTURES / f"{exhibit.id}.png", images["png"]


def main(root: Path) -> int:
    """Rewrite the pages that are out of date, and the pictures; returns the exit code."""
    pages = [(path, text.encode()) for path, _, text in render_pages(root)]
    for path, content in (*pages, *draw_curves(root)):
        if not path.exists() or path.read_bytes() != content:
            write_bytes(path, content)
            print(path)
    return 0


def _link(folder: Path, root: Path) -> str:
    """The report of a folder, from a page in ``docs``."""
    return f"../{folder.relative_to(root).as_posix()}/report.pdf"


def _format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _text(text: str) -> str:
    """Plain text in a cell: what Markdown would read as markup is escaped."""
    for mark in "\\|*_<`[":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
