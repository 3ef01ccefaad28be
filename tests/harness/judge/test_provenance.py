"""What results say of the runs behind them."""

from types import SimpleNamespace
from typing import Any

from harness.judge import comparison


def run(name: str, **moment: float) -> Any:
    return SimpleNamespace(hash=name, provenance=moment)


def test_a_run_of_two_settings_counts_once():
    a, b = run("a", wall_s=2.0, processor_s=1.5), run("b", wall_s=3.0, processor_s=1.0)
    assert comparison.describe_runs({"one": [a, b], "other": [a]}, ["a", "elsewhere"]) == {
        "settings": {"one": ["a", "b"], "other": ["a"]},
        "runs_s": 5.0,
        "runs_processor_s": 2.5,
        "reused": 1,
    }
