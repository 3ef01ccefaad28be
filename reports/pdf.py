"""The PDF of a report: its pages as plain data, and typst, which sets them by a template."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from harness.base.seeds import SHORT
from harness.judge import Claim, Exhibit, Part, Results
from harness.judge.claims import VERDICTS
from reports import (
    abstract,
    extrapolation,
    figures,
    first_page,
    numbers,
    provenance,
    reference_terms,
    summary,
    tables,
    verdict_notes,
)
from reports.factors import with_factors
from reports.provenance import (
    BAD,
    Line,
    cited_runs,
    find_failures,
    settings_of,
    wall_time,
    where_from,
)
from reports.reference_terms import Words

Data = dict[str, Any]

ALIKE = re.compile(r"–(\d+)(?:–\1\b)+")
"""Two layers or more of one size."""


def document(
    results: Results,
    runs: Sequence[Line],
    given: Mapping[str, str] | None = None,
    found: str = "",
    terms: str = "",
) -> Data:
    """Everything the template prints.

    Args:
        results: claims and exhibits; figures must have been entered in ``files``.
        runs: lines about the runs behind them.
        given: claim id -> why it was not reproduced, from ``reasons.toml``.
        found: what was found, in two sentences; made of the claims if empty.
        terms: the paper's own words, explained.
    """
    results = with_factors(results)
    bad = {run.hash for run in runs if run.status in BAD}
    cited = cited_runs(results)
    reference, said = results.provenance.get("reference", {}), reference_terms.words_of(results)
    return {
        "kicker": " · ".join(
            (
                results.paper,
                f"{said.done} with lagbench, a simulator of parallel training",
                f"{results.scale} scale",
            )
        ),
        "running": f"{results.paper}, {results.scale} scale, corpus {results.corpus}",
        "words": asdict(said),
        "title": reference.get("title", results.paper),
        "by": f"{said.by}{reference['authors']}" if reference.get("authors") else "",
        "found": found or summary.summarise(results),
        "terms": terms,
        "facts": what_was_run(results, len(cited)),
        "lines": first_page.format_claims(results.claims, said),
        "extrapolated": extrapolation.sentences(results),
        "abstract": abstract.lines(results),
        "caution": said.caution(results.scale),
        "smoke": results.scale == "smoke",
        "failures": _failures(find_failures(results.provenance, runs), results.provenance),
        "claims-title": "Verdicts",
        "late": _tell_late(results),
        "lines-legend": _lines_legend(results, said),
        "verdict-legend": _verdict_legend(results, said),
        "details-title": "Claims in detail",
        "claims-legend": _claims_legend(results, said),
        "verdict-head": "at smoke scale" if results.scale == "smoke" else "verdict",
        "tally": _tally(results.claims),
        "claims": [
            _claim(claim, bad, (given or {}).get(claim.id, ""), said) for claim in results.claims
        ],
        "legend": _legend(results, said),
        "exhibits": [
            _exhibit(each, bad, said) for each in extrapolation.with_curves_first(results.exhibits)
        ],
        "provenance": where_from(results) | {"runs-note": runs_note(runs)},
    }


def what_was_run(results: Results, runs: int) -> list[tuple[str, str]]:
    """Facts of the first page, as (name, value)."""
    facts = results.provenance
    differing = {
        each["what"]: f"{_shorten_layers(each['here'])} (paper: {_shorten_layers(each['paper'])})"
        for each in facts.get("differences", [])
    }
    rows = [
        *((what, differing.get(what, "")) for what in ("training speech", "network", "policy")),
        ("corpus", verdict_notes.corpus_of(results)),
        ("seeds", _format_seeds(results.seeds)),
        ("device", str(facts.get("device", ""))),
        ("runs", str(runs)),
        ("time", wall_time(facts)),
    ]
    return [(name, value) for name, value in rows if value]


def _shorten_layers(text: str) -> str:
    """A text in which layers of one size are counted, as in 429–7×2048–355."""
    return ALIKE.sub(lambda run: f"–{run[0].count('–')}×{run[1]}", text)


def _format_seeds(seeds: Sequence[int]) -> str:
    """The seeds; the first and the last of many that follow one another."""
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def runs_note(runs: Sequence[Line]) -> str:
    """Sentence with the number of runs and the file that lists them."""
    listed = [run for run in runs if run.hash]
    if not listed:
        return ""
    plural = "s" if len(listed) != 1 else ""
    missing = sum(run.status == provenance.UNKNOWN for run in listed)
    return (
        f"{len(listed)} run{plural} in {provenance.RUNS_CSV}, one a line: its setting, hash, seed, "
        "how it ended, and every key of its configuration that sets it apart. The hashes behind "
        "one figure are in tables/*.csv."
        + (f" {missing} cited runs are not stored." if missing else "")
    )


def _claim(claim: Claim, bad: Collection[str], given: str, said: Words) -> Data:
    parts = verdict_notes.parts_of(claim)
    told_by_parts = bool(parts) and (
        claim.measured is None or any(_same(claim, part) for part in parts)
    )
    marks = _marks(claim.runs, bad)
    alone = [verdict_notes.test_of(part) for part in claim.parts if not parts]
    return {
        "id": claim.id,
        "statement": claim.statement,
        "where": claim.where,
        "statistic": claim.statistic,
        "note": claim.note,
        "why": [
            told for told in (verdict_notes.why(claim, said), verdict_notes.plain(given)) if told
        ],
        "why-is": verdict_notes.heading(claim.verdict),
        "told-by-parts": told_by_parts,
        "remarks": [told for told in (*alone, *verdict_notes.remarks(claim), marks) if told],
        "parts": [
            _verdict_row(part) | {"label": part.label, "test": verdict_notes.test_of(part)}
            for part in parts
        ],
        **_verdict_row(claim, any(run in bad for run in claim.runs), told_by_parts),
    }


def _legend(results: Results, said: Words) -> str:
    """Legend of tables and curves."""
    printed = any(row.paper is not None for exhibit in results.exhibits for row in exhibit.rows)
    ours = f"Ours stands beside {said.the}'s, with its" if printed else "Figures have their"
    return f"{ours} 95% interval over seeds; full precision and run hashes are in tables/*.csv."


def _claims_legend(results: Results, said: Words) -> str:
    """Legend of band, power and detectable effect; a notice where the results lack them."""
    if not abstract.has_power(results):
        return abstract.EARLIER
    return (
        f"{said.reads}Beside a quantity stand where it must lie for {said.the} to hold; how often "
        f"such runs would see it hold if {said.the}'s figure is true; and how far beyond an end "
        "they would see it lie four times in five."
    )


def _verdict_legend(results: Results, said: Words) -> list[tuple[str, str]]:
    """The verdicts, and the marks beside them that these results have, as (word, meaning)."""
    reason = "a condition of its regime is not met or a setting not printed (small line)"
    marks = {mark.split()[0] for each in results.claims for mark in first_page.marks(each)}
    told = [
        ("reproduced, contradicted", f"the runs agree, or disagree, with {said.the}"),
        ("holds here, fails here", f"likewise, but no evidence about {said.the}, since {reason}"),
        ("unclear", "our range has values for it and against it"),
        ("mixed", "two measures, or two readings of the statement, disagree"),
    ]
    more = {
        "cannot": ("cannot fail", "true by construction, so no evidence"),
        "changed": ("changed after its runs", "the details say what was changed"),
        "was": (
            "was …",
            "our verdict under earlier rules (“not testable”: we gave none)",
        ),
    }  # fmt: skip
    return told + [meaning for mark, meaning in more.items() if mark in marks]


def _tell_late(results: Results) -> str:
    """Warning where bands and conditions are younger than the runs; else empty."""
    if "younger" not in str(results.provenance.get("registration", "")):
        return ""
    return "Needed values and conditions were written down after these runs, not before."


def _lines_legend(results: Results, said: Words) -> str:
    """Legend of the first page's lines."""
    old = len(results.provenance.get("earlier_statistics", []))
    which = "claims are judged by the quantities" if old != 1 else "claim is judged by the quantity"
    kept = f" As the runs were not kept, {old} {which} first published; the last page names "
    kept += "them." if old != 1 else "it."
    return (
        f"{said.reads}Pictures, each on a scale of its own: grey, the values that are needed for "
        f"{said.the} to be right; blue, ours, with the range that is left by the scatter of seeds "
        f"and tests (95% interval); diamond, {said.the}'s. A claim is told by the quantity that "
        f"decides it; “Claims in detail”, behind the figures, has all.{kept if old else ''}"
    )


