from __future__ import annotations

from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.reference import PAGES, render_page
from harness.reference.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_the_code_says(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == render_page(page, text), f"python -m harness.reference {page}"


def test_a_page_that_is_out_of_date_is_written_anew(tmp_path, monkeypatch):
    fresh = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/cli.md").write_text(fresh.replace("`--folds`", "`--forlds`"))
    monkeypatch.chdir(tmp_path)
    assert main(["docs/cli.md"]) == 0
    assert (tmp_path / "docs/cli.md").read_text(encoding="utf-8") == fresh


def test_a_page_that_is_not_made_from_code_is_refused():
    with pytest.raises(UserError, match=r"docs/nosuch\.md"):
        main(["docs/nosuch.md"])
