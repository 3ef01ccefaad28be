"""A report as one page: sections in HTML, and the file with looks, behaviour, library and results.

The sections have everything that can be read without the page's script. The script works with a
payload: specifications, printed figures, runs and timelines.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.judge import Claim, Exhibit, Part, Results
from harness.judge.paired import subtract_reference
from harness.simulator.timeline import Timeline
from harness.simulator.timeline_file import load_timeline, trace_events
from reports import (
    extrapolation,
    figures,
    gantt,
    numbers,
    reference_terms,
    specs,
    tables,
    verdict_notes,
)
from reports.factors import with_factors
from reports.first_page import deciding_parts
from reports.page.document import build_document, tag
from reports.provenance import USUAL, Line, source_digests

Data = Mapping[str, Any]

OURS = "ours (95% interval)"
COLUMNS = ("statement", "verdict", OURS)
"""First columns of the claims' table; on a telephone each row is a card."""


def number(shown: str, at: str) -> str:
    """A button with a figure that opens the list of its runs."""
    return tag("button", escape(shown), class_="number", data_at=at)


def head(data: Data) -> str:
    """Title, findings in two sentences, cautions and facts."""
    before = data["words"]["title"]
    title = (tag("small", f"{before} ") if before else "") + escape(data["title"])
    facts = "".join(
        tag("dt", escape(name)) + tag("dd", escape(value)) for name, value in data["facts"]
    )
    notices = [("notice", data["caution"]), ("notice bad", data["failures"])]
    return "".join(
        [
            tag("p", escape(data["kicker"]), class_="muted"),
            tag("h1", title),
            tag("p", escape(data["by"]), class_="muted"),
            tag("p", escape(data["found"]), class_="answer"),
            *(tag("p", escape(said), class_=kind) for kind, said in notices if said),
            tag("dl", facts),
        ]
    )


def claims(results: Results, data: Data) -> str:
    """One row a claim, which the legend filters and the heads sort; the forest plot below."""
    if not results.claims:
        return ""
    legend = "".join(
        tag(
            "button",
            " ".join(filter(None, (str(count), verdict, note))),
            data_verdict=verdict,
            aria_pressed="true",
        )
        for verdict, count, note in data["tally"]
    )
    said = reference_terms.words_of(results)
    names = (*COLUMNS, f"{said.noun}; needed")
    heads = "".join(tag("th", tag("button", name), scope="col") for name in names)
    shown = zip(results.claims, data["claims"], data["lines"], strict=True)
    rows = "".join(
        _claim_row(place, claim, its, line, said.noun)
        for place, (claim, its, line) in enumerate(shown)
    )
    extrapolated = (tag("p", escape(told)) for told in data["extrapolated"])
    words = "; ".join(
        f"{tag('strong', escape(word))}: {escape(meaning)}"
        for word, meaning in data["verdict-legend"]
    )
    terms = tag("p", f"Words of the paper. {escape(data['terms'])}", class_="note")
    judged = "".join(tag("p", escape(told)) for told in data["abstract"])
    return "".join(
        [
            tag("h2", escape(data["claims-title"])),
            tag("div", legend, class_="filter", role="group", aria_label="verdicts shown"),
            tag("p", tag("strong", escape(data["late"]))) if data["late"] else "",
            tag("p", f"{words}.", class_="note"),
            _wide(tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows), class_="claims"),
                  "claims"),
            *extrapolated,
            terms if data["terms"] else "",
            tag("h3", "Every judged quantity"),
            tag("p", "Each on a scale of its own: ● measured, ━ its 95% interval, "
                f"▬ where it must lie for {said.the} to hold, ◇ {said.the}'s value; lengths of "
                "two lines are not compared.", class_="note"),
            _place("forest", specs.describe_forest(said)),
            tag("details", tag("summary", "How the claims were judged"), judged,
                tag("p", escape(data["claims-legend"]), class_="note")),
        ]
    )  # fmt: skip


