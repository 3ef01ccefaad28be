import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.judge.results import Exhibit, Results, Row, read_results
from harness.judge.statistics import mean_ci
from reports import figures, reference_terms
from reports.document import document
from reports.reference_terms import KINDS, PAPER, PREDICTION
from reports.render import render_html
from reproductions.command import PAPERS

STALENESS = Path("reports/published/staleness/laptop")


def as_predictions(results, **changes):
    reference = results.provenance["reference"] | {"held_against": "prediction"}
    return replace(results, provenance=results.provenance | {"reference": reference}, **changes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", ["smoke", "laptop", "gpu"])
def test_a_report_of_predictions_speaks_of_no_paper(scale):
    results = as_predictions(read_results(STALENESS / "results.json"), scale=scale)
    text = render_html(document(results, [])).replace("no paper: predictions", "")
    assert not re.findall(r".{40}\bpaper\b.{20}", text)
    assert "the prediction" in text


def test_results_that_say_nothing_are_held_against_a_paper(built):
    data = document(read_results(built / "results.json"), [])
    assert data["title"].startswith("Reproduction of")


def test_figures_name_what_stands_beside_them(tmp_path):
    rows = (Row.from_interval("a", 1.0, 2.0, mean_ci([1.0, 2.0]), ("r",)),)
    drawn = Exhibit("s.x", "figure", "x", rows, draw={"as": "curves"})
    for words in (PAPER, PREDICTION):
        assert words.printed.encode() in figures.draw(drawn, tmp_path, words)["svg"]


def test_what_has_no_words_is_refused_with_what_has():
    reference = {"reference": {"held_against": "preprint"}}
    odd = Results("p", "laptop", "c", (), reference, (), ())
    with pytest.raises(UserError, match=r"held_against: unknown 'preprint'.*paper, prediction"):
        reference_terms.words_of(odd)


def test_every_reproduction_says_what_it_is_held_against():
    said = {name: import_module(module).PAPER.held_against for name, module in PAPERS.items()}
    assert said.pop("staleness") == "prediction"
    assert set(said.values()) == {"paper"}
    assert set(KINDS) == {"paper", "prediction"}
