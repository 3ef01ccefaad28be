"""The largest stable rate, where it is known."""

import math

import pytest

from harness.experiment.run import run as execute
from harness.search.search import LargestRateConfig, find_largest, solve
from tests.silence import silent


@pytest.fixture(autouse=True)
def known(monkeypatch, corpus):
    monkeypatch.setattr("harness.speech.task.corpus_of", lambda config: corpus)


@pytest.mark.parametrize("edge", [0.0011, 0.002, 0.05, 0.9])
def test_what_lies_between_is_found_to_the_last_halving(sequence, edge):
    config = LargestRateConfig(sequence(), 0.001, 1.0, 5)
    asked = []
    low, high = solve(find_largest(config), lambda rate: asked.append(rate) or rate > edge)
    assert low <= edge < high
    assert high / low == pytest.approx(1000 ** (1 / 32))
    assert len(asked) == len(set(asked)) <= 6


def test_beyond_the_ends_nothing_is_known(sequence):
    config = LargestRateConfig(sequence(), 0.001, 1.0, 3)
    assert solve(find_largest(config), lambda rate: False) == (1.0, math.inf)
    assert solve(find_largest(config), lambda rate: True) == (0.0, 0.001)


def test_every_rate_is_a_run_and_the_summary_tells_of_the_largest_stable_one(sequence, finished):
    found = execute(LargestRateConfig(sequence(tested="never"), 1e-3, 1e3, 2), finished, silent)
    assert found.summary["stable"] < found.summary["diverged"]
    runs = [run for run in finished.runs() if run.config["is"] == "Sequences"]
    rates = {r.config["schedule"]["rate"]: r for r in runs if r.config["tested"] == "never"}
    assert rates[found.summary["stable"]].status == "done"
    assert rates[found.summary["diverged"]].status == "diverged"
    last = rates[found.summary["stable"]].summary["outer_staleness_mean"]
    assert found.summary["outer_staleness_mean"] == last


def test_the_rate_of_the_training_is_no_part_of_the_name(sequence):
    named = {str(LargestRateConfig(sequence(rate=r), 1e-3, 1.0, 2).to_dict()) for r in (0.1, 0.2)}
    assert len(named) == 1
