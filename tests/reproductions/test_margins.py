"""Which runs a margin is asked of, and what is done to them."""

from __future__ import annotations

from importlib import import_module

import pytest

from data_synth import load_corpus
from harness.speech.frames import RunConfig
from harness.speech.sequence import SequenceConfig
from reproductions.command import PAPERS
from reproductions.margins import default_runs, main, with_rate_factor
from reproductions.paper import Subject


@pytest.fixture(scope="module")
def subject() -> Subject:
    # Of paper 1 and for all: what is configured does not depend on what the corpus holds.
    return Subject("smoke", load_corpus("parametric", scale="smoke", seed=0), 0, "cpu")


@pytest.mark.parametrize("name", [name for name in PAPERS if name != "staleness"])
def test_every_default_run_that_trains_is_asked_once_and_twice_its_rate_is_twice(name, subject):
    found = default_runs(import_module(PAPERS[name]).PAPER, subject, 100)
    assert found
    assert len({str(config.to_dict()) for config in found.values()}) == len(found)
    for config in found.values():
        twice = with_rate_factor(config, 2.0)
        if isinstance(config, SequenceConfig) and isinstance(twice, SequenceConfig):
            assert twice.rate == 2.0 * config.rate
            assert twice.start == config.start
        elif isinstance(config, RunConfig) and isinstance(twice, RunConfig):
            assert twice.schedule.rate == 2.0 * config.schedule.rate


def test_where_every_rate_is_searched_for_there_is_no_default_to_ask(subject):
    assert default_runs(import_module(PAPERS["staleness"]).PAPER, subject, 100) == {}


def test_a_stability_map_is_not_asked_and_what_a_run_starts_from_is(subject):
    paper = import_module(PAPERS["paper3"]).PAPER
    found = default_runs(paper, subject, 100)
    assert not [name for name in found if name.startswith("map ")]
    assert "large (its start)" in found  # which all others share here
    assert list(default_runs(paper, subject, 100, ("one",))) == ["one"]


@pytest.mark.parametrize("seeds", ["11", "99,100", "100,1001", "2001"])
def test_a_seed_that_reports_rest_on_is_refused(seeds, capsys):
    assert main(["paper1", "--seeds", seeds]) == 2
    assert "allowed: 100 to 999" in capsys.readouterr().err