def _same(claim: Claim, part: Part) -> bool:
    return (claim.measured, claim.ci95) == (part.measured, part.ci95)


def _marks(runs: Iterable[str], bad: Collection[str]) -> str:
    """Explanation of the dagger beside a figure."""
    resting = len({run for run in runs if run in bad})
    plural = "s" if resting != 1 else ""
    return f"† Rests on {resting} run{plural} that diverged or failed." if resting else ""


def _verdict_row(item: Claim | Part, flag: bool = False, blank: bool = False) -> Data:
    return {
        "paper": "" if blank else verdict_notes.format_paper_value(item),
        "measured": "" if blank else numbers.format_measured(item.measured, item.ci95),
        "interval": "" if blank else numbers.interval(item.measured, item.ci95),
        "verdict": item.verdict if isinstance(item, Claim) else item.here,
        "flag": flag,
    }


def _exhibit(exhibit: Exhibit, bad: Collection[str], said: Words) -> Data:
    image = next((f"/{file}" for file in exhibit.files if file.endswith(".svg")), None)
    rows = exhibit.rows if exhibit.curve is None else extrapolation.rows_of_laws(exhibit.curve)
    has_table = rows and (not image or exhibit.curve is not None)
    shown = tables.grid(rows, bad) if has_table else None
    marks = _marks((run for row in exhibit.rows for run in row.runs), bad)
    caption = figures.caption(exhibit) if image else ""
    laws = "" if exhibit.curve is None else extrapolation.describe_laws(exhibit.curve)
    remarks = (
        exhibit.note,
        laws,
        caption,
        shown.remark if shown else "",
        marks,
        _absent(exhibit, image),
    )
    return {
        "id": exhibit.id,
        "label": exhibit.paper_label or exhibit.id,
        "title": exhibit.title,
        "note": " ".join(filter(None, remarks)),
        "image": image,
        "table": None
        if shown is None
        else {
            "columns": shown.columns,
            "rows": shown.rows,
            "printed": shown.printed,
            "against": said.noun,
            "ours": "measured" if exhibit.curve is None else "by the law",
        },
    }


