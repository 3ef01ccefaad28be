"""Sentences of a comparison, from runs whose curves are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.judge.comparison import Table, build_table
from harness.store import Cell, Run
from harness.store.files import columns_of
from harness.store.schema import TIMELINE
from reports import comparison
from reports.sentences import answer, rank_rows

Curve = Sequence[tuple[float, float, float]]
"""Passes, simulated seconds and value of each evaluation."""


def run_of(curve: Curve, *, more: bool = False, status: str = "done") -> Run:
    config = {"passes": 5, "problem": {"better": "more"} if more else {}}
    summary = {"dev_error/iterate": curve[-1][2], "virtual_s": curve[-1][1], "trained_share": 1.0}
    made = Run("0" * 64, config, status, summary, "", Path("nowhere"), {TIMELINE: "elsewhere"})
    made.__dict__["metrics"] = columns_of(
        [
            {"name": "dev_error/iterate", "value": v, "fold": 0, "time_s": s, "epoch": p}
            for p, s, v in curve
        ]
    )
    return made


def falling(speed: float, passes: float, end: float = 0.1, start: float = 0.9) -> Curve:
    """A curve at ``start`` that falls to 0.2 after ``passes``, at ``speed`` passes a second."""
    return [(0.0, 0.0, start), (passes, passes / speed, 0.2), (5.0, 5.0 / speed, end)]


def cell_of(method: str, workers: int, curves: Sequence[Curve], **further: bool) -> Cell:
    runs = tuple(run_of(curve, **further) for curve in curves)
    return Cell(method, workers, 0.1, runs, "dev_error", example_weight=0.01, is_share=True)


def table_of(target: float | None = 0.2) -> Table:
    """One worker, and four that make three times the passes a second and need 1.5 of them."""
    one = [falling(1.0, p) for p in (2.0, 2.2, 1.9)]
    four = [falling(3.0 * f, 1.5 * p) for p, f in ((2.0, 1.0), (2.2, 1.1), (1.9, 0.95))]
    return build_table([cell_of("sync", 1, one), cell_of("sync", 4, four)], target)


def test_a_speed_up_is_steps_a_second_over_passes_paired_by_seed():
    row = table_of().rows[1]
    logs = np.log([2.0, 2.2, 1.9])  # by seed: 3 f / 1.5, with f = 1, 1.1, 0.95
    half = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)

    assert row.speedup is not None
    assert row.speedup.time.estimate == pytest.approx(math.exp(logs.mean()))
    assert row.speedup.time.low == pytest.approx(math.exp(logs.mean() - half))
    product = row.speedup.time.estimate * row.speedup.passes.estimate
    assert product == pytest.approx(row.speedup.steps.estimate)
    assert row.speedup.passes.estimate == pytest.approx(1.5)


def test_the_first_sentence_has_the_factors_and_the_interval():
    told = answer(table_of())

    assert told[0] == (
        "4 workers: 2 times faster (95%: 1.7 to 2.4) than 1 worker to error 0.2, by 3 times the"
        " steps a second and 1.5 times the passes; more than 4 were not tried."
    )
    assert told[1].startswith(
        "At the end of training, not at the target, its error is 0.1 against 0.1, less than one"
    )


def test_a_table_is_ordered_from_the_fastest_to_the_target():
    flat = [(0.0, 0.0, 0.9), (5.0, 1.0, 0.5)]
    cells = [
        cell_of("c", 1, [flat] * 2),
        cell_of("a", 1, [falling(1.0, 2.0)] * 2),
        cell_of("b", 1, [falling(2.0, 2.0)] * 2),
    ]
    table = build_table(cells, 0.2)

    assert [row.cell.method for row in rank_rows(table)] == ["b", "a", "c"]
    assert [row.cell.method for row in table.rows] == ["c", "a", "b"]


def test_a_default_target_is_never_met_before_training():
    flat = [(0.0, 0.0, 1.01), (5.0, 1.0, 1.0)]
    table = build_table([cell_of("a", 1, [flat] * 2), cell_of("a", 2, [flat] * 2)])

    assert table.target == pytest.approx(1.01 - 0.95 * 0.01)
    assert all(reach.is_earned for row in table.rows for reach in row.reaches)
    assert table.reason == (
        "95% of the way from 1.01 before training to 1, the end of a with 1 worker"
    )


def test_nothing_learned_is_no_target():
    worse = [(0.0, 0.0, 0.5), (5.0, 1.0, 0.5)]
    table = build_table([cell_of("a", 1, [worse] * 2), cell_of("b", 1, [worse] * 2)])

    assert table.target is None
    assert (
        "There is no target to compare times by (with 1 worker nothing was learned)"
        in (answer(table)[0])
    )
    assert "no better than at the start" in str(comparison.answer_of(table))


def test_one_cell_has_no_target_of_its_own():
    table = build_table([cell_of("a", 4, [falling(1.0, 2.0)] * 3)])
    lines = str(comparison.answer_of(table)).splitlines()

    assert table.target is None
    assert lines[0].startswith("a with 4 workers: error 0.1 (0.095 to 0.11) after 5 passes, 5 s of")
    assert not any("to target" in line for line in lines)
    assert "target_s" not in comparison.answer_of(table).records[0]


def test_a_target_that_one_seed_meets_before_training_is_below_that_seed_s_start():
    curves = [falling(1.0, 2.0, start=start) for start in (0.9, 0.7)]
    table = build_table([cell_of("a", n, curves) for n in (1, 2)], 0.8)

    assert "is met before training by some seeds: give one below 0.7;" in answer(table)[0]


def test_a_run_that_takes_no_time_reaches_its_target_by_training():
    curves = [[(0.0, 0.0, 0.9), (5.0, 0.0, 0.1)]] * 2
    table = build_table([cell_of("a", n, curves) for n in (1, 2)], 0.2)

    assert "met before training" not in str(comparison.answer_of(table))
    assert "0 s" in list(comparison.cells(table))[1]


def test_more_of_an_accuracy_is_better():
    curves = [[(0.0, 0.0, 0.1), (2.0, 2.0, 0.8), (5.0, 5.0, 0.9)]] * 2
    better = [[(0.0, 0.0, 0.1), (2.0, 1.0, 0.85), (5.0, 2.5, 0.95)]] * 2
    cells = [cell_of("a", 1, curves, more=True), cell_of("a", 2, better, more=True)]

    assert build_table(cells).target == pytest.approx(0.1 + 0.95 * 0.8)
    told = answer(build_table(cells, 0.8))
    assert "2 times faster (95%: 2 to 2) than 1 worker to error 0.8" in told[0]
    assert told[1].endswith("0.95 against 0.9, better than that.")
    assert "give one above 0.1" in answer(build_table(cells, 0.05))[0]
