import io
import json
import shutil
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from harness.base.errors import UserError
from harness.judge.results import Part, read_results, write_results
from reports import build, provenance
from reports.document import document
from tests.reports.typeset import labelled, pictured

MARKUP = '#emph[x] $x_1$ *b* _i_ @ref <tag> \\ "q" `c` // /* {} [] ~ = - + é π 语'


def data_of(folder):
    results = read_results(folder / "results.json")
    return document(results, provenance.lines(results, folder))


def test_every_exhibit_and_every_claim_is_in_the_pdf(built):
    results = read_results(built / "results.json")
    for label, items in (("exhibit", results.exhibits), ("claim", results.claims)):
        assert labelled(data_of(built), built, label) == [item.id for item in items]


def test_the_same_input_gives_the_same_bytes(built, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(built, copy)
    (copy / "report.pdf").unlink()
    build(copy)
    names = ["report.pdf", "report.html", "results.json"]
    names += [
        str(p.relative_to(built)) for d in ("figures", "tables") for p in (built / d).iterdir()
    ]
    assert len(names) > 10
    for name in names:
        assert (copy / name).read_bytes() == (built / name).read_bytes(), name


def test_every_file_an_exhibit_names_exists(built):
    for exhibit in read_results(built / "results.json").exhibits:
        assert exhibit.files
        for file in exhibit.files:
            assert (built / file).stat().st_size > 0


def test_building_changes_nothing_in_the_results_but_the_files(out):
    before = json.loads((out / "results.json").read_text())
    build(out)
    after = json.loads((out / "results.json").read_text())
    for exhibit in (*before["exhibits"], *after["exhibits"]):
        del exhibit["files"]
    assert before == after


def test_text_that_looks_like_markup_stays_text(out):
    results = read_results(out / "results.json")
    marked = replace(
        results,
        corpus=MARKUP,
        provenance=results.provenance | {"command": MARKUP, "reference": {"title": MARKUP}},
        exhibits=tuple(
            replace(
                each, title=MARKUP, note=MARKUP, axes={"x": MARKUP, "y": MARKUP},
                rows=tuple(replace(row, label=MARKUP) for row in each.rows[:1]),
            )
            for each in results.exhibits
        ),
        claims=tuple(
            replace(
                each, statement=MARKUP, note=MARKUP, paper=MARKUP, parts=(Part(MARKUP, MARKUP),)
            )
            for each in results.claims
        ),
    )  # fmt: skip
    write_results(out / "results.json", marked)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*missing from font")
        build(out)
    assert len(labelled(data_of(out), out, "claim")) == len(results.claims)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "gpu", "paper"])
def test_every_scale_but_the_papers_has_a_caution(make, tmp_path, scale):
    cautions = data_of(make(tmp_path, scale))["cautions"][:-1]  # the last is of failed runs
    assert len(cautions) == (scale != "paper")
    assert "Nothing is judged" in "".join(cautions) or scale != "smoke"


def test_a_run_that_diverged_is_marked_wherever_it_matters(built):
    data = data_of(built)
    claims = {claim["id"]: claim for claim in data["claims"]}
    tables = {each["id"]: each for each in data["exhibits"]}
    assert data["cautions"][-1].startswith("1 run did not end well")
    assert claims["p1.switch"]["flag"]
    assert not claims["p1.speedup-4"]["flag"]
    assert "diverged" in claims["p1.switch"]["notes"][-1]
    assert "diverged" in tables["p1.table2"]["note"]
    assert "diverged" not in tables["p1.table1"]["note"]


def test_the_provenance_tells_commit_and_differences_and_where_the_runs_are(built):
    provenance = data_of(built)["provenance"]
    assert ["hidden layers", "7 × 2048", "3 × 128"] in provenance["differences"]
    assert ("commit", "0123abc") in provenance["facts"]
    assert provenance["runs"].startswith("7 runs in runs.csv")


def test_a_cited_run_that_is_not_stored_is_told(built, tmp_path):
    results = read_results(built / "results.json")
    assert "not stored" not in data_of(built)["provenance"]["runs"]
    data = document(results, provenance.lines(results, tmp_path))
    assert "7 cited runs are not stored" in data["provenance"]["runs"]


def test_a_figure_whose_timeline_is_not_there_says_so(out):
    shutil.rmtree(out / "timelines")
    build(out)
    figure = next(each for each in data_of(out)["exhibits"] if each["id"] == "p1.fig1")
    assert figure["image"] == ""
    assert figure["note"].endswith("Not drawn: timelines/fig1.parquet is not beside these results.")


def test_no_page_but_the_last_is_less_than_half_full(built):
    pages = [np.array(Image.open(io.BytesIO(p)).convert("L")) for p in pictures(built)]
    assert len(pages) > 2
    for page in pages[:-1]:
        text = page[: len(page) * 9 // 10]  # without the footer
        assert np.flatnonzero((text < 230).any(axis=1))[-1] > len(page) / 2  # text is grey so small


def pictures(folder):
    return pictured(data_of(folder), folder, 20)


def test_the_title_says_that_it_is_a_reproduction(built):
    assert b">Reproduction of Improving Training" in (built / "report.pdf").read_bytes()


def test_a_report_with_nothing_in_it_still_compiles(tmp_path, make):
    out = make(tmp_path)
    results = read_results(out / "results.json")
    write_results(
        out / "results.json", replace(results, claims=(), exhibits=(), provenance={}, seeds=())
    )
    shutil.rmtree(out / "runs")
    build(out)
    assert (out / "report.pdf").read_bytes().startswith(b"%PDF")


def test_an_exhibit_id_that_would_leave_the_folder_is_refused(out):
    results = read_results(out / "results.json")
    wrong = replace(results.exhibits[2], id="../../x")
    write_results(out / "results.json", replace(results, exhibits=(wrong,)))
    with pytest.raises(UserError, match=r"exhibit id '../../x'"):
        build(out)


def test_control_characters_in_labels_are_shown_as_escapes(out):
    path = out / "results.json"
    odd = json.loads(path.read_text(encoding="utf-8"))
    for exhibit in odd["exhibits"]:
        for row in exhibit["rows"]:
            row["label"] += "\x07\x1b[31m"
    path.write_text(json.dumps(odd), encoding="utf-8")
    build(out)
    for file in (out / "figures").glob("*.svg"):
        ElementTree.parse(file)
    texts = [p for p in out.rglob("*") if p.suffix in (".csv", ".svg", ".html")]
    assert not [p for p in texts if {7, 27} & set(p.read_bytes())]
    assert any(r"\x07\x1b[31m" in p.read_text(encoding="utf-8") for p in texts)
