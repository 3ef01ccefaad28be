"""The largest stable rate, where it is known."""

from __future__ import annotations

import pytest

from harness.execution.jobs.largest_rate import LargestRateConfig
from harness.execution.runs.executed import executed
from tests.silence import silent


@pytest.fixture(autouse=True)
def known(monkeypatch, corpus):
    monkeypatch.setattr("harness.execution.training.alignment.corpus_of", lambda config: corpus)


def test_every_rate_is_a_run_and_the_summary_tells_of_the_largest_stable_one(sequence, finished):
    found = executed(LargestRateConfig(sequence(test=False), 1e-3, 1e3, 2), finished, silent)
    assert found.summary["stable"] < found.summary["diverged"]
    rates = {run.config["rate"]: run for run in finished.runs() if run.config.get("test") is False}
    assert rates[found.summary["stable"]].status == "done"
    assert rates[found.summary["diverged"]].status == "diverged"
    last = rates[found.summary["stable"]].summary["outer_staleness_mean"]
    assert found.summary["outer_staleness_mean"] == last


def test_the_rate_of_the_training_is_no_part_of_the_name(sequence):
    named = {str(LargestRateConfig(sequence(rate=r), 1e-3, 1.0, 2).to_dict()) for r in (0.1, 0.2)}
    assert len(named) == 1
