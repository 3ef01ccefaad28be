"""An answer to a question about training: printed, shown in a notebook, and written with its data.

Comparisons, searches for break points and advice are answered in one form.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness.base.settings import format_quantity, format_seconds
from harness.judge import comparison
from harness.judge.interval import Interval
from harness.simulator.cluster import Workload
from harness.store import Cell, Run, files
from reports.render import inline, render_html
from reports.style import render_figure, use_style
from reports.tables import format_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure of an answer, as wide as a column of a page.

    Attributes:
        name: of its files.
        title: heading above it.
        figure: as drawn.
        caption: what is drawn, below it.
    """

    name: str
    title: str
    figure: Figure
    caption: str = ""


@dataclass(frozen=True)
class Answer:
    """Sentences, a table, and figures.

    Attributes:
        title: of its page.
        sentences: the answer; the first sentence is set large.
        table: head and rows as text.
        notes: lines below the table.
        details: further lines of its page; empty ones are left out.
        data: JSON values of the answer; numbers may be not finite.
        name: key of the records among the data.
        records: rows by column, with numbers in full.
        runs: hashes of the runs by name.
        pictures: draws the figures.
        setting: what was run, for the page.
    """

    title: str
    sentences: Sequence[str]
    table: Sequence[Sequence[str]]
    notes: Sequence[str]
    data: Mapping[str, Any]
    name: str
    records: Sequence[Mapping[str, Any]]
    runs: Mapping[str, Sequence[str]]
    pictures: Callable[[], Sequence[Picture]]
    setting: str = ""
    details: Sequence[str] = ()

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self.table, strict=True)]
        rows = (
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in self.table
        )
        return "\n".join([*self.sentences, "", *rows, *self.notes])

    def to_html(self) -> str:
        """Sentences and table for a notebook."""
        data = {"sentences": self.sentences, "rows": self.table, "notes": self.notes}
        return render_html(data, "answer.html")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite are None."""
        records = [{k: finite_or_none(v) for k, v in row.items()} for row in self.records]
        return {k: finite_or_none(v) for k, v in self.data.items()} | {self.name: records}

    def write(self, out: Path) -> list[Path]:
        """Write ``index.html``, ``table.csv``, figures as SVG and PNG, and ``results.json``.

        Args:
            out: the folder, made if it is missing.

        Raises:
            UserError: the folder cannot be written.
        """
        files.writable_folder(out, "report")
        program = Path(sys.argv[0]).name.replace("__main__.py", "lagbench")
        provenance = comparison.describe_program(program) | {"runs": dict(self.runs)}
        with use_style():
            drawn = [
                (picture, {form: render_figure(picture.figure, form) for form in ("svg", "png")})
                for picture in self.pictures()
            ]
        results = {"schema": 1, **self.to_dict(), "provenance": provenance}
        contents = {
            "index.html": self._page(drawn, provenance).encode(),
            "table.csv": format_csv(
                self.records[0], (record.values() for record in self.records)
            ).encode(),
            **{f"{p.name}.{form}": file for p, both in drawn for form, file in both.items()},
            "results.json": (json.dumps(results, indent=2) + "\n").encode(),
        }
        for name, content in contents.items():
            files.write_bytes(out / name, content)
        return [out / name for name in contents]

    def _page(self, drawn: Sequence[tuple[Picture, Any]], provenance: Mapping[str, Any]) -> str:
        versions = ", ".join(f"{name} {text}" for name, text in provenance["versions"].items())
        facts = (("command", provenance["command"]), ("commit", provenance["git"]))
        hashes = [(name, " ".join(h[:12] for h in run)) for name, run in self.runs.items()]
        figures = [
            {"id": p.name, "label": p.title, "note": p.caption}
            | {"svg": inline(both["svg"].decode(), p.name)}
            for p, both in drawn
        ]
        page = {"title": self.title, "sentences": self.sentences, "rows": self.table}
        notes = dict.fromkeys([self.setting, *self.notes, *self.details])
        page |= {"notes": [*filter(None, notes)], "exhibits": figures}
        footer = {"facts": [*facts, ("versions", versions)], "hashes": hashes}
        return render_html({**page, "provenance": footer})


def finite_or_none(value: Any) -> Any:
    """A value for JSON, which has no number that is not finite."""
    if isinstance(value, tuple | list):
        return [finite_or_none(item) for item in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def interval_columns(name: str, value: Interval | None) -> dict[str, float]:
    """Estimate and ends of an interval, as three columns; NaN where there is none."""
    values = (math.nan,) * 3 if value is None else (value.estimate, value.low, value.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def charge_line(cells: Sequence[Cell]) -> str:
    """A line on the size of a minibatch and of a parameter copy; empty if no run records them."""
    charges = dict.fromkeys(_charge(run) for cell in cells for run in cell.runs[:1])
    text = " or ".join(charge for charge in charges if charge)
    return f"time is charged for {text}" if text else ""


def _charge(run: Run) -> str:
    config, work = run.config, _work(run.config)
    if work is None:
        return ""
    copies = f"copies of {format_quantity(work.parameter_bytes, 'B')}"
    if work.operators:
        launched = f"{work.operators:.0f} operators, {format_quantity(work.moved_bytes, 'B')} moved"
        return f"minibatches of {launched}, {work.minibatch_flops:.4g} operations, and {copies}"
    if work.minibatch_flops:
        return f"minibatches of {work.minibatch_flops:.4g} operations and {copies}"
    devices = config["cluster"]["devices"].values()
    launches = {float(device.get("launch_s", 0.0)) for device in devices}
    steps = " or ".join(map(format_seconds, sorted(launches)))
    return f"minibatches of {steps} and {copies}"


def _work(config: dict[str, Any]) -> Workload | None:
    """The work that a run of modules or of frames of speech is charged for."""
    if "work" in config:
        names = {entry.name for entry in fields(Workload)} & config["work"].keys()
        return Workload(**{name: config["work"][name] for name in names})
    if "timed_layers" in config and "stages" in config:
        return Workload.of_network(config["timed_layers"], config["stages"][0]["timed_minibatch"])
    return None
