"""A report by typst, beside the PDF: its pages as pictures, and what it carries by label."""

from __future__ import annotations

import json

import typst

from reports.pdf import TEMPLATE, _setting


def pictured(data, root, ppi):
    """The pages as PNG files, ``ppi`` pixels an inch."""
    made = typst.compile(TEMPLATE.read_bytes(), format="png", ppi=ppi, **_setting(data, root))
    return made if isinstance(made, list) else [made]  # a list where there are several


def labelled(data, root, label):
    """The ids that the document carries under ``label``: ``"claim"`` or ``"exhibit"``."""
    found = typst.query(TEMPLATE.read_bytes(), f"<{label}>", field="value", **_setting(data, root))
    return json.loads(found)
