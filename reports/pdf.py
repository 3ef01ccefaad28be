"""Typst: data in, PDF bytes out."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

TEMPLATE = Path(__file__).with_name("report.typ")
TIMESTAMP = 0  # a report tells its dates itself; the same content is the same bytes


def possible() -> bool:
    """Whether typst is installed: a machine lent for its GPU may have no more than the usual."""
    return find_spec("typst") is not None


def compiled(data: dict[str, Any], root: Path) -> bytes:
    """The PDF of ``data``.

    Args:
        data: what ``document`` gives; passed as JSON, so no character in it is markup.
        root: the folder that image paths in ``data`` start from.
    """
    import typst

    setting = _setting(data, root)
    return cast(  # a list where a page is a file
        bytes,
        typst.compile(TEMPLATE.read_bytes(), format="pdf", timestamp=TIMESTAMP, **setting),
    )


def pictured(data: dict[str, Any], root: Path, ppi: float) -> list[bytes]:
    """The pages as PNG files, ``ppi`` pixels an inch."""
    import typst

    setting = _setting(data, root)
    made = cast(
        "bytes | list[bytes]",  # a list where there are several
        typst.compile(TEMPLATE.read_bytes(), format="png", ppi=ppi, **setting),
    )
    return made if isinstance(made, list) else [made]


def labelled(data: dict[str, Any], root: Path, label: str) -> list[str]:
    """The ids that the document carries under ``label``: ``"claim"`` or ``"exhibit"``."""
    import typst

    found = typst.query(TEMPLATE.read_bytes(), f"<{label}>", field="value", **_setting(data, root))
    return json.loads(found)


def _setting(data: dict[str, Any], root: Path) -> dict[str, Any]:
    return {
        "root": str(root),
        "ignore_system_fonts": True,
        "sys_inputs": {"data": json.dumps(data, allow_nan=False)},
    }