def _absent(exhibit: Exhibit, image: str | None) -> str:
    """Note that a figure could not be drawn."""
    if image or "file" not in exhibit.draw:
        return ""
    return f"Not drawn: {exhibit.draw['file']} is not beside these results."


def _tally(claims: Sequence[Claim]) -> list[tuple[str, int, str]]:
    """For each verdict the claims that have it, and how many of them could have no other."""
    counts = Counter(claim.verdict for claim in claims)
    sure = Counter(claim.verdict for claim in claims if claim.cannot_fail)
    notes = {verdict: f"({count} cannot fail)" for verdict, count in sure.items()}
    return [(verdict, counts[verdict], notes.get(verdict, "")) for verdict in VERDICTS]


def _failures(bad: Sequence[Line], facts: Mapping[str, Any]) -> str:
    """Sentence about failed and diverged runs, by setting where it is known, else by hash."""
    if not bad:
        return ""
    names = settings_of(facts.get("settings", {}))
    counts = Counter((names.get(run.hash, run.hash[:SHORT]), run.status) for run in bad)
    told = "; ".join(f"{name}: {count} {status}" for (name, status), count in counts.items())
    return f"{len(bad)} run{'s' if len(bad) > 1 else ''} did not end well. {told}."


TEMPLATE = Path(__file__).with_name("report.typ")

TIMESTAMP = 0  # a report tells its dates itself; the same content is the same bytes


def has_typst() -> bool:
    """Whether typst is installed; a machine with a GPU may lack it."""
    return find_spec("typst") is not None


def compile_pdf(data: dict[str, Any], root: Path) -> bytes:
    """The PDF of ``data``.

    Args:
        data: from ``document``; passed as JSON, so no character in it is markup.
        root: the folder that image paths in ``data`` start from.
    """
    import typst

    setting = _setting(data, root)
    return cast(  # a list where a page is a file
        bytes,
        typst.compile(TEMPLATE.read_bytes(), format="pdf", timestamp=TIMESTAMP, **setting),
    )


def _setting(data: dict[str, Any], root: Path) -> dict[str, Any]:
    return {
        "root": str(root),
        "ignore_system_fonts": True,
        "sys_inputs": {"data": json.dumps(data, allow_nan=False)},
    }
