"""Regressions planted in the harness, found by the benchmarks as they are run for a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bench.baseline import load
from harness.bench.comparison import compare, flagged
from harness.bench.measuring import measure

ROOT = Path(__file__).parents[3]
FOLDS = "tests/benchmarks/test_overhead.py::test_folds_and_reads_over_bare_passes"
COUNTS = "tests/benchmarks/test_counts.py::test_what_a_replay_executes[one by one]"
EVENTS = "tests/benchmarks/test_counts.py::test_a_simulated_segment[server]"

SLEEP_IN_THE_FOLD = """
import time
from harness.algorithms.averaged_sgd import AveragedSgd

fold_turns = AveragedSgd.fold_turns

def slower(self, *arguments):
    time.sleep(0.1)
    fold_turns(self, *arguments)

AveragedSgd.fold_turns = slower
"""

SLEEP_IN_ONE_FOLD = """
import time
from harness.algorithms.averaged_sgd import AveragedSgd

fold = AveragedSgd.fold

def slower(self, *arguments):
    time.sleep(0.01)
    fold(self, *arguments)

AveragedSgd.fold = slower
"""

COPY_IN_THE_READ = """
from harness.execution.replay.stale import StaleReplay

admit = StaleReplay._admit

def copying(self, readers):
    slots = admit(self, readers)
    for _ in slots:
        self.server.model.clone()
    return slots

StaleReplay._admit = copying
"""


@pytest.mark.parametrize(
    ("planted", "found"),
    [(SLEEP_IN_THE_FOLD, FOLDS), (SLEEP_IN_ONE_FOLD, FOLDS), (COPY_IN_THE_READ, COUNTS)],
    ids=["folds in a row", "one fold", "read"],
)
def test_a_planted_regression_is_flagged_by_name(tmp_path, monkeypatch, planted, found):
    (tmp_path / "planted_regression.py").write_text(planted)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    baseline, _ = load(ROOT / "tests" / "benchmarks" / "baseline.json")
    run = measure(ROOT, [found, EVENTS], ["-p", "planted_regression"])
    expected = {name: baseline[name] for name in (found, EVENTS)}
    assert flagged(compare(run.measured, expected, least=1.0)) == [found]
