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
from reproductions.paper import Paper, Subject
from reproductions.paper1_async_asgd import PAPER
from reproductions.reproduce import REQUESTED, SEARCHED, Request, find_published, reproduce


def named(corpus: str, scale: str = "laptop") -> Subject:
    stub: Any = SimpleNamespace(name=corpus)
    return Subject(scale, stub, 0, "cpu")


@pytest.mark.parametrize(
    ("paper", "name"), [(PAPER, "tuning"), (paper2.PAPER, "rates"), (paper3.PAPER, "rates")]
)
def test_a_search_is_made_when_it_is_asked_for_or_named(paper: Paper, name: str):
    def selected(*only: str, search: bool = False) -> set[str]:
        return {maker.id for maker in paper.select_makers(only, "laptop", search)[0]}

    searches = {f"{paper.id.replace('paper', 'p')}.{name}"}
    assert selected(search=True) - selected() == searches
    assert selected(name) == searches


@pytest.mark.parametrize(("paper", "least"), [(PAPER, 28), (paper2.PAPER, 50), (paper3.PAPER, 24)])
def test_without_it_runs_of_the_laptop_scale_are_left_out_on_which_no_verdict_rests(
    paper: Paper, least: int
):
    def settings(search: bool) -> set[str]:
        exhibits, claims = paper.select_makers((), "laptop", search)
        return {setting for maker in (*exhibits, *claims) for setting in maker.needs}

    left_out = settings(True) - settings(False)
    assert len(left_out) >= least
    assert left_out.isdisjoint(setting for claim in paper.claims for setting in claim.needs)


def test_the_published_outcome_is_found_for_its_corpus_and_scale_only():
    def published(subject: Subject) -> tuple[Exhibit, ...]:
        return find_published(PAPER, subject, PAPER.exhibits)

    (found,) = published(named("mandarin-like"))
    assert found.id == "p1.tuning"
    assert found.note.startswith(f"{SEARCHED} After one pass")
    assert len(found.rows) == 28
    assert published(named("parametric")) == ()
    assert published(named("mandarin-like", "smoke")) == ()


def test_exhibits_on_which_no_claim_rests_are_made_on_request_at_laptop_scale():
    paper = paper2.PAPER

    def made(scale: str = "laptop", *, everything: bool = False) -> set[str]:
        chosen = paper.select_makers((), scale, everything=everything)
        return {maker.id for maker in chosen[0]}

    on_request = made(everything=True) - made()
    assert on_request
    assert made("overnight") == made("overnight", everything=True) == made(everything=True)
    makers = [maker for maker in paper.exhibits if maker.id in on_request]
    needed = {setting for claim in paper.claims for setting in claim.needs}
    assert len({setting for maker in makers for setting in maker.needs} - needed) >= 4
    shown = find_published(paper, named("conversational"), makers)
    assert {exhibit.id for exhibit in shown} <= on_request
    assert shown
    assert all(exhibit.note.startswith(REQUESTED) for exhibit in shown)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("search", [False, True])
def test_the_report_has_the_published_exhibit_unless_the_search_runs(tmp_path: Path, search: bool):
    def make(subject: Subject, runs: Runs) -> Exhibit:
        del subject, runs
        return Exhibit("p1.tuning", "table", "Made now")

    small = replace(
        PAPER, experiments=lambda subject, seed: {}, differences=lambda subject: [],
        exhibits=(Maker("p1.tuning", (), make, searches=True),), claims=(), folder=None,
    )  # fmt: skip
    assert isinstance(small, Paper)
    corpus = load_corpus("parametric", scale="smoke", seed=11)
    subject = Subject("laptop", replace(corpus, name="mandarin-like"), 11, "cpu")
    request = Request((11,), (), 1, None, tmp_path, search=search)
    (exhibit,) = reproduce(small, subject, request).exhibits
    assert exhibit.note.startswith(SEARCHED) is not search
    assert (exhibit.title == "Made now") is search
    (stored,) = json.loads((tmp_path / "results.json").read_text())["exhibits"]
    assert stored["title"] == exhibit.title
    assert (SEARCHED in (tmp_path / "report.html").read_text()) is not search


def test_the_command_says_what_it_took_from_the_published_report(tmp_path: Path, capsys: Any):
    paper = paper2.PAPER
    shown = find_published(paper, named("conversational"), paper.exhibits)
    results = Results(paper.id, "laptop", "conversational", (1004,), {"settings": {}}, shown, ())
    assert _print_results(results, tmp_path) == 0
    told = capsys.readouterr().out.splitlines()
    assert "settings: those of the published search; --search runs it again" in told
    assert f"{len(shown) - 1} exhibits from the published report; --all makes them again" in told
