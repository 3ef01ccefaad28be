import csv
import io

import pytest

from harness.judge.results import Exhibit, Row
from reports.tables import HEADER, NO_INTERVAL, NO_SPREAD, SOME_SPREAD, grid, to_csv


def rows_of(labels, columns):
    return [Row(f"l{i}", f"c{j}", i + j, i - j) for i in range(labels) for j in range(columns)]


def test_a_narrow_table_is_label_by_column():
    found = grid(rows_of(2, 3))
    assert found.columns == ["c0", "c1", "c2"]
    assert [label for label, _ in found.rows] == ["l0", "l1"]
    assert found.rows[1][1][2]["paper"] == "3"


def test_a_table_that_is_too_wide_for_the_page_is_turned():
    found = grid(rows_of(2, 12))
    assert found.columns == ["l0", "l1"]
    assert found.rows[8][1][1]["paper"] == "9"


def test_heads_that_would_wrap_turn_a_table_of_few_columns():
    long = [Row("a", f"every 0.{i} min, {'x' * 8}", 1, 2) for i in range(5)]
    assert grid(long).columns == ["a"]
    assert grid(long[:2]).columns != ["a"]


def test_heads_of_several_lines_are_better_than_a_list():
    rows = [
        Row(f"a method with a long name {i}", f"c{j}", None, 1) for i in range(5) for j in range(30)
    ]
    assert len(grid(rows).columns) == 5


def test_a_table_that_is_wide_both_ways_becomes_a_list():
    found = grid(rows_of(12, 13))
    assert found.columns == [""]
    assert len(found.rows) == 156
    assert found.rows[155][0] == "l11 · c12"


def test_a_cell_nobody_filled_is_empty_and_a_failed_run_is_flagged():
    found = grid([Row("a", "x", 1, 2, runs=("bad",)), Row("b", "y", 1, 2)], {"bad"})
    assert found.rows[0][1][1] is None
    assert found.rows[0][1][0]["flag"]
    assert not found.rows[1][1][1]["flag"]


def test_a_column_whose_figures_the_paper_does_not_print_has_no_paper_column():
    assert grid([Row("a", "x", None, 2)]).printed == [False]
    found = grid([Row("a", "x", None, 2), Row("a", "y", 1, 2), Row("b", "x", None, 3)])
    assert found.printed == [False, True]
    assert found.rows[1][1][0]["paper"] == ""


@pytest.mark.parametrize(
    ("ci95", "remark"), [((2.0, 2.0), NO_SPREAD), (None, NO_INTERVAL), ((1.0, 3.0), "")]
)
def test_what_every_cell_would_say_of_its_interval_is_said_once(ci95, remark):
    found = grid([Row("a", column, None, 2.0, ci95) for column in "xy"])
    assert found.remark == remark
    assert {cell["spread"] for _, row in found.rows for cell in row} == {"" if remark else "± 1.0"}


@pytest.mark.parametrize(
    ("ci95", "remark", "told"), [((2.0, 2.0), SOME_SPREAD, ""), (None, "", "no interval")]
)
def test_where_chance_enters_some_figures_the_others_are_told_once_or_in_their_cells(
    ci95, remark, told
):
    found = grid([Row("a", "x", None, 2.0, ci95), Row("a", "y", None, 2.0, (1.0, 3.0))])
    assert found.remark == remark
    assert [cell["spread"] for cell in found.rows[0][1]] == [told, "± 1.0"]


def test_csv_holds_every_digit_and_quotes_what_needs_it():
    row = Row('a, "b"', 0.1, None, 1 / 3, (None, 2.0), ("h1", "h2"))
    lines = list(csv.reader(io.StringIO(to_csv(Exhibit("e", "table", "t", (row,))))))
    assert lines[0] == list(HEADER)
    assert lines[1] == ['a, "b"', "0.1", "", repr(1 / 3), "", "2.0", "h1 h2"]
