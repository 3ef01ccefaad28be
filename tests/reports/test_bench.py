from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from harness.base.errors import UserError
from harness.bench.comparison import Row
from harness.judge import read_results
from harness.store import Store
from reports import bench, build
from reports.pdf import document
from tests.reports.typeset import labelled

FILE = "tests/benchmarks/test_a.py"
ROWS = [
    Row(f"{FILE}::test_folds", "ratio", 0.5, 0.4, 0.25, 0.5, "ok"),
    Row(f"{FILE}::test_speed", "times_alone", 3.0, None, None, None, "new"),
    Row(f"{FILE}::test_folds", "end_s", 2.5, 2.5, None, None, "ok"),
    Row(f"{FILE}::test_gone", "", None, None, None, None, "skipped"),
]
HERE = {"processor": "this", "cores": 2, "load_1_min": 0.3, "versions": {"torch": "9.9"}}


def write(folder, rows):
    record = {"time": "2030-01-01T00:00:00+00:00", "machine": HERE}
    record |= {"baseline": {**HERE, "processor": "that"}, "rows": [asdict(row) for row in rows]}
    (folder / bench.NAME).write_text(json.dumps(record))


def test_ratios_stand_beside_the_published_ones_and_counts_are_told_together(tmp_path):
    write(tmp_path, ROWS)
    page = bench.page(tmp_path)
    assert page["rows"] == [
        ["a: folds", "ratio", "0.5", "0.4", "+25%"],
        ["a: speed", "times_alone", "3", "–", ""],
    ]
    assert page["here"] == "this, 2 cores, load 0.3, torch 9.9"
    assert page["published"].startswith("that, ")
    assert page["counts"] == "All of 1 exact counts are equal."


def test_a_count_that_differs_is_named(tmp_path):
    write(tmp_path, [*ROWS, Row(f"{FILE}::test_x", "bytes", 2, 1, None, None, "DIFFERENT")])
    assert bench.page(tmp_path)["counts"] == "Of 2 exact counts 1 differ: a: x (bytes)."


def test_the_page_is_in_the_report_where_there_are_figures_and_only_there(out):
    build(out)
    without = (out / "report.pdf").read_bytes()
    write(out, ROWS)
    build(out)
    assert (out / "report.pdf").read_bytes() != without
    data = document(read_results(out / "results.json"), Store(out / "runs").runs())
    assert labelled({**data, "bench": None}, out, "bench") == []
    assert labelled({**data, "bench": bench.page(out)}, out, "bench") == ["bench"]


@pytest.mark.parametrize("text", ["", "[]", '{"rows": [{"a": 1}]}'])
def test_a_file_that_is_no_record_is_refused_in_one_line(tmp_path, text):
    (tmp_path / bench.NAME).write_text(text)
    with pytest.raises(UserError, match=r"bench\.json: cannot be read as a record"):
        bench.page(tmp_path)
