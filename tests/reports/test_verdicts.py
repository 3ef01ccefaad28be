import shutil
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.judge.results import read_results
from reports import verdicts

ROOT = Path(__file__).parents[2]
MARKED = f"# A page\n\nbefore\n\n{verdicts.BEGIN}\nold\n{verdicts.END}\n\nafter\n"


@pytest.fixture
def root(built, tmp_path) -> Path:
    """A project with one published result, and its pages."""
    folder = tmp_path / "reports" / "published" / "paper1" / "laptop"
    folder.mkdir(parents=True)
    shutil.copy(built / "results.json", folder)
    for page in verdicts.PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(MARKED)
    return tmp_path


def test_what_stands_between_the_markers_is_replaced_and_nothing_else(root):
    verdicts.main(root)
    for page in verdicts.PAGES:
        text = (root / page).read_text()
        assert text.startswith("# A page\n\nbefore\n")
        assert text.endswith("\n\nafter\n")
        assert "\nold\n" not in text
    assert all(text == fresh for _, text, fresh in verdicts.render_pages(root))


def test_every_claim_and_every_verdict_is_counted(root):
    text = verdicts.list_claims(verdicts.read_published(root), root)
    link = "[paper1](../reports/published/paper1/laptop/report.pdf)"
    assert f"| {link} | laptop, 2 seeds | 1 | 0 | 2 | 0 | 0 | 1 |" in text
    for claim in read_results(root / "reports/published/paper1/laptop/results.json").claims:
        assert text.count(f"| `{claim.id}` |") == 1


def test_a_page_without_markers_is_refused(root):
    (root / "docs/index.md").write_text("# A page\n")
    with pytest.raises(UserError, match=r"index.md: the markers"):
        list(verdicts.render_pages(root))


def test_the_projects_own_pages_are_up_to_date():
    """After a change: ``python -m reports.verdicts``."""
    for path, text, fresh in verdicts.render_pages(ROOT):
        assert text == fresh, path


def test_what_is_published_names_no_path_and_no_host_of_a_machine():
    for path in (ROOT / "reports" / "published").rglob("*"):
        if path.suffix in (".json", ".toml", ".csv", ".md"):
            text = path.read_text(encoding="utf-8")
            assert not [word for word in ("/home/", "/tmp/", "/root/", "/work/") if word in text]
