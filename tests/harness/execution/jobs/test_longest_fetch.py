"""The longest harmless fetch interval, of runs whose gains are known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from harness.execution.jobs.longest_fetch import LongestFetchConfig, gained
from harness.execution.runs.executed import executed
from tests.silence import silent

TRIED = (1.0, 10.0, 100.0)


@pytest.fixture
def gains(monkeypatch):
    """Has trainings gain what a function of their interval says, and notes which were asked."""
    asked = []

    def known(gain):
        def run(config, store, watch):
            asked.append(config.fetch_s)
            values = np.array([-1.0, gain(config.fetch_s) - 1.0])
            curve = lambda name: (np.arange(2.0), values, np.arange(2.0))  # noqa: E731
            return SimpleNamespace(status="done", curve=curve)

        monkeypatch.setattr("harness.execution.jobs.longest_fetch.executed", run)
        return asked

    return known


def searched(sequence, store, **choices):
    return executed(LongestFetchConfig(sequence(**choices), TRIED, 3, 0.75), store, silent).summary


@pytest.mark.parametrize("edge", [2.0, 9.0, 11.0, 80.0])
def test_a_gain_that_ends_is_found_to_the_last_halving(edge, gains, sequence, finished):
    asked = gains(lambda fetch_s: 0.5 if fetch_s is None or fetch_s <= edge else 0.37)
    found = searched(sequence, finished, seed=round(edge))
    assert found["harmless"] <= edge < found["harmful"]
    assert found["harmful"] / found["harmless"] == pytest.approx(10 ** (1 / 8))
    assert asked[0] is None, "what is kept is a share of what fetching always gains"
    assert len(asked) <= 6


def test_what_is_beyond_the_intervals_is_not_told(gains, sequence, finished):
    gains(lambda fetch_s: 0.5)
    assert searched(sequence, finished, seed=101) == {"harmless": 100.0}
    gains(lambda fetch_s: 0.5 if fetch_s is None else 0.0)
    assert searched(sequence, finished, seed=102) == {"harmful": 1.0}


def test_a_training_that_gains_nothing_has_nothing_to_keep(gains, sequence, finished):
    asked = gains(lambda fetch_s: 0.0)
    assert searched(sequence, finished, seed=103) == {}
    assert asked == [None]


def test_who_diverged_or_lost_gained_nothing():
    assert gained(SimpleNamespace(status="diverged")) == 0.0
    values = (np.arange(2.0), np.array([-1.0, -1.5]), np.arange(2.0))
    assert gained(SimpleNamespace(status="done", curve=lambda name: values)) == 0.0


def test_every_interval_is_a_run_of_its_own(sequence, finished, monkeypatch, corpus):
    monkeypatch.setattr("harness.execution.training.alignment.corpus_of", lambda config: corpus)
    config = LongestFetchConfig(sequence(test=False), (0.001, 1e6), 1, 0.75)
    found = executed(config, finished, silent).summary
    by = {
        run.config.get("fetch_s"): gained(run)
        for run in finished.runs()
        if run.config.get("test") is False and run.config.get("rate") == config.training.rate
    }
    whole = by.pop(None)
    for name, fetch_s in found.items():
        assert (by[fetch_s] >= config.keeps * whole) == (name == "harmless")
    assert found or not whole