def _claim_row(place: int, claim: Claim, shown: Data, line: Data, noun: str) -> str:
    """A claim by the quantity that decides it; all its quantities and reasons fold out."""
    about = f"{tag('code', escape(claim.id))} · {escape(claim.where)}"
    small = [about, *([escape(line["why"])] if line["why"] else [])]
    said = (
        tag("strong", escape(line["statement"]), class_="statement")
        + "".join(tag("span", each, class_="small") for each in small)
        + tag("details", tag("summary", "details"), *_details(claim, shown, noun))
    )
    marks = "".join(tag("span", escape(mark), class_="small") for mark in line["marks"])
    verdict = tag("span", claim.verdict, class_=_classes(claim.verdict)) + marks
    measured = "".join(
        tag("span", number(each["measured"], f"claim:{place}") + _interval(each) + _label(each),
            class_="line")
        for each in line["lines"]
    )  # fmt: skip
    papers = dict.fromkeys(_format_reference(each) for each in line["lines"])
    paper = "".join(tag("span", text, class_="line") for text in papers)
    head = f"{noun}; needed"
    decides = deciding_parts(claim)[0]
    cells = [
        tag("td", said),
        tag("td", verdict, data_head="verdict"),
        tag("td", measured, data_key=_key(decides.measured), data_head=OURS),
        tag("td", paper, data_key=_key(decides.paper), data_head=head, class_="nowrap"),
    ]
    return tag("tr", *cells, data_verdict=claim.verdict)


def _format_reference(line: Data) -> str:
    """The reference's figure, and the values that are needed for the claim to hold."""
    needed = tag("span", escape(line["needed"]), class_="small") if line["needed"] else ""
    return escape(line["paper"]) + needed or "–"


def _interval(line: Data) -> str:
    return f" ({escape(line['interval'])})" if line["interval"] else ""


def _label(line: Data) -> str:
    return tag("span", escape(line["label"]), class_="small") if line["label"] else ""


def _details(claim: Claim, shown: Data, noun: str) -> list[str]:
    """Statistic, reasons, conditions and all quantities of a claim."""
    why = [f"{shown['why-is']}: {' '.join(shown['why'])}"] if shown["why"] else []
    told = [claim.statistic, *why, *shown["remarks"], *([shown["note"]] if shown["note"] else [])]
    items = [_quantity(part, its, noun) for part, its in zip(
        verdict_notes.parts_of(claim), shown["parts"], strict=True
    )]  # fmt: skip
    quantities = [tag("ul", *items)] if items else []
    return [*(tag("p", escape(each)) for each in told if each), *quantities]


def _quantity(part: Part, its: Data, noun: str) -> str:
    interval = f" ({its['interval']})" if its["interval"] else ""
    printed = f"; {noun} {its['paper']}" if its["paper"] else ""
    test = f"; {its['test']}" if its["test"] else ""
    word = tag("span", part.here or "shown", class_=_classes(part.here))
    value = tag("strong", escape(its["measured"]))
    return tag("li", f"{escape(part.label)}: {value}{escape(interval + printed + test)} ", word)


def _classes(verdict: str | None) -> str:
    return f"verdict {(verdict or '').replace(' ', '-')}".strip()


def _key(value: object) -> str:
    """Sort key of a cell."""
    return "" if value is None else str(value)


def exhibits(results: Results, data: Data, out: Path, timelines: Iterable[str]) -> str:
    """Tables, charts and pictures in the paper's order; charts that share an axis together."""
    groups = specs.groups(results.exhibits)
    first = {group[0].id: group for group in groups}
    later = {exhibit.id for group in groups for exhibit in group[1:]}
    told = {each["id"]: each for each in data["exhibits"]}
    drawn = set(timelines)
    made = [
        _chart(first[exhibit.id], told) if exhibit.id in first
        else _still(exhibit, told[exhibit.id], out, timeline=exhibit.id in drawn)
        for exhibit in extrapolation.with_curves_first(results.exhibits)
        if exhibit.id not in later
    ]  # fmt: skip
    if not made:
        return ""
    return (
        tag("h2", "Tables and figures")
        + tag("p", "Press a figure for the runs behind it.", class_="note")
        + "".join(made)
    )


