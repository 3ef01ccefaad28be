"""Searches and exhibits on which no claim rests run on request; else published ones are shown."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_synth import load_corpus
from harness.judge.builders import Maker, Runs
from harness.judge.results import Exhibit, Results
from reproductions import paper2_ng_averaging as paper2
from reproductions import paper3_async_mmi as paper3
from reproductions.command import _print_results
from reproductions.curve_runs import Request
from reproductions.paper import Paper, Subject
from reproductions.paper1_async_asgd import PAPER
from reproductions.reproduce import TAKEN, find_published, reproduce


def named(corpus: str, scale: str = "laptop") -> Subject:
    stub: Any = SimpleNamespace(name=corpus)
    return Subject(scale, stub, 0, "cpu")


@pytest.mark.parametrize(
    ("paper", "name", "least"),
    [(PAPER, "tuning", 28), (paper2.PAPER, "rates", 54), (paper3.PAPER, "rates", 24)],
)
def test_a_search_is_made_on_request_or_if_named_and_no_verdict_rests_on_it(
    paper: Paper, name: str, least: int
):
    def selected(*only: str, scale: str = "overnight", everything: bool = False) -> set[str]:
        return {maker.id for maker in paper.select_makers(only, scale, everything)[0]}

    searches = {f"{paper.id.replace('paper', 'p')}.{name}"}
    assert selected(everything=True) - selected() == selected(name) == searches
    assert selected(scale="laptop", everything=True) == selected(everything=True)
    assert searches.isdisjoint(selected(scale="smoke"))
    requested = selected(everything=True) - selected(scale="laptop")
    makers = [maker for maker in paper.exhibits if maker.id in requested]
    needed = {setting for claim in paper.claims for setting in claim.needs}
    assert len({setting for maker in makers for setting in maker.needs} - needed) >= least


def test_the_published_outcome_is_found_for_its_corpus_and_scale_only():
    def published(subject: Subject) -> tuple[Exhibit, ...]:
        return find_published(PAPER, subject, PAPER.exhibits)

    (found,) = published(named("mandarin-like"))
    assert found.id == "p1.tuning"
    assert found.note.startswith(f"{TAKEN} After one pass")
    assert len(found.rows) == 28
    assert published(named("parametric")) == ()
    assert published(named("mandarin-like", "smoke")) == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("everything", [False, True])
def test_the_report_has_the_published_exhibit_unless_it_is_made(tmp_path: Path, everything: bool):
    def make(subject: Subject, runs: Runs) -> Exhibit:
        del subject, runs
        return Exhibit("p1.tuning", "table", "Made now")

    small = replace(
        PAPER, experiments=lambda subject, seed: {}, differences=lambda subject: [],
        exhibits=(Maker("p1.tuning", (), make, on_request=("laptop",)),), claims=(), folder=None,
    )  # fmt: skip
    assert isinstance(small, Paper)
    corpus = load_corpus("parametric", scale="smoke", seed=11)
    subject = Subject("laptop", replace(corpus, name="mandarin-like"), 11, "cpu")
    request = Request((11,), (), 1, None, tmp_path, everything=everything)
    (exhibit,) = reproduce(small, subject, request).exhibits
    assert exhibit.note.startswith(TAKEN) is not everything
    assert (exhibit.title == "Made now") is everything
    (stored,) = json.loads((tmp_path / "results.json").read_text())["exhibits"]
    assert stored["title"] == exhibit.title
    assert (TAKEN in (tmp_path / "report.html").read_text()) is not everything


def test_the_command_says_what_it_took_from_the_published_report(tmp_path: Path, capsys: Any):
    paper = paper2.PAPER
    shown = find_published(paper, named("conversational"), paper.exhibits)
    results = Results(paper.id, "laptop", "conversational", (1004,), {"settings": {}}, shown, ())
    assert _print_results(results, tmp_path) == 0
    told = capsys.readouterr().out.splitlines()
    assert f"{len(shown)} exhibits from the published report; --all makes them again" in told
