"""One report from one output folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.base.errors import UserError
from harness.base.log import printable
from harness.judge.results import Exhibit, Results, read_results, write_results
from harness.simulator.timeline_file import load_timeline, save_timeline
from harness.store.files import writable_folder, write_bytes
from harness.store.schema import TIMELINE
from reports import (
    PUBLISHED,
    SCALES,
    figures,
    gantt,
    provenance,
    reference_terms,
    render,
    tables,
    written,
)
from reports.document import document

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def assemble(out: Path, results: Results | None = None) -> None:
    """See ``reports.build``."""
    path = out / "results.json"
    content = printable(_read_stored(path) if results is None else results)
    if results is not None:
        _keep_timelines(results, out)
    for folder in ("figures", "tables"):
        writable_folder(out / folder, "report")
    complete = with_files(content, out)
    if results is not None or complete != content:
        write_results(path, complete)
    runs = provenance.lines(complete, out)
    write_bytes(out / provenance.RUNS_CSV, provenance.runs_to_csv(runs).encode())
    folder, judged = find_verdicts(out, complete)
    reasons, summary = written.read_reasons(folder, judged), written.read_summary(folder, judged)
    published = None if judged is complete else judged
    words = written.read_words(folder)
    data = document(complete, runs, reasons, summary, **words, judged=published)
    data["sources"] = provenance.source_digests(out)
    write_bytes(out / "report.html", render.render_html(with_pictures(data, out)).encode())
    write_bytes(out / "report.pdf", render.compile_pdf(data, out))


def find_verdicts(out: Path, results: Results) -> tuple[Path, Results]:
    """Folder and results of the verdicts to show: at smoke scale the published ones, if any."""
    paths = [PUBLISHED / results.paper / scale / "results.json" for scale in reversed(SCALES)]
    path = next((path for path in paths if path.is_file()), None)
    if results.scale != "smoke" or path is None:
        return out, results
    return path.parent, printable(read_results(path))


def with_pictures(data: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The data of a report with the figures themselves, as a page has them."""
    exhibits = [
        exhibit | {"svg": render.inline((out / exhibit["image"]).read_text("utf-8"), exhibit["id"])}
        if exhibit["image"]
        else exhibit
        for exhibit in data["exhibits"]
    ]
    return {**data, "exhibits": exhibits}


def _read_stored(path: Path) -> Results:
    if not path.is_file():
        folder = str(path.parent)
        raise UserError(f"report: {folder!r} holds no results.json; allowed: a folder with one")
    return read_results(path)


def _keep_timelines(results: Results, out: Path) -> None:
    """Save the part of each timeline that an exhibit draws beside the report."""
    for draw in (exhibit.draw for exhibit in results.exhibits):
        if "file" in draw and "run" in draw:
            target = out / str(draw["file"])
            target.parent.mkdir(parents=True, exist_ok=True)
            timeline = load_timeline(out / "runs" / str(draw["run"]) / TIMELINE)
            save_timeline(gantt.beginning(timeline), target)


def with_files(results: Results, out: Path) -> Results:
    """Write every exhibit's figure and table, and enter their names."""
    words = reference_terms.words_of(results)
    lines = (e for e in results.exhibits if e.draw.get("as") == "curves" and e.curve is None)
    places = figures.place_labels(lines)
    if (joined := figures.join_tables(results.exhibits)) is not None:
        _write(joined, out, words, {})
    exhibits = (
        replace(exhibit, files=_write(exhibit, out, words, places)) for exhibit in results.exhibits
    )
    return replace(results, exhibits=tuple(exhibits))


def _write(
    exhibit: Exhibit, out: Path, words: reference_terms.Words, places: Mapping[str, int]
) -> tuple[str, ...]:
    # Ids become file names: a separator or '..' in one would lead out of the folder.
    if not ID.fullmatch(exhibit.id):
        raise UserError(
            f"results.json: exhibit id {exhibit.id!r}; allowed: letters, digits, '.', '_', '-'"
        )
    contents = {
        f"figures/{exhibit.id}.{form}": image
        for form, image in figures.draw(exhibit, out, words, places).items()
    }
    if exhibit.rows:
        contents[f"tables/{exhibit.id}.csv"] = tables.to_csv(exhibit).encode()
    for name, content in contents.items():
        write_bytes(out / name, content)
    return tuple(contents)