def _chart(group: Sequence[Exhibit], told: Mapping[str, Data]) -> str:
    labels = {told[each.id]["label"] for each in group}
    below = "".join(
        _caption(told[each.id], titled=len(labels) < len(group))
        + tag(
            "details",
            tag("summary", f"The figures of {escape(each.id)} as a table"),
            data_table=each.id,
        )
        for each in group
    )
    said = "; ".join(f"{each.title}, in figures below" for each in group)
    place = _place(f"chart-{group[0].id}", said)
    return tag("figure", place, below, id=group[0].id)


def _still(exhibit: Exhibit, shown: Data, out: Path, *, timeline: bool) -> str:
    """A table, a picture as in print, or a timeline with its two ways out."""
    parts = [tag("h3", escape(f"{shown['label']}. {exhibit.title}"))]
    if shown["table"]:
        parts.append(_table(exhibit, shown["table"]))
    elif shown["image"]:
        content = base64.b64encode((out / shown["image"].lstrip("/")).read_bytes()).decode()
        parts.append(
            f'<img alt="{escape(exhibit.title)}" src="data:image/svg+xml;base64,{content}">'
        )
    if timeline:
        parts += [
            tag("p", "The first folds; drag to move, turn the wheel to widen. ",
                tag("button", "Open in Perfetto", data_perfetto=exhibit.id), " ",
                tag("button", "Download the trace", data_trace=exhibit.id), class_="note"),
            _place(f"timeline-{exhibit.id}", f"{exhibit.title}, lane by lane"),
        ]  # fmt: skip
    parts.append(_caption(shown, named=False))
    if exhibit.rows and not shown["table"]:
        parts.append(
            tag(
                "details",
                tag("summary", f"The figures of {escape(exhibit.id)} as a table"),
                data_table=exhibit.id,
            )
        )
    return tag("figure", *parts, id=exhibit.id)


def _caption(shown: Data, *, named: bool = True, titled: bool = False) -> str:
    name = f"{shown['title' if titled else 'label']}. " if named else ""
    return tag("figcaption", escape(name + shown["note"]), " ", tag("code", escape(shown["id"])))


def _table(exhibit: Exhibit, shown: Data) -> str:
    columns: list[str] = shown["columns"]
    printed: list[bool] = shown["printed"]
    printing = f"<th scope='col'>{shown['against']}</th>"
    heads = "".join(
        tag("th", escape(name) or shown["ours"], scope="colgroup", colspan="2" if paper else "1")
        for name, paper in zip(columns, printed, strict=True)
    )
    below = "".join(
        (printing if paper else "") + tag("th", shown["ours"], scope="col") for paper in printed
    )
    rows = "".join(
        tag("tr", tag("th", escape(label), scope="row"), *_cells(exhibit, row, printed))
        for label, row in shown["rows"]
    )
    corner = tag("td", "")
    twice = tag("tr", corner, below) if any(printed) else ""
    return _wide(
        tag("table", tag("thead", tag("tr", corner, heads), twice), tag("tbody", rows)),
        exhibit.title,
    )


def _cells(
    exhibit: Exhibit, row: Sequence[tables.Cell | None], printed: Sequence[bool]
) -> list[str]:
    cells: list[str] = []
    for cell, paper in zip(row, printed, strict=True):
        if paper:
            cells.append(tag("td", escape(cell["paper"]) if cell else "", class_="figure"))
        mine = "" if cell is None else (
            number(cell["measured"], f"row:{exhibit.id}:{cell['row']}")
            + ("†" if cell["flag"] else "")
            + tag("span", escape(cell["spread"]), class_="small")
        )  # fmt: skip
        cells.append(tag("td", mine, class_="figure"))
    return cells


