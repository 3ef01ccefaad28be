"""Regressions planted where no clock is read: benchmarks run for a verdict find them by name."""

from __future__ import annotations

from pathlib import Path

from harness.bench.baseline import load
from harness.bench.comparison import BaselineEntry, Bound, Measurement, compare, select_failing
from harness.bench.steps import BENCHMARKS, measure

ROOT = Path(__file__).parents[3]
COUNTS = "tests/benchmarks/test_counts.py::test_what_a_replay_executes[one by one]"
EVENTS = "tests/benchmarks/test_counts.py::test_a_simulated_segment[server]"

COPY_IN_THE_READ = """
from harness.replay.fold_replay import StaleReplay

admit = StaleReplay._admit

def copying(self, readers, version):
    slots = admit(self, readers, version)
    for _ in slots:
        self.server.model.clone()
    return slots

StaleReplay._admit = copying
"""


NOTED = """
import pytest

@pytest.mark.parametrize(("ratio", "folds"), [(1.5, 7), (2.5, 7), (1.0, 8)])
def test_it(benchmark, ratio, folds):
    benchmark.pedantic(int, rounds=1)
    benchmark.extra_info.update(ratio=ratio, counts={"folds": folds}, seconds=60.0)

def test_other(benchmark):
    pytest.skip("not here")
"""
"""Benchmarks whose figures are known: within the tolerance, slower, and different."""


def test_figures_that_benchmarks_note_are_read_and_compared(tmp_path):
    (tmp_path / BENCHMARKS).mkdir(parents=True)
    (tmp_path / BENCHMARKS / "test_noted.py").write_text(NOTED)
    run = measure(tmp_path)
    within, slower, different = (
        f"tests/benchmarks/test_noted.py::test_it[{case}]" for case in ("1.5-7", "2.5-7", "1.0-8")
    )
    assert run.measured == {
        within: Measurement({"ratio": 1.5}, {"folds": 7}),
        slower: Measurement({"ratio": 2.5}, {"folds": 7}),
        different: Measurement({"ratio": 1.0}, {"folds": 8}),
    }
    skipped = "tests/benchmarks/test_noted.py::test_other"
    assert run.skipped == (skipped,)
    expected = BaselineEntry({"ratio": Bound(1.0, 0.3)}, {"folds": 7})
    baseline = dict.fromkeys((*run.measured, skipped), expected)
    rows = compare(run.measured, baseline, run.skipped, least=1.0)
    assert select_failing(rows) == [different, slower]


def test_a_copy_too_many_is_flagged_by_name(tmp_path, monkeypatch):
    (tmp_path / "planted_regression.py").write_text(COPY_IN_THE_READ)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    baseline, _ = load(ROOT / "tests" / "benchmarks" / "baseline.json")
    run = measure(ROOT, [COUNTS, EVENTS], ["-p", "planted_regression"])
    expected = {name: baseline[name] for name in (COUNTS, EVENTS)}
    assert select_failing(compare(run.measured, expected)) == [COUNTS]
