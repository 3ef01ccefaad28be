"""The verdicts of ``reports/published`` in README and docs, generated: nothing is typed twice.

``python -m reports.verdicts`` rewrites what stands between the markers of `PAGES`. Beside a
published ``results.json`` lies ``reasons.toml``: for every claim that was not reproduced, the
verdict it explains and why. A reason for another verdict than the measured one is refused.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError
from harness.judge import Claim, Results, read_results
from harness.judge.claims import VERDICTS
from harness.store.atomic import write_bytes
from reports import markdown, numbers

BEGIN, END = "<!-- verdicts: begin -->", "<!-- verdicts: end -->"
HEAD = ("claim", "paper", "measured", "95% interval", "verdict")


@dataclass(frozen=True)
class Published:
    """One published result.

    Attributes:
        folder: ``reports/published/PAPER/SCALE``.
        results: its ``results.json``.
        reasons: claim id -> why it was not reproduced.
    """

    folder: Path
    results: Results
    reasons: Mapping[str, str]


def published(root: Path) -> list[Published]:
    """Every result below ``root/reports/published``, by paper and scale.

    Raises:
        UserError: a damaged file, or reasons that do not fit the verdicts.
    """
    files = sorted((root / "reports" / "published").glob("*/*/results.json"))
    return [_read(path.parent) for path in files]


def summary(item: Published) -> str:
    """A line that counts the verdicts and a table with one row a claim, as Markdown."""
    results = item.results
    counts = Counter(claim.verdict for claim in results.claims)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    rows = [HEAD, ("---",) * len(HEAD), *map(_row, results.claims)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{_what(results)}: {told}.\n\n{table}\n"


def page(item: Published) -> str:
    """Every claim with its parts, and the reasons below, as Markdown."""
    title = f"## {item.results.paper}, {item.results.scale} scale"
    reasons = [
        f"- `{claim.id}`, {claim.verdict}: {item.reasons[claim.id]}"
        for claim in item.results.claims
        if claim.id in item.reasons
    ]
    facts = item.results.provenance
    source = f"From `{item.folder.as_posix()}/results.json`, commit {facts.get('git', 'unknown')}."
    parts = [title, source, markdown.verdict_table(item.results).strip()]
    return "\n\n".join([*parts, "Why not reproduced:", "\n".join(reasons)]) + "\n"


PAGES = {Path("README.md"): summary, Path("docs/verdicts.md"): page}
"""Where the verdicts stand, and in which form."""


def updated(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Each page with its text as it is and as it should be.

    Raises:
        UserError: a page has no markers.
    """
    found = [_relative(item, root) for item in published(root)]
    for name, form in PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise UserError(f"{name}: the markers {BEGIN!r} and {END!r} are missing")
        inside = "\n".join(form(item) for item in found)
        yield root / name, text, f"{before}{BEGIN}\n{inside}{END}{after}"


def main(root: Path) -> int:
    """Rewrite the pages that are out of date; returns the exit code."""
    for path, text, fresh in updated(root):
        if text != fresh:
            write_bytes(path, fresh.encode())
            print(path)
    return 0


def _read(folder: Path) -> Published:
    results = read_results(folder / "results.json")
    path = folder / "reasons.toml"
    given = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    verdicts = {claim.id: claim.verdict for claim in results.claims}
    wanted = {id_ for id_, verdict in verdicts.items() if verdict != "reproduced"}
    if wanted != given.keys():
        odd = ", ".join(sorted(wanted ^ given.keys()))
        raise UserError(f"{path}: a reason for each claim not reproduced and no other; see {odd}")
    for id_, reason in given.items():
        if reason["verdict"] != verdicts[id_]:
            raise UserError(
                f"{path}: {id_}: explains {reason['verdict']!r}; measured: {verdicts[id_]!r}"
            )
    return Published(folder, results, {id_: " ".join(r["why"].split()) for id_, r in given.items()})


def _relative(item: Published, root: Path) -> Published:
    return Published(item.folder.relative_to(root), item.results, item.reasons)


def _row(claim: Claim) -> tuple[str, ...]:
    """The claim's headline; of several parts, the first that has its verdict."""
    decisive = next((part for part in claim.parts if part.verdict == claim.verdict), None)
    item = decisive or claim
    label = f" ({decisive.label})" if decisive and decisive.label else ""
    return (
        f"`{claim.id}`",
        numbers.printed(item.paper),
        numbers.measured(item.measured, item.ci95) + label,
        numbers.interval(item.measured, item.ci95),
        f"**{claim.verdict}**",
    )


def _what(results: Results) -> str:
    count = len(results.seeds)
    seeds = f"{count} seed{'s' if count != 1 else ''}"
    return f"**{results.paper}**, {results.scale} scale, corpus {results.corpus}, {seeds}"


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
