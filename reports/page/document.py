"""Elements of HTML, and a whole document with the project's style sheet."""

from __future__ import annotations

from html import escape
from pathlib import Path

HERE = Path(__file__).parent


def tag(name: str, *children: str, **attributes: str) -> str:
    """An element; a trailing ``_`` of an attribute's name is dropped, another is a hyphen.

    Example:
        >>> tag("td", "a", class_="figure", data_key="1")
        '<td class="figure" data-key="1">a</td>'
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{told}>{''.join(children)}</{name}>"


def build_document(title: str, body: str) -> str:
    """A whole HTML document with the project's style sheet."""
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
