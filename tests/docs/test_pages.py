"""What pages tell a reader to run runs, and prints what they say."""

from pathlib import Path

import pytest

from harness.base import registry
from tests.docs.pages import ROOT, blocks, printed, words

PAGES = ["README.md", "docs/index.md", "docs/tutorial.md", "docs/results.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/howto").glob("*.md"))
TOLD = {"run", "not run", "file"}


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_whether_it_is_run_and_if_not_why(page):
    for block in blocks(text(page)):
        if block.language in ("sh", "python"):
            assert block.told in TOLD, f"{page}: {block.text}"
        assert block.rest or block.told not in ("not run", "file"), f"{page}: {block.text}"


@pytest.fixture
def forgotten():
    """Packages that a page installs are looked for, and gone after it."""
    registry.forget()
    yield
    registry.forget()


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("page", PAGES)
def test_what_is_run_prints_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block, out in printed(text(page)):
        if block.told == "output":
            assert block.text.strip() == out.strip(), f"python -m tests.docs.pages {page}"
        else:
            assert words(block.text.strip()) == words(out.strip()), page


def test_a_block_that_prints_something_else_is_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "<!-- run -->\n```python\nprint(1 + 1)\n```\n\n<!-- output -->\n```text\n3\n```\n"
    ((block, out),) = printed(page)
    assert (block.text, out) == ("3\n", "2\n")
    assert not Path("page").exists()
