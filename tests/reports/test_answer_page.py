"""The page of a comparison: one file with the answer, its table and its figures."""

import json
from dataclasses import replace

from markupsafe import escape
from torch import nn

from harness.judge.comparison import Impossible, build_table
from lagbench.result import Result
from reports import comparison
from reports.learning_curves import curves_figure
from reports.sentences import answer
from tests.reports.test_page import Elements
from tests.reports.test_sentences import cell_of, falling, table_of


def searched():
    tried = {0.05: [0.3, 0.32], 0.1: [0.1, 0.12], 0.2: [0.2, float("inf")]}
    cells = [cell_of("sync", n, [falling(n, 2.0), falling(n, 2.1)]) for n in (1, 4)]
    return build_table([replace(cell, tried=tried) for cell in cells], 0.2)


def test_a_page_stands_alone_with_answer_table_and_figures(tmp_path):
    table = searched()
    paths = comparison.answer_of(table, "Linear <x>").write(tmp_path)
    assert {path.name for path in paths} >= {"index.html", "table.csv", "results.json"}
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    page = Elements(text)
    assert text.count('role="img"') == 2
    assert all(source.startswith("#") for source in page.sources)
    assert "Linear &lt;x&gt;" in text
    assert all(escape(sentence) in text for sentence in answer(table))
    assert text.index('class="answer"') < text.index("<table") < text.index("Learning curves")


def test_the_report_of_a_result_says_what_was_trained(tmp_path):
    table = searched()
    table.rows[0].cell.runs[0].config["seed"] = 0
    result = Result(table, lambda seed: nn.Linear(2, 1), lambda seed: "a model")
    result.report(tmp_path)
    assert "a model" in (tmp_path / "index.html").read_text("utf-8")


def test_learning_curves_have_a_panel_for_passes_and_one_for_seconds_with_bands_over_seeds():
    table = searched()
    passes, seconds = (*curves_figure(table).axes, *curves_figure(table, timed=True).axes)

    assert (passes.get_xlabel(), seconds.get_xlabel()) == (
        "passes over the training data",
        "simulated time (s)",
    )
    assert passes.get_ylabel() == "error (development)"
    one = passes.lines[0]
    assert list(one.get_ydata()) == [0.9, 0.9, 0.2, 0.1]
    assert one.get_xdata()[2] == 2.05  # the mean of both seeds
    assert len(passes.collections) == len(seconds.collections) == 2  # a band for each row


def test_a_result_is_plain_values_for_a_data_frame_and_html_in_a_notebook():
    table = replace(table_of(), impossible=[Impossible("averaging:10", 8, "workers: 8 & more")])
    result = Result(table, nn.Linear(1, 1), str)
    found = result.to_dict()

    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert {len(row) for row in found["rows"]} == {28}
    assert found["rows"][1]["speedup"] == table.rows[1].speedup.time.estimate
    html = result._repr_html_()
    assert html.startswith('<p class="answer">Fastest to error 0.2: 4 workers, in ')
    assert "workers: 8 &amp; more" in html