def provenance(data: Data, sources: Sequence[tuple[str, str]]) -> str:
    """Commit and versions, differences from the paper, and the results themselves.

    Args:
        data: from ``document``.
        sources: name and SHA-256 of the page's source files; the first is its results.
    """
    where = data["provenance"]
    facts = "".join(tag("dt", escape(k)) + tag("dd", escape(v)) for k, v in where["facts"])
    rows = "".join(
        tag("tr", *(tag("td", escape(cell)) for cell in row)) for row in where["differences"]
    )
    source = data["words"]["elsewhere"]
    names = "".join(tag("th", name, scope="col") for name in ("what", source, "here"))
    differ = (
        tag("h3", f"What differs from the {source}")
        + _wide(tag("table", tag("thead", tag("tr", names)), tag("tbody", rows)), "differences")
        if rows
        else ""
    )
    others = "".join(tag("dt", name) + tag("dd", tag("code", sha)) for name, sha in sources[1:])
    (name, digest), *_ = sources
    return "".join(
        [
            tag("h2", "Where this comes from"),
            tag("dl", facts),
            differ,
            tag("h3", "Made from, SHA-256"),
            tag("dl", tag("dt", name),
                tag("dd", tag("code", digest), tag("span", "", id="digest", data_sha256=digest)),
                others),
            tag("p", tag("button", f"Download {name}", data_results="1")),
        ]
    )  # fmt: skip


def _place(name: str, said: str) -> str:
    """An element for the script to draw in; screen readers get ``said`` and the tables instead."""
    return tag("div", "", class_="chart", id=name, role="img", aria_label=said)


def _wide(table: str, name: str) -> str:
    """A table that scrolls by itself where the screen is narrow, also with the keyboard."""
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label=name)


HERE = Path(__file__).parent

VENDOR = HERE.parent / "vendor"

LIBRARIES = ("vega", "vega-lite", "vega-embed")


def page(results: Results, runs: Sequence[Line], data: Mapping[str, Any], out: Path) -> bytes:
    """``report.html``: the same bytes for the same report.

    Args:
        results: as they are in ``out/results.json``, which the page carries byte for byte.
        runs: lines about the runs behind them.
        data: from ``document``, as for print.
        out: the folder with ``results.json``, figures and timelines.
    """
    stored = (out / "results.json").read_bytes()
    results = with_factors(results)
    more = payload(results, runs, out)
    body = "".join(
        [
            tag("header", head(data)),
            tag(
                "main",
                claims(results, data),
                exhibits(results, data, out, more["traces"]),
                provenance(data, source_digests(out)),
                id="content",
            ),
            '<dialog id="runs" aria-labelledby="runs-title"></dialog>',
            _compress_block("results", stored),
            _compress_block(
                "more", json.dumps(more, ensure_ascii=False, separators=(",", ":")).encode()
            ),
            *(f"<script>{_library(name)}</script>" for name in LIBRARIES),
            f"<script>{(HERE / 'page.js').read_text(encoding='utf-8')}</script>",
        ]
    )
    return build_document(f"{data['words']['title']} {data['title']}".strip(), body).encode()


def _compress_block(name: str, content: bytes) -> str:
    """A block of data: compressed, so that the page stays small."""
    told = base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{told}</script>'


def _library(name: str) -> str:
    """A vendored script under its licence, without the name of a map that is not there."""
    script = (VENDOR / f"{name}.min.js").read_text(encoding="utf-8")
    licence = (VENDOR / f"LICENSE.{name}").read_text(encoding="utf-8")
    return f"/*! {name}\n{licence}*/\n{script.partition('//# sourceMappingURL=')[0]}"


Payload = dict[str, Any]

