from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.judge import read_results, write_results
from harness.judge.claims import VERDICTS
from reports import verdicts
from tests.reports import test_extrapolation

ROOT = Path(__file__).parents[2]
PAGES = [*verdicts.PAGES, verdicts.PAPER_PAGES / "paper1.md"]
ANSWERS = {True: "yes", False: "no"}
MARKED = f"# A page\n\nbefore\n\n{verdicts.BEGIN}\nold\n{verdicts.END}\n\nafter\n"


@pytest.fixture
def root(built, tmp_path) -> Path:
    """A project with one published result, a reason for each claim that needs one, two pages."""
    folder = tmp_path / "reports" / "published" / "paper1" / "laptop"
    folder.mkdir(parents=True)
    shutil.copy(built / "results.json", folder)
    claims = read_results(folder / "results.json").claims
    reasons = [
        f'["{c.id}"]\nverdict = "{c.verdict}"\nwhy = """Too\nfew."""\n'
        for c in claims
        if verdicts.needs_reason(c)
    ]
    (folder / "reasons.toml").write_text("\n".join(reasons))
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(MARKED)
    return tmp_path


def test_what_stands_between_the_markers_is_replaced_and_nothing_else(root):
    verdicts.main(root)
    for page in PAGES:
        text = (root / page).read_text()
        assert text.startswith("# A page\n\nbefore\n")
        assert text.endswith("\n\nafter\n")
        assert "\nold\n" not in text
    for page in PAGES[2:]:
        assert "`p1.speedup-4`" in (root / page).read_text()
    assert ".md)** Holds here: " in (root / "docs/index.md").read_text()
    assert all(text == fresh for _, text, fresh in verdicts.render_pages(root))


def test_the_summary_counts_every_verdict_in_a_row_a_result(root):
    (item,) = verdicts.read_published(root)
    there = replace(item, folder=Path("published/paper1"))
    head, _, row = verdicts.summary([there], "../").splitlines()
    verdict_columns = " | ".join(VERDICTS)
    assert head.startswith(f"| report | scale | corpus | seeds | {verdict_columns} | cannot fail |")
    link = "[paper1](../published/paper1/report.pdf)"
    assert row == f"| {link} | laptop | fsdd | 2 | 1 | 1 | 2 | 0 | 0 | 1 | 1 | 2 of 2 |"


def test_changed_verdicts_are_listed_with_what_they_were_and_why(root):
    (item,) = verdicts.read_published(root)
    one, two, three, *_ = item.results.claims
    claims = (
        replace(one, before="contradicted, then not testable", here="fails"),
        replace(two, before="reproduced", here="fails", changed_after_runs="frames are judged"),
        replace(three, before=three.verdict),
    )
    smaller = replace(item, results=replace(item.results, scale="smoke"))
    changed = replace(item, results=replace(item.results, claims=claims))
    told = verdicts.list_changes([changed, smaller])
    assert told.startswith("By earlier rules 1 claims were `not testable`: of them 1 fail")
    assert "Of all 1, 1 had been published as `contradicted` before. " in told
    rows = [line.split(" | ") for line in told.splitlines()[4:]]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        (f"| `{one.id}`", "contradicted, then not testable", f"{verdicts.RULES} |"),
        (f"| `{two.id}`", "reproduced", "frames are judged |"),
    ]
    assert verdicts.count_answers([changed]).startswith(
        f"Of the 3 claims of paper1 at laptop scale, {int(three.here == 'holds')} hold, "
    )


