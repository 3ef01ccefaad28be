"""The comparison of a published prediction with its measurements."""

from pathlib import Path

from reproductions.predictions.measured import format_table, read_measured, summarise

PAGE = Path(__file__).parents[2] / "docs/wan.md"


def test_a_cell_has_the_medians_of_its_runs():
    # of 38238.7, 37222.1 and 38145.9 ms
    assert read_measured()["DiLoCo", 1, 50e6] == (38145.9, 26.671 / 38145.9)


def test_the_document_has_the_summaries_of_all_cells():
    page = PAGE.read_text()
    assert "| DDP | 1 | 50 | 53,440 | 31,253 | (−42%) |" in (table := format_table())
    assert (table.count("%"), table.count("(")) == (2 * 36, (36 - 15) + (36 - 16))
    for name, (errors, inside, shares) in {
        "predicted": ("6.2%, largest 41.5%", 15, "7.9%"),
        "mended": ("4.7%, largest 15.0%", 16, "5.5%"),
    }.items():
        assert summarise(name) == (
            f"36 cells: median error {errors}; {inside} intervals hold their measurement;"
            f" share of computing, median error {shares}"
        )
        assert f"median error is {errors[:4]}" in page
        assert f"{inside} hold their measurement" in " ".join(page.split())
        assert shares in page
