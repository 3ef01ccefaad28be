"""A report by typst, beside the PDF: its pages as pictures, and what it carries by label."""

from __future__ import annotations

import json

import typst

from reports.render import TEMPLATE, typst_options


def pictured(data, root, ppi):
    """The pages as PNG files, ``ppi`` pixels an inch."""
    options = typst_options(data, root)
    pages = typst.compile(TEMPLATE.read_bytes(), format="png", ppi=ppi, **options)
    return pages if isinstance(pages, list) else [pages]  # a list where there are several


def labelled(data, root, label):
    """The ids that the document carries under ``label``: ``"claim"`` or ``"exhibit"``."""
    options = typst_options(data, root)
    ids = typst.query(TEMPLATE.read_bytes(), f"<{label}>", field="value", **options)
    return json.loads(ids)
