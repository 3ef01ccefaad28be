"""A report as plain data, which the templates of the page and of the PDF print."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.base.seeds import SHORT
from harness.judge.parts import LOOKS
from harness.judge.results import Exhibit, Results
from reports import extrapolation, figures, provenance, reference_terms, tables, written
from reports.claims import number_limits, row_of_claim, rows_of_conditions, tell_bad_runs
from reports.factors import with_factors
from reports.provenance import BAD, Line, cited_runs, find_failures, settings_of, wall_time
from reports.reference_terms import Words

Data = dict[str, Any]

ALIKE = re.compile(r"–(\d+)(?:–\1\b)+")
"""Two layers or more of one size."""

MEANINGS = (
    ("reproduced, contradicted", "the runs agree, or disagree, with {}"),
    (
        "holds here, fails here",
        "likewise, but no evidence about {}: a condition of its regime is not met, or a setting "
        "not printed",
    ),
    ("unclear", "our range or quantities speak for it and against it, or are missing"),
    ("mixed", "two measures, or two readings of the statement, disagree"),
    (
        "survives",
        "the answer stays after a correction for the number of claims (Holm's); else it may be "
        "chance",
    ),
)
"""The words of the first page, with ``{}`` for the reference."""
BEYOND = "Beyond the paper"
"""Label of exhibits that the paper does not have; a page names such a table and its file alone."""
MOST_DIFFERENCES = 3
"""Differences on the first page; the last page has all."""


def document(
    results: Results,
    runs: Sequence[Line],
    reasons: Mapping[str, str] | None = None,
    summary: str = "",
    terms: str = "",
    figure: str = "",
    judged: Results | None = None,
) -> Data:
    """Everything that the templates print.

    Args:
        results: claims and exhibits; figures must have been entered in ``files``.
        runs: lines about the runs behind them.
        reasons: claim id -> why it was not reproduced, from ``reasons.toml``.
        summary: what was found, in two sentences; made of the claims if empty.
        terms: the paper's own words, explained.
        figure: id of the exhibit on the first page, if it is drawn.
        judged: published results with the verdicts to show, where the results have none.
    """
    bad = {run.hash for run in runs if run.status in BAD}
    reference, words = results.provenance.get("reference", {}), reference_terms.words_of(results)
    name, scale = results.paper, results.scale
    verdicts = with_factors(judged or results)
    joined = figures.join_tables(results.exhibits)
    shown = [*results.exhibits] if joined is None else [joined, *results.exhibits]
    exhibits = [_exhibit(each, bad, words, joined is not None) for each in shown]
    differences = results.provenance.get("differences", [])
    claims = [
        row_of_claim(claim, words, (reasons or {}).get(claim.id, ""), bad)
        for claim in verdicts.claims
    ]
    return {
        "kicker": f"{name} · {words.done} with lagbench, a simulator of parallel training · "
        f"{scale} scale",
        "running": f"{name}, {scale} scale, corpus {results.corpus}",
        "words": asdict(words) | {"the": words.the},
        "title": f"{words.title} {reference.get('title', name)}".strip(),
        "by": f"{words.by}{reference['authors']}" if reference.get("authors") else "",
        "sentences": [summary or written.summarise(verdicts)],
        "published": "" if judged is None else describe_published(judged),
        "lead": find_lead(results.exhibits, figure),
        "facts": _what_was_run(results, len(cited_runs(results))),
        "cautions": list(filter(None, (words.caution(scale), _tell_failures(results, runs)))),
        "meanings": [(word, meaning.format(words.the)) for word, meaning in MEANINGS],
        "reads": words.reads,
        "correction": _describe_correction(verdicts),
        "claims": claims,
        "limits": number_limits([row for row in claims if row["place"] != "certain"]),
        "conditions": rows_of_conditions(verdicts.claims),
        "curves": extrapolation.sentences(results),
        "differs": [_format_difference(row) for row in differences[:MOST_DIFFERENCES]],
        "more": max(len(differences) - MOST_DIFFERENCES, 0),
        "check": provenance.how_to_check(results),
        "terms": terms,
        "exhibits": exhibits,
        "provenance": provenance.where_from(results) | {"runs": _describe_runs(runs)},
    }


def find_lead(exhibits: Sequence[Exhibit], wanted: str = "") -> str:
    """Id of the first page's figure: the wanted one, else a ratio over scale, else any curves."""
    drawn = [each for each in exhibits if any(file.endswith(".svg") for file in each.files)]
    drawn.sort(key=lambda e: (e.id != wanted, e.curve is None, e.draw.get("as") != "curves"))
    return drawn[0].id if drawn else ""


