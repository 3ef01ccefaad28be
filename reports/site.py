"""A front page over reports: the verdicts of each, and a link to its page."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from harness.base.errors import UserError
from harness.base.printable import printable
from harness.judge import Results, read_results
from harness.judge.claims import VERDICTS
from harness.store.files import writable_folder, write_bytes
from reports import abstract, build, summary
from reports.page.document import build_document, tag
from reports.verdicts import size_of_scale

FROM = Path(__file__).parent / "published"
"""Published results: all of them in a clone, those of laptop scale in an installed package."""

MADE = ("report.html", "report.pdf", "runs.csv", "results.json")
HEADS = ("report", "scale", "corpus", "seeds", *VERDICTS, "files")


def site(source: Path, target: Path) -> Path:
    """Rebuild every report of ``source`` in ``target``, with a front page.

    Args:
        source: a folder with ``PAPER/SCALE/results.json``; nothing is written there.
        target: gets ``index.html`` and a folder for each report.

    Returns:
        The front page.

    Raises:
        UserError: no report is in ``source``, one is damaged, or ``target`` cannot be written.
    """
    found = [path.parent for path in sorted(source.glob("*/*/results.json"))]
    if not found:
        raise UserError(f"report: {str(source)!r} holds no PAPER/SCALE/results.json")
    writable_folder(target, "report")
    places = [_build_report(folder, source, target) for folder in found]
    entries = [_read(target, place) for place in places]
    front = target / "index.html"
    write_bytes(front, _front(entries).encode())
    return front


def _read(target: Path, place: Path) -> tuple[Path, Results, str]:
    results = printable(read_results(target / place / "results.json"))
    return place, results, summary.read_summary(target / place, results)


def _build_report(folder: Path, source: Path, target: Path) -> Path:
    """Build a report beside links to its source files; returns its place in ``target``."""
    place = folder.relative_to(source)
    out = target / place
    out.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name == "runs":  # they may be large, and are only read
            if not (out / path.name).exists():
                (out / path.name).symlink_to(path.resolve())
        elif path.is_dir():
            shutil.copytree(path, out / path.name, dirs_exist_ok=True)
        else:
            shutil.copy(path, out / path.name)
    build(out)
    if (out / "runs").is_symlink():
        (out / "runs").unlink()
    return place


def _front(entries: Sequence[tuple[Path, Results, str]]) -> str:
    """Findings with a picture each, then every report and its files."""
    heads = "".join(tag("th", name, scope="col") for name in HEADS)
    rows = "".join(_row(place, results) for place, results, _ in entries)
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))
    body = [
        tag("h1", "What does parallelism do to training?"),
        tag(
            "p",
            "Papers reproduced and predictions tested, exhibit by exhibit, each claim judged.",
            class_="muted",
        ),
        *(_format_entry(*entry) for entry in _largest(entries)),
        tag("h2", "All reports"),
        tag("div", table, class_="wide", tabindex="0", role="region", aria_label="verdicts"),
    ]
    return build_document("What does parallelism do to training?", tag("main", *body, id="content"))


def _largest(
    entries: Sequence[tuple[Path, Results, str]],
) -> list[tuple[Path, Results, str]]:
    """Of each paper, the report of its largest scale."""
    found: dict[str, tuple[Path, Results, str]] = {}
    for entry in sorted(entries, key=lambda each: size_of_scale(each[1].scale)):
        found[entry[1].paper] = entry
    return [found[paper] for paper in sorted(found)]


def _row(place: Path, results: Results) -> str:
    counts = Counter(claim.verdict for claim in results.claims)
    links = " ".join(_link(place / name, name) for name in MADE)
    cells = [
        escape(results.paper),
        escape(results.scale),
        escape(results.corpus),
        str(len(results.seeds)),
        *(str(counts[verdict]) for verdict in VERDICTS),
        links,
    ]
    return tag("tr", *(tag("td", cell) for cell in cells))


def _format_entry(place: Path, results: Results, found: str) -> str:
    """Title, findings in two sentences, and pictures."""
    title = str(results.provenance.get("reference", {}).get("title", results.paper))
    head = tag("h2", _link(place / "report.html", title))
    told = tag("p", escape(found), class_="answer")
    more = tag("p", escape(abstract.answer(results)), class_="note")
    return "".join([head, told, *_pictures(place, results), more])


def _pictures(place: Path, results: Results) -> list[str]:
    """Curves of what is tolerated, ratios over scale that have a law, or the headline figure."""
    kinds = (
        [each.id for each in results.exhibits if "tolerance" in each.id],
        [
            each.id
            for each in results.exhibits
            if each.curve is not None and any(trend.law for trend in each.curve.trends)
        ],
        [each.id for each in results.exhibits if each.draw.get("headline")],
    )
    ids = next((found for found in kinds if found), list[str]())
    drawn = [
        (escape(exhibit.title), escape((place / file).as_posix()))
        for exhibit in results.exhibits
        for file in exhibit.files
        if exhibit.id in ids and file.endswith(".svg")
    ]
    return [
        tag("figure", f'<img alt="{title}" src="{file}">', tag("figcaption", title))
        for title, file in drawn
    ]


def _link(path: Path, shown: str) -> str:
    return tag("a", escape(shown), href=path.as_posix())
