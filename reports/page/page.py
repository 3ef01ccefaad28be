"""The page put together: one file of HTML, looks, behaviour, drawing library and results."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.judge import Results
from reports.listing import Line
from reports.page import parts
from reports.page.payload import payload
from reports.provenance import made_from

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