def describe_published(results: Results) -> str:
    """Scale, seeds and date of published verdicts."""
    date = str(results.provenance.get("started", "")).partition("T")[0]
    return f"{results.scale} scale, {len(results.seeds)} seeds{f', {date}' if date else ''}"


def _format_difference(row: Mapping[str, str]) -> tuple[str, str]:
    text = f"{row['here']} / {row['paper']}"  # three layers of 64 as 3×64
    return row["what"], ALIKE.sub(lambda layers: f"–{layers[0].count('–')}×{layers[1]}", text)


def _what_was_run(results: Results, runs: int) -> list[tuple[str, str]]:
    """Facts of the first page, as (name, value)."""
    facts = results.provenance
    rows = [
        ("scale", results.scale),
        ("corpus", corpus_of(results)),
        ("seeds", _format_seeds(results)),
        ("device", str(facts.get("device", ""))),
        ("runs", str(runs)),
        ("time", wall_time(facts)),
    ]
    return [(name, value) for name, value in rows if value]


def corpus_of(results: Results) -> str:
    """The corpus, and whether seeds share it; the name alone where the results do not record it."""
    corpora = results.provenance.get("corpora")
    if not corpora:
        return results.corpus
    if "recorded" in corpora:
        return f"{results.corpus}, recorded, the same for all seeds"
    return f"{results.corpus}, synthetic, another for each seed"


def _format_seeds(results: Results) -> str:
    """The seeds, first and last of many that follow one another, and how many of the planned."""
    seeds, planned = list(results.seeds), results.provenance.get(provenance.PLANNED, 0)
    follow = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
    text = f"{seeds[0]} to {seeds[-1]}" if follow else ", ".join(map(str, seeds))
    return text + (f": {len(seeds)} of {planned}" if len(seeds) < planned else "")


def _tell_failures(results: Results, runs: Sequence[Line]) -> str:
    """Sentence about failed and diverged runs, by setting where it is known, else by hash."""
    facts = results.provenance
    bad, names = find_failures(facts, runs), settings_of(facts.get("settings", {}))
    counts = Counter((names.get(run.hash, run.hash[:SHORT]), run.status) for run in bad)
    settings = "; ".join(f"{name}: {count} {status}" for (name, status), count in counts.items())
    return (
        f"{len(bad)} run{'s' * (len(bad) > 1)} did not end well. {settings}. Figures that rest on "
        "them carry †."
        if bad
        else ""
    )


def _describe_correction(results: Results) -> str:
    """How many answers survive the correction for the number of claims."""
    decided = [c for c in results.claims if c.here != "unclear" and not c.cannot_fail]
    if not decided or all(claim.corrected is None for claim in results.claims):
        return ""
    stay, looks = sum(c.corrected == c.here for c in decided), results.provenance.get(LOOKS, 1)
    often = f", and for {looks} looks at them" if looks > 1 else ""
    return (
        f"{stay} of {len(decided)} answers survive a correction for their number (Holm's){often}."
    )


def _describe_runs(runs: Sequence[Line]) -> str:
    """Sentence with the number of runs and the file that lists them."""
    listed = [run for run in runs if run.hash]
    if not listed:
        return ""
    absent = sum(run.status == provenance.UNKNOWN for run in listed)
    return (
        f"{len(listed)} run{'s' * (len(listed) != 1)} in {provenance.RUNS_CSV}, one a line: its "
        "setting, hash, seed, how it ended, and every key of its configuration that sets it apart. "
        "The hashes behind one figure are in tables/*.csv."
        + (f" {absent} cited runs are not stored." if absent else "")
    )


def _exhibit(exhibit: Exhibit, bad: Collection[str], words: Words, joined: bool) -> Data:
    image = next((file for file in exhibit.files if file.endswith(".svg")), "")
    curve, caption = exhibit.curve, figures.caption(exhibit) if image else ""
    rows = exhibit.rows if not image and curve is None else ()
    table = tables.grid(rows, bad, exhibit.simulated) if rows else None
    is_absent = not image and "file" in exhibit.draw
    notes = (
        exhibit.note,
        "" if curve is None else extrapolation.describe_laws(curve),
        caption,
        table.remark if table else "",
        tell_bad_runs(len({run for row in exhibit.rows for run in row.runs if run in bad})),
        f"Not drawn: {exhibit.draw['file']} is not beside these results." if is_absent else "",
    )
    return {
        "id": exhibit.id,
        "label": exhibit.paper_label or exhibit.id,
        "title": exhibit.title,
        "caption": caption,
        "note": " ".join(filter(None, notes)),
        "aside": table is not None
        and (exhibit.paper_label == BEYOND or (joined and exhibit.paper_label.startswith("Table"))),
        "image": image,
        "csv": next((file for file in exhibit.files if file.endswith(".csv")), ""),
        "table": None if table is None else asdict(table) | {"against": words.noun},
    }
