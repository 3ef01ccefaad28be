"""Every relative link of a page leads to a file, and every anchor to a heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for folder, deep in ((".", "*.md"), ("docs", "**/*.md"), ("reproductions", "**/*.md"))
    for path in (ROOT / folder).glob(deep)
)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """What the headings of a page are called in links, as GitHub has it."""
    heads = re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads]
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_leads_somewhere(page):
    here = ROOT / page
    for target, anchor in LINK.findall(prose(here)):
        leads = (here.parent / target).resolve() if target else here
        assert leads.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(leads), f"{page}: {target}#{anchor}"