def test_a_curve_over_scale_is_drawn_beside_its_row(root):
    (item,) = verdicts.read_published(root)
    curve = test_extrapolation.make({1.0: 2, 3.0: 2})
    results = replace(item.results, exhibits=(*item.results.exhibits, curve))
    write_results(item.folder / "results.json", results)
    (root / "docs/pictures").mkdir()
    assert verdicts.main(root) == 0
    drawn = (root / "docs/pictures/p9.scaling.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    text = (root / "docs/verdicts.md").read_text()
    assert "\n![A ratio by hours](pictures/p9.scaling.png)\n" in text
    assert "| p9.close, clean | speech | 1 h: " in text


def test_the_summary_says_how_many_verdicts_the_correction_takes_away(root):
    (item,) = verdicts.read_published(root)
    claims = [
        replace(claim, here="fails", corrected=corrected, cannot_fail="")
        for claim, corrected in zip(item.results.claims, ("unclear", "fails", None), strict=False)
    ]
    several = replace(item, results=replace(item.results, claims=tuple(claims)))
    assert verdicts.summary([several]).splitlines()[2].endswith("| 0 | 2 of 3 |")


def test_the_overview_has_a_row_a_claim_and_a_column_a_scale(root):
    (item,) = verdicts.read_published(root)
    changed = tuple(replace(c, here="unclear", measured=7.0) for c in item.results.claims[1:])
    later = replace(item, results=replace(item.results, scale="overnight", claims=changed))
    lines = verdicts.overview([later, item]).splitlines()
    head = "| claim | statement | claimed | measured | laptop | overnight | runs show | bears |"
    rows = [line for line in lines[lines.index(head) + 2 :] if "](verdicts/" in line]
    first, *others = item.results.claims
    assert len(rows) == 1 + len(others)
    alone = next(row for row in rows if f"`{first.id}`" in row)
    assert alone.endswith(f"| {first.verdict} |  | {first.here} | {ANSWERS[first.bears]} |")
    for claim in others:
        (row,) = (row for row in rows if row.startswith(f"| [`{claim.id}`](verdicts/paper1.md) |"))
        assert f"| {claim.verdict} | unclear | unclear | " in row


def test_the_page_gives_the_reason_of_every_claim_that_needs_one(root):
    (item,) = verdicts.read_published(root)
    text = verdicts.page(item)
    for claim in item.results.claims:
        explained = f"- `{claim.id}`. Why {claim.verdict}: Too few." in text
        assert explained == verdicts.needs_reason(claim)


def test_where_everything_is_reproduced_no_reason_is_announced(root):
    (item,) = verdicts.read_published(root)
    told = item.results.claims
    good = replace(item.results, claims=tuple(replace(c, here="holds") for c in told))
    assert ". Why" in verdicts.page(item)
    assert ". Why" not in verdicts.page(replace(item, results=good, reasons={}))


def test_a_reason_for_another_verdict_or_a_missing_one_is_refused(root):
    path = root / "reports/published/paper1/laptop/reasons.toml"
    text = path.read_text()
    path.write_text(text.replace('"contradicted"', '"unclear"'))
    with pytest.raises(UserError, match="explains 'unclear'; measured: 'contradicted'"):
        verdicts.read_published(root)
    path.unlink()
    with pytest.raises(UserError, match="a reason for each claim that bears"):
        verdicts.read_published(root)


def test_a_reproduced_claim_may_have_a_reservation(root):
    path = root / "reports/published/paper1/laptop/reasons.toml"
    (item,) = verdicts.read_published(root)
    held = next(c.id for c in item.results.claims if c.verdict == "reproduced")
    text = path.read_text()
    path.write_text(f'{text}["{held}"]\nverdict = "reproduced"\nwhy = "But *once*."\n')
    (item,) = verdicts.read_published(root)
    assert f"- `{held}`. With a reservation: But *once*." in verdicts.page(item)
    path.write_text(f'{text}["p1.none"]\nverdict = "reproduced"\nwhy = "x"\n')
    with pytest.raises(UserError, match=r"reasons\.toml: p1\.none: no claim; allowed: "):
        verdicts.read_published(root)


def test_a_page_without_markers_is_refused(root):
    (root / "README.md").write_text("# A page\n")
    with pytest.raises(UserError, match=r"README.md: the markers"):
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
