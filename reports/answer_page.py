"""One HTML page without other files: an answer in sentences, its table, figures and runs."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from reports.page.document import build_document, tag

KIND = "data:image/svg+xml;base64,"


@dataclass(frozen=True)
class Picture:
    """A figure of a page.

    Attributes:
        title: heading above it.
        svg: its file.
        caption: what is drawn, below it.
    """

    title: str
    svg: bytes
    caption: str


def build_page(
    title: str,
    sentences: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    pictures: Sequence[Picture],
    provenance: Mapping[str, Any],
) -> str:
    """A whole page: the answer first, then table, figures and provenance.

    Args:
        title: its title.
        sentences: the answer; the first sentence is set large.
        rows: head and rows of the table.
        notes: lines below the table.
        pictures: the figures.
        provenance: commit, versions, command and hashes of the runs.
    """
    body = [
        tag("h1", escape(title)),
        *summary(sentences, rows, notes),
        *(each for picture in pictures for each in _figure(picture)),
        tag("h2", "Provenance"),
        *_provenance(provenance),
    ]
    return build_document(title, tag("main", *body, id="content"))


def summary(
    sentences: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> Iterator[str]:
    """The answer, the table and its notes as elements, also for a notebook."""
    first, *others = sentences
    yield tag("p", escape(first), class_="answer")
    yield from (tag("p", escape(each)) for each in others)
    head, *body = rows
    columns = list(zip(*body, strict=True))
    heads = tag("tr", *map(_head, head, columns))
    lines = [tag("tr", *map(_cell, row)) for row in body]
    table = tag("table", tag("thead", heads), tag("tbody", *lines))
    yield tag("div", table, class_="wide", tabindex="0", role="region", aria_label="table")
    yield from (tag("p", escape(note), class_="note") for note in notes)


def _head(text: str, column: Sequence[str]) -> str:
    """The head of a column, to the right above figures."""
    right = {"class_": "figure"} if any(map(_is_figure, column)) else {}
    return tag("th", escape(text), scope="col", **right)


def _cell(text: str) -> str:
    """A cell; figures are set to the right, with intervals and numbers of seeds below."""
    if not _is_figure(text):
        return tag("td", escape(text))
    seeds, _, seconds = text.partition(", in ")  # as `format_target` has it
    figure, bracket, rest = (f"{seconds} ({seeds})" if seconds else text).partition(" (")
    below = tag("span", escape(f" ({rest}"), class_="small") if bracket else ""
    return tag("td", escape(figure), below, class_="figure")


def _is_figure(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "-−"


def _figure(picture: Picture) -> Iterator[str]:
    yield tag("h2", escape(picture.title))
    source = f"{KIND}{base64.b64encode(picture.svg).decode()}"
    image = f'<img alt="{escape(picture.title)}" src="{source}" style="max-width:100%">'
    yield tag("figure", image, tag("figcaption", escape(picture.caption)))


def _provenance(provenance: Mapping[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {each}" for name, each in provenance["versions"].items())
    told = {"command": provenance["command"], "commit": provenance["git"], "versions": versions}
    facts = "".join(tag("dt", name) + tag("dd", escape(str(value))) for name, value in told.items())
    yield tag("dl", facts)
    runs = "".join(
        tag("dt", escape(name)) + tag("dd", tag("code", escape(" ".join(h[:12] for h in hashes))))
        for name, hashes in provenance["runs"].items()
    )
    yield tag("details", tag("summary", "Hashes of the runs"), tag("dl", runs))