ROUNDED = 6  # decimals of seconds that a bar of a timeline needs


def payload(results: Results, runs: Sequence[Line], out: Path) -> Payload:
    """Everything but the results themselves.

    Args:
        results: claims and exhibits.
        runs: lines about the runs behind them.
        out: the folder with the timelines.
    """
    timelines = load_timelines(results, out)
    spans = {name: _spans(each) for name, each in timelines.items()}
    return {
        "charts": charts(results, timelines),
        "data": {
            "forest": specs.forest_rows(results.claims),
            **{
                f"{e.id}:differences": _differences(e)
                for e in results.exhibits
                if figures.has_differences(e)
            },
            **{f"{name}:spans": rows for name, rows in spans.items()},
        },
        "told": {
            e.id: [_format_with_spread(row.measured, row.ci95) for row in e.rows]
            for e in results.exhibits
        },
        "columns": {
            e.id: [numbers.format_number(row.column) for row in e.rows] for e in results.exhibits
        },
        "runs": {
            line.hash: [line.kind, line.setting, line.seed, line.status, line.apart, line.note]
            for line in runs
            if line.hash
        },
        "usual": {line.kind: line.apart for line in runs if line.setting == USUAL},
        "traces": {name: _trace(each) for name, each in timelines.items()},
        "against": reference_terms.words_of(results).noun,
        "commit": str(results.provenance.get("git", "not recorded")),
        "command": str(results.provenance.get("command", "not recorded")),
    }


def charts(results: Results, timelines: Mapping[str, Timeline]) -> dict[str, specs.Spec]:
    """Specifications by the element they are drawn in."""
    made = {f"chart-{group[0].id}": specs.chart(group) for group in specs.groups(results.exhibits)}
    made |= {
        f"timeline-{name}": specs.timeline(f"{name}:spans", _lanes(each), each.kinds)
        for name, each in timelines.items()
    }
    rows = specs.forest_rows(results.claims)
    return (
        {"forest": specs.forest(rows, reference_terms.words_of(results)), **made} if rows else made
    )


def load_timelines(results: Results, out: Path) -> dict[str, Timeline]:
    """The first folds of every timeline that an exhibit draws, where its file exists."""
    files = {
        exhibit.id: out / str(exhibit.draw["file"])
        for exhibit in results.exhibits
        if "file" in exhibit.draw
    }
    return {
        name: gantt.beginning(load_timeline(path)) for name, path in files.items() if path.is_file()
    }


def _format_with_spread(value: float | None, ci95: numbers.Bounds) -> str:
    return f"{numbers.format_measured(value, ci95)} {numbers.spread(value, ci95)}".strip()


def _differences(exhibit: Exhibit) -> list[Payload]:
    return [
        {
            "label": row.label,
            "x": row.column,
            "measured": row.measured,
            "low": (row.ci95 or (None, None))[0],
            "high": (row.ci95 or (None, None))[1],
            "told": _format_with_spread(row.measured, row.ci95),
        }
        for row in subtract_reference(exhibit.rows, str(exhibit.draw["against"]))
    ]


def _lane(worker: int) -> str:
    if worker >= 0:
        return f"worker {worker + 1}"
    return "server" if worker == -1 else f"shard {-worker}"


def _lanes(timeline: Timeline) -> list[str]:
    found: set[int] = set(timeline.spans.worker.tolist())
    return [_lane(worker) for worker in sorted(found, key=lambda w: (w < 0, abs(w)))]


def _spans(timeline: Timeline) -> list[Payload]:
    spans = timeline.spans
    columns = (spans.worker, spans.kind, spans.start_s, spans.end_s)
    return [
        {
            "lane": _lane(worker),
            "kind": timeline.kinds[kind],
            "start": round(start, ROUNDED),
            "end": round(end, ROUNDED),
        }
        for worker, kind, start, end in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _trace(timeline: Timeline) -> str:
    events = list(trace_events(timeline))
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))
