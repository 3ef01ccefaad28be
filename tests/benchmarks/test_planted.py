"""Time that is lost on purpose is found by the benchmarks as they are run for a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bench.baseline import load
from harness.bench.comparison import compare, select_failing
from harness.bench.steps import measure

ROOT = Path(__file__).parents[2]
FOLDS = "tests/benchmarks/test_overhead.py::test_folds_and_reads_over_bare_passes"
EVENTS = "tests/benchmarks/test_counts.py::test_a_simulated_segment[server]"

SLEEP_IN_THE_FOLD = """
import time
from harness.algorithms.async_sgd import AveragedSgd

fold_turns = AveragedSgd.fold_turns

def slower(self, *arguments):
    time.sleep(0.1)
    fold_turns(self, *arguments)

AveragedSgd.fold_turns = slower
"""

SLEEP_IN_ONE_FOLD = """
import time
from harness.algorithms.async_sgd import AveragedSgd

fold = AveragedSgd.fold

def slower(self, *arguments):
    time.sleep(0.01)
    fold(self, *arguments)

AveragedSgd.fold = slower
"""


@pytest.mark.parametrize(
    "planted", [SLEEP_IN_THE_FOLD, SLEEP_IN_ONE_FOLD], ids=["folds in a row", "one fold"]
)
def test_time_that_is_lost_is_flagged_by_name(benchmark, tmp_path, monkeypatch, planted):
    if not benchmark.enabled:
        pytest.skip("a matter of time; without it: tests/harness/bench/test_planted.py")
    (tmp_path / "planted_regression.py").write_text(planted)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    baseline, _ = load(ROOT / "tests" / "benchmarks" / "baseline.json")
    asked = ROOT, [FOLDS, EVENTS], ["-p", "planted_regression"]
    run = benchmark.pedantic(measure, asked, rounds=1)
    expected = {name: baseline[name] for name in (FOLDS, EVENTS)}
    assert select_failing(compare(run.measured, expected, least=1.0)) == [FOLDS]
