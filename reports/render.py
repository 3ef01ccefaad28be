"""A page and a PDF from plain data: one template each, ``page.html`` and ``report.typ``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent
TEMPLATE = HERE / "report.typ"
IDS = re.compile(r'(\bid="|href="#|url\(#)')
"""Where an SVG declares or uses an id."""
SIZE = re.compile(r'width="([\d.]+pt)" height="[\d.]+pt"')
"""The size that an SVG declares."""


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader  # when needed

    return Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )


def render_html(data: Mapping[str, Any], template: str = "page.html") -> str:
    """A page that needs no other file; text in ``data`` is escaped, pictures are not."""
    return _environment().get_template(template).render(**data)


def inline(svg: str, name: str) -> str:
    """An SVG file as an element of a page; its ids begin with ``name``, as a page has several.

    It is as wide as the page, and no narrower than its letters can be read.
    """
    element = SIZE.sub(r'style="min-width: calc(.87 * \1)"', svg[svg.index("<svg") :], count=1)
    return IDS.sub(rf"\g<1>{name}-", element)


def compile_pdf(data: Mapping[str, Any], root: Path) -> bytes:
    """The PDF of ``data``, the same bytes for the same data.

    Args:
        data: passed as JSON, so no character in it is markup.
        root: the folder that image paths in ``data`` start from.
    """
    import typst

    options, moment = typst_options(data, root), 0  # a report tells its dates itself
    return cast(  # a list where a page is a file
        bytes, typst.compile(TEMPLATE.read_bytes(), format="pdf", timestamp=moment, **options)
    )


def typst_options(data: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Arguments of typst for a report, without its source."""
    return {
        "root": str(root),
        "ignore_system_fonts": True,
        "sys_inputs": {"data": json.dumps(data, allow_nan=False)},
    }
