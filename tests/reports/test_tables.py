from __future__ import annotations

import csv
import io

from harness.judge import Exhibit, Row
from reports.tables import HEADER, grid, to_csv


def rows_of(labels, columns):
    return [Row(f"l{i}", f"c{j}", i + j, i - j) for i in range(labels) for j in range(columns)]


def test_a_narrow_table_is_label_by_column():
    found = grid(rows_of(2, 3))
    assert found.columns == ["c0", "c1", "c2"]
    assert [label for label, _ in found.rows] == ["l0", "l1"]
    assert found.rows[1][1][2]["paper"] == "3"


def test_a_wide_table_is_turned():
    found = grid(rows_of(2, 9))
    assert found.columns == ["l0", "l1"]
    assert found.rows[8][1][1]["paper"] == "9"


def test_a_table_that_is_wide_both_ways_becomes_a_list():
    found = grid(rows_of(8, 9))
    assert found.columns == [""]
    assert len(found.rows) == 72
    assert found.rows[71][0] == "l7 · c8"


def test_a_cell_nobody_filled_is_empty_and_a_failed_run_is_flagged():
    found = grid([Row("a", "x", 1, 2, runs=("bad",)), Row("b", "y", 1, 2)], {"bad"})
    assert found.rows[0][1][1] is None
    assert found.rows[0][1][0]["flag"]
    assert not found.rows[1][1][1]["flag"]


def test_without_printed_figures_there_is_no_paper_column():
    assert not grid([Row("a", "x", None, 2)]).has_paper
    assert grid([Row("a", "x", None, 2), Row("a", "y", 1, 2)]).has_paper


def test_csv_holds_every_digit_and_quotes_what_needs_it():
    row = Row('a, "b"', 0.1, None, 1 / 3, (None, 2.0), ("h1", "h2"))
    lines = list(csv.reader(io.StringIO(to_csv(Exhibit("e", "table", "t", (row,))))))
    assert lines[0] == list(HEADER)
    assert lines[1] == ['a, "b"', "0.1", "", repr(1 / 3), "", "2.0", "h1 h2"]
