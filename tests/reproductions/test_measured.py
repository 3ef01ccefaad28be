"""The comparison of a published prediction with its measurements."""

from pathlib import Path

import pytest

from reproductions.predictions.measured import compare, format_table, main, summarise

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "reports/published/predictions"
MEASURED = ROOT / "reproductions/predictions/wan-measured.toml"

TOLD = """
[[measured.cells]]
algorithm = "DDP"
H = 1
bandwidth_bits_per_s = 8
ms_per_step = [90, 110, 100]
computing_ms = [9, 10, 8]
[[measured.cells]]
algorithm = "DiLoCo"
H = 4
bandwidth_bits_per_s = 8
ms_per_step = [2000]
computing_ms = [100]
"""
PREDICTED = """algorithm,H,bandwidth_bits_per_s,ms_per_step,ms_low,ms_high,computing_share
DiLoCo,4,8,1500,1400,1600,0.1
DiLoCo,8,8,1500,1400,1600,0.1
DDP,1,8,110,100,120,0.1
"""


@pytest.fixture
def files(tmp_path):
    prediction, measured = tmp_path / "p.csv", tmp_path / "m.toml"
    prediction.write_text(PREDICTED)
    measured.write_text(TOLD)
    return prediction, measured


def test_a_cell_is_compared_with_the_median_of_its_runs(files):
    far, near = compare(*files)
    assert (far.algorithm, far.every, far.error, far.is_inside) == ("DiLoCo", 4, -0.25, False)
    assert near.measured_ms == 100.0
    assert near.error == pytest.approx(0.1)
    assert near.is_inside
    assert (far.measured_share, near.measured_share) == (0.05, pytest.approx(1 / 11))
    assert summarise([far, near]) == (
        "2 cells: median error 17.5%, largest 25.0%; 1 intervals hold their measurement;"
        " share of computing, median error 55.0%"
    )


def test_the_table_has_an_error_outside_its_interval_in_brackets(files):
    assert format_table({"ours": compare(*files)}).splitlines()[2:] == [
        "| DiLoCo | 4 | 0 | 2,000 | 1,500 | (−25%) |",
        "| DDP | 1 | 0 | 100.0 | 110.0 | +10% |",
    ]


def test_a_measured_cell_that_was_not_predicted_is_one_line(files):
    prediction, measured = files
    measured.write_text(TOLD.replace("H = 4", "H = 5"))
    with pytest.raises(Exception, match=r"\('DiLoCo', 5, 8.0\) is not a cell"):
        compare(prediction, measured)


def test_the_document_has_the_table_of_all_cells_and_its_summary(capsys):
    assert main(["wan"]) == 0
    table = capsys.readouterr().out.split("\n\n")[0]
    page = (ROOT / "docs/wan.md").read_text()
    assert table in page
    cells = compare(PUBLISHED / "wan.csv", MEASURED)
    assert len(cells) == 36
    mended = compare(PUBLISHED / "wan-mended.csv", MEASURED)
    for told, (errors, inside, shares) in {
        summarise(cells): ("6.2%, largest 41.5%", 15, "7.9%"),
        summarise(mended): ("4.7%, largest 15.0%", 16, "5.5%"),
    }.items():
        assert told == (
            f"36 cells: median error {errors}; {inside} intervals hold their measurement;"
            f" share of computing, median error {shares}"
        )
        assert f"median error is {errors[:4]}" in page
        assert f"{inside} hold their measurement" in " ".join(page.split())
        assert shares in page


def test_an_unknown_name_is_one_line(capsys):
    assert main(["lan"]) == 2
    assert "lan-measured.toml" in capsys.readouterr().err
