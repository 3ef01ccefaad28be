"""The page put together: one file of HTML, looks, behaviour, drawing library and results.

Its script works with a payload: specifications, printed figures, runs and timelines.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.judge import Exhibit, Results
from harness.judge.paired import against
from harness.simulator.timeline import Timeline
from harness.simulator.timeline_file import load_timeline, trace_events
from reports import figures, gantt, numbers, reference_terms, specs
from reports.page import parts
from reports.provenance import USUAL, Line, made_from

HERE = Path(__file__).parent

VENDOR = HERE.parent / "vendor"

LIBRARIES = ("vega", "vega-lite", "vega-embed")


def page(results: Results, runs: Sequence[Line], data: Mapping[str, Any], out: Path) -> bytes:
    """``report.html``: the same bytes for the same report.

    Args:
        results: as they are in ``out/results.json``, which the page carries byte for byte.
        runs: what is known of the runs behind them.
        data: what ``document`` gives, as for print.
        out: the folder with ``results.json``, figures and timelines.
    """
    stored = (out / "results.json").read_bytes()
    more = payload(results, runs, out)
    body = "".join(
        [
            parts.tag("header", parts.head(results, data)),
            parts.tag(
                "main",
                parts.claims(results, data),
                parts.exhibits(results, data, out, more["traces"]),
                parts.provenance(data, made_from(out)),
                id="content",
            ),
            '<dialog id="runs" aria-labelledby="runs-title"></dialog>',
            _packed("results", stored),
            _packed("more", json.dumps(more, ensure_ascii=False, separators=(",", ":")).encode()),
            *(f"<script>{_library(name)}</script>" for name in LIBRARIES),
            f"<script>{(HERE / 'page.js').read_text(encoding='utf-8')}</script>",
        ]
    )
    return framed(f"{data['words']['title']} {data['title']}".strip(), body).encode()


def framed(title: str, body: str) -> str:
    """A whole document in the house's looks."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{(HERE / 'page.css').read_text(encoding='utf-8')}</style></head>",
            f'<body><a class="skip" href="#content">To the content</a>{body}</body></html>',
        ]
    )


def _packed(name: str, content: bytes) -> str:
    """A block of data: compressed, so that the page stays small."""
    told = base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{told}</script>'


def _library(name: str) -> str:
    """A vendored script under its licence, without the name of a map that is not there."""
    script = (VENDOR / f"{name}.min.js").read_text(encoding="utf-8")
    licence = (VENDOR / f"LICENSE.{name}").read_text(encoding="utf-8")
    return f"/*! {name}\n{licence}*/\n{script.partition('//# sourceMappingURL=')[0]}"


Data = dict[str, Any]

ROUNDED = 6  # decimals of seconds that a bar of a timeline needs


def payload(results: Results, runs: Sequence[Line], out: Path) -> Data:
    """Everything but the results themselves.

    Args:
        results: what was found.
        runs: what is known of the runs behind it.
        out: the folder with the timelines.
    """
    timelines = kept_timelines(results, out)
    spans = {name: _spans(each) for name, each in timelines.items()}
    return {
        "charts": charts(results, timelines),
        "data": {
            "forest": specs.forest_rows(results.claims),
            **{
                f"{e.id}:differences": _differences(e)
                for e in results.exhibits
                if figures.paired(e)
            },
            **{f"{name}:spans": rows for name, rows in spans.items()},
        },
        "told": {e.id: [_told(row.measured, row.ci95) for row in e.rows] for e in results.exhibits},
        "columns": {
            e.id: [numbers.printed(row.column) for row in e.rows] for e in results.exhibits
        },
        "runs": {
            line.hash: [line.kind, line.setting, line.seed, line.status, line.apart, line.note]
            for line in runs
            if line.hash
        },
        "usual": {line.kind: line.apart for line in runs if line.setting == USUAL},
        "traces": {name: _trace(each) for name, each in timelines.items()},
        "against": reference_terms.of(results).noun,
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
    return {"forest": specs.forest(rows, reference_terms.of(results)), **made} if rows else made


def kept_timelines(results: Results, out: Path) -> dict[str, Timeline]:
    """The beginning of every timeline that an exhibit draws and that is there."""
    files = {
        exhibit.id: out / str(exhibit.draw["file"])
        for exhibit in results.exhibits
        if "file" in exhibit.draw
    }
    return {
        name: gantt.beginning(load_timeline(path)) for name, path in files.items() if path.is_file()
    }


def _told(value: float | None, ci95: numbers.Bounds) -> str:
    return f"{numbers.measured(value, ci95)} {numbers.spread(value, ci95)}".strip()


def _differences(exhibit: Exhibit) -> list[Data]:
    return [
        {
            "label": row.label,
            "x": row.column,
            "measured": row.measured,
            "low": (row.ci95 or (None, None))[0],
            "high": (row.ci95 or (None, None))[1],
            "told": _told(row.measured, row.ci95),
        }
        for row in against(exhibit.rows, str(exhibit.draw["against"]))
    ]


def _lane(worker: int) -> str:
    if worker >= 0:
        return f"worker {worker + 1}"
    return "server" if worker == -1 else f"shard {-worker}"


def _lanes(timeline: Timeline) -> list[str]:
    found: set[int] = set(timeline.spans.worker.tolist())
    return [_lane(worker) for worker in sorted(found, key=lambda w: (w < 0, abs(w)))]


def _spans(timeline: Timeline) -> list[Data]:
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
