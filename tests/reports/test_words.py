from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.judge import Exhibit, Results, Row, mean_ci, read_results
from reports import figures, reference_terms, tables, verdicts
from reports.page import page
from reports.page.page import payload
from reports.pdf import document
from reports.reference_terms import KINDS, PAPER, PREDICTION
from reproductions.command import PAPERS

STALENESS = Path("reports/published/staleness/laptop")
TEXTS = [
    each.name for each in fields(reference_terms.Words) if each.name not in ("scales", "reads")
]


def as_predictions(results, **changes):
    reference = results.provenance["reference"] | {"held_against": "prediction"}
    return replace(results, provenance=results.provenance | {"reference": reference}, **changes)


def everything(results, out):
    """What a reader of the report meets, in print, on the page and in the terminal."""
    told = document(results, [])
    sections = [
        page.head(told),
        page.claims(results, told),
        page.exhibits(results, told, out, []),
        page.provenance(told, [("results.json", "0")]),
    ]
    charts = payload(results, [], out)["charts"]
    return "\n".join([json.dumps([told, charts]), *sections, verdicts.verdict_table(results)])


@pytest.mark.parametrize("scale", ["smoke", "laptop", "gpu"])
def test_a_report_of_predictions_speaks_of_no_paper(scale):
    results = as_predictions(read_results(STALENESS / "results.json"), scale=scale)
    said = everything(results, STALENESS).replace("no paper: predictions", "")
    keys = re.compile(r"\\?\"(paper|paper_label)\\?\":|datum\.paper|field\": \"paper\"")
    assert not re.findall(r".{40}\bpaper.{20}", keys.sub("", said))
    assert "for the prediction to hold" in said


def test_results_that_say_nothing_are_held_against_a_paper(built):
    results = read_results(built / "results.json")
    assert "held_against" not in results.provenance["reference"]
    said = everything(results, built)
    assert "for the paper to hold" in said
    assert "Reproduction of" in said
    assert "Ours stands beside the paper's" in said


def test_figures_and_tables_name_what_stands_beside_them(tmp_path):
    rows = (Row.from_interval("a", 1.0, 2.0, mean_ci([1.0, 2.0]), ("r",)),)
    drawn = Exhibit("s.x", "figure", "x", rows, draw={"as": "bars"})
    for said in (PAPER, PREDICTION):
        assert said.printed.encode() in figures.draw(drawn, tmp_path, said)["svg"]
        assert f" & {said.noun} & measured" in tables.to_latex(drawn, said.noun)


def test_what_has_no_words_is_refused_with_what_has():
    reference = {"reference": {"held_against": "preprint"}}
    odd = Results("p", "laptop", "c", (), reference, (), ())
    with pytest.raises(UserError, match=r"held_against: unknown 'preprint'.*paper, prediction"):
        reference_terms.words_of(odd)


@pytest.mark.parametrize("name", TEXTS)
def test_only_a_paper_is_called_one(name):
    assert "paper" not in getattr(PREDICTION, name)


def test_every_reproduction_says_what_it_is_held_against():
    said = {name: import_module(module).PAPER.held_against for name, module in PAPERS.items()}
    assert said.pop("staleness") == "prediction"
    assert set(said.values()) == {"paper"}
    assert set(KINDS) == {"paper", "prediction"}
