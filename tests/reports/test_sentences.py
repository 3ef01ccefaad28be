"""Sentences of a comparison, from runs whose curves are known."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.judge.comparison import Table, build_table, speedup
from harness.judge.interval import Interval
from harness.simulator.cluster import Fault
from harness.store import Cell, Run
from harness.store.files import columns_of
from harness.store.schema import TIMELINE
from reports import comparison
from reports.learning_curves import curves_figure
from reports.sentences import answer, compare_chosen, format_error, rank_rows, within

Curve = Sequence[tuple[float, float, float]]
"""Passes, simulated seconds and value of each evaluation."""


def run_of(curve: Curve, *, more: bool = False, status: str = "done", seed: int = 0) -> Run:
    config = {"passes": 5, "seed": seed, "problem": {"better": "more"} if more else {}}
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
    points = (0.0, start), (0.999 * passes, start), (passes, 0.2), (5.0, end)
    return [(after, after / speed, value) for after, value in points]


def cell_of(method: str, workers: int, curves: Sequence[Curve], **further: bool) -> Cell:
    runs = tuple(run_of(curve, **further, seed=seed) for seed, curve in enumerate(curves))
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
    assert row.speedup.time.low == pytest.approx(math.exp(logs.mean() - half), rel=2e-3)
    product = row.speedup.time.estimate * row.speedup.passes.estimate
    assert product == pytest.approx(row.speedup.steps.estimate)
    assert row.speedup.passes.estimate == pytest.approx(1.5)


def test_the_answer_comes_first_then_how_sure_it_is_then_what_it_is_made_of():
    told = answer(table_of())

    assert told[:3] == [
        "Fastest to error 0.2: 4 workers, in 1 s; 1 worker takes 2 times as long.",
        "Sure (95%, 3 seeds): 1.7 to 2.4 times as long.",
        "It goes through the data 3 times as fast, but needs 1.5 times the passes.",
    ]
    assert told[3].startswith("At the end of training its error is 0.1 against 0.1, less than one")


def test_a_default_target_is_never_met_before_training():
    flat = [(0.0, 0.0, 1.01), (5.0, 1.0, 1.0)]
    table = build_table([cell_of("a", 1, [flat] * 2), cell_of("a", 2, [flat] * 2)])

    assert table.target == pytest.approx(1.01 - 0.95 * 0.01)
    assert all(reach.is_earned for row in table.rows for reach in row.reaches)
    assert table.reason == ("95% of the way from 1.01 before training to 1, the end of 1 worker")


def test_nothing_learned_is_no_target():
    worse = [(0.0, 0.0, 0.5), (5.0, 1.0, 0.5)]
    table = build_table([cell_of("a", 1, [worse] * 2), cell_of("b", 1, [worse] * 2)])

    assert table.target is None
    told = "There is no target to compare times by (with 1 worker nothing was learned)"
    assert told in answer(table)[0]
    assert "no better than at the start" in str(comparison.answer_of(table))


def test_one_cell_has_no_target_of_its_own():
    table = build_table([cell_of("a", 4, [falling(1.0, 2.0)] * 3)])
    lines = str(comparison.answer_of(table)).splitlines()

    assert table.target is None
    after = "error 0.1 after 5 passes, 5 s of simulated time; before training it was 0.9."
    assert lines[:2] == [f"a with 4 workers: {after}", "Sure (95%, 3 seeds): 0.095 to 0.11."]
    assert not any("to target" in line for line in lines)
    assert "target_s" not in comparison.answer_of(table).records[0]


def test_a_target_that_one_seed_meets_before_training_says_so():
    curves = [falling(1.0, 2.0, start=start) for start in (0.9, 0.7)]
    table = build_table([cell_of("a", n, curves) for n in (1, 2)], 0.8)

    assert answer(table)[0].endswith(": met before training.")


def test_a_run_that_takes_no_time_reaches_its_target_by_training():
    curves = [[(0.0, 0.0, 0.9), (5.0, 0.0, 0.1)]] * 2
    table = build_table([cell_of("a", n, curves) for n in (1, 2)], 0.2)

    assert "met before training" not in str(comparison.answer_of(table))
    assert "0 s" in list(comparison.cells(table))[1]


def test_more_of_an_accuracy_is_better():
    curves = [[(0.0, 0.0, 0.1), (1.9, 1.9, 0.7), (2.0, 2.0, 0.8), (5.0, 5.0, 0.9)]] * 2
    better = [[(0.0, 0.0, 0.1), (1.9, 0.95, 0.7), (2.0, 1.0, 0.85), (5.0, 2.5, 0.95)]] * 2
    cells = [cell_of("a", 1, curves, more=True), cell_of("a", 2, better, more=True)]

    assert build_table(cells).target == pytest.approx(0.1 + 0.95 * 0.8)
    told = answer(build_table(cells, 0.8))
    assert "1 worker takes 2 times as long" in told[0]
    assert told[3].endswith("0.95 against 0.9, which is better.")
    assert answer(build_table(cells, 0.05))[0].endswith("2 workers: met before training.")


def several(count: int, target: float = 0.2) -> Table:
    """One worker, and numbers of workers of which each is a little faster, with scatter."""
    passes = 1.0 + 0.05 * np.random.default_rng(3).normal(size=(count, 3))
    speeds = [1.0, *(1.1 + 0.01 * k for k in range(1, count))]
    curves = [[falling(s, p) for p in each] for s, each in zip(speeds, passes, strict=True)]
    return build_table([cell_of("sync", 2**k, each) for k, each in enumerate(curves)], target)


def test_the_best_of_several_rows_is_corrected_for_their_number():
    two, table = several(2), several(6)
    best = rank_rows(table)[0]
    others = [row for row in table.rows if row not in (best, table.reference)]

    assert best.speedup == speedup(best, table.reference, 5)
    assert all(row.speedup == speedup(row, table.reference) for row in others)
    assert two.rows[1].speedup == speedup(two.rows[1], two.rows[0])
    assert compare_chosen(two, *two.rows) == speedup(*two.rows)
    assert compare_chosen(table, best, others[0]) == speedup(best, others[0], 6)
    assert "allows for its choice among 5" in str(comparison.answer_of(table))
    assert "choice" not in str(comparison.answer_of(two))
    assert table.reference.speedup.time == Interval.exact(1.0)
    assert "more" not in answer(two)[0]  # than 1 worker, of which 2 are the fastest
    assert answer(table)[0].endswith("; more workers gain nothing that these seeds show.")


def slow(end: float, seconds: float) -> Curve:
    return [(0.0, 0.0, 0.9), (5.0, seconds, end)]


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_row_that_is_ahead_when_its_passes_end_is_told_as_unfinished(seeds):
    one = [falling(1.0, p) for p in (4.0, 4.2, 3.9)]
    ahead = [slow(end, 1.0) for end in (0.4, 0.42, 0.41)]  # where one worker has 0.9
    behind = [slow(end, 4.5) for end in (0.4, 0.42, 0.41)]  # where one worker has 0.2
    cells = [cell_of(*each) for each in (("a", 1, one), ("a", 8, ahead), ("b", 8, behind))]
    table = build_table([replace(cell, runs=cell.runs[:seeds]) for cell in cells], 0.2)
    told = answer(table)

    assert told[0].endswith("; more workers of a do not reach it within these 5 passes.")
    ahead = "but ahead of 1 worker after the same time: a with 8 workers; train longer."
    assert told[1] == f"Not there within these 5 passes, {ahead}"
    cells = {(row[0], row[1]): row[5] for row in comparison.cells(table)}
    assert cells["a", "8"] == "not within these 5 passes, ahead there"
    assert cells["b", "8"] == "not within these 5 passes"
    assert within(replace(table.rows[0], trained=0.679)).startswith("within the 3.4 passes that")


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_told_and_no_better(value, more):
    good = [[(p, s, 1.0 - v if more else v) for p, s, v in falling(1.0, k)] for k in (2.0, 2.2)]
    lost, once = ([*good[0][:-1], (5.0, 5.0, value)], [(0.0, 0.0, value), *good[1][1:]])
    cells = [cell_of(*cell, more=more) for cell in (
        ("a", 1, good), ("b", 1, [lost, lost]), ("c", 1, [once, lost]), ("d", 1, [once, once]),
    )]  # fmt: skip
    table = build_table(cells, 0.8 if more else 0.2)
    told, rows = answer(table), {row.cell.method: row for row in table.rows}

    assert [row.cell.method for row in rank_rows(table)][-2:] == ["c", "b"]
    counts = [(2, 0, False), (0, 2, False), (1, 1, False), (2, 0, False)]
    assert [(row.reached, row.infinite, row.ahead) for row in table.rows] == counts
    assert rows["b"].error is None
    assert (rows["d"].start, rows["c"].error.estimate) == (None, good[0][-1][2])
    seeds = "1 of 4 with seed 0, 1 of 4 with seed 1"
    ends = f"{seeds}; a run that ends so is in no mean and reaches no target."
    lines = [f"{name}: error is not finite at evaluations: {ends}" for name in "bcd"]
    assert [sentence for sentence in told if "finite" in sentence] == lines
    assert "2 of 2 not finite" in str(comparison.answer_of(table))
    assert curves_figure(table).axes
    assert answer(build_table(cells[1:2]))[0] == "No run ends with a finite error."


def test_a_row_without_an_end_of_every_seed_is_not_the_best_end():
    whole, better = ([(0.0, 0.0, 0.9), (5.0, 1.0, end)] for end in (0.3, 0.2))
    lost = [(0.0, 0.0, 0.9), (5.0, 1.0, math.nan)]
    cells = [cell_of("a", 1, [whole, whole]), cell_of("b", 1, [better, lost])]
    assert "; a has the best error at the end: 0.3" in answer(build_table(cells, 0.1))[0]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Interval(1.49, 1.4871, 1.4929), "1.49 (1.487 to 1.493)"),
        (Interval(1.49, 1.4, 1.6), "1.49 (1.4 to 1.6)"),
        (Interval(0.98765, 0.98741, 0.98789), "0.9877 (0.9874 to 0.9879)"),
        (Interval(0.117, 0.03, 0.32), "0.117 (0.03 to 0.32)"),
        (Interval(2.0, 2.0, 2.0), "2 (2 to 2)"),
        (Interval(1.49), "1.49"),
    ],
)
def test_digits_follow_the_width_of_an_interval(found, told):
    assert format_error(found) == told


def test_the_number_of_faults_that_happened_is_in_the_table():
    def table(*faults):
        cells = [cell_of("a", n, [falling(n, 2.0)] * 2) for n in (1, 4)]
        for cell in cells:
            for run in cell.runs:
                run.config["cluster"] = {"faults": [fault.to_dict() for fault in faults]}
        return build_table(cells, 0.2)

    struck = table(
        Fault("death", (0, 3), at_s=(1.0, 3.0), down_s=0.5),
        Fault("server", mean_s=1e9, down_s=1.0, checkpoint_s=1.0),
    )
    calm = table(Fault("death", mean_s=1e9, down_s=1.0))

    assert [row.faults for row in struck.rows] == [2.0, 2.0]  # 4 workers end after 1.25 s
    assert [*zip(*comparison.cells(struck), strict=True)][-1] == ("faults", "2", "2")
    assert [*zip(*comparison.cells(calm), strict=True)][-1] == ("faults", "0", "0")
    told = "no fault happened, so its cost is not seen: a, 1 worker; a, 4 workers"
    assert told in str(comparison.answer_of(calm))
    assert next(iter(comparison.cells(table())))[-1] == "staleness"


@pytest.mark.parametrize(
    ("best", "outcome"), [(0.1, "ends no better than at its start"), (0.5, "did not learn")]
)
def test_a_row_that_fell_back_from_the_target_has_learned_meanwhile(best, outcome):
    curve = [(0.0, 0.0, 0.5), (2.0, 1.0, best), (5.0, 2.0, 0.6)]
    (line, *_) = answer(build_table([cell_of("a", 1, [curve])], 0.2))
    assert outcome in line


@pytest.mark.parametrize("more", [False, True])
def test_a_headline_whose_every_seed_leaves_the_target_again_is_told(more):
    def cell(workers: int, ends: Sequence[float]) -> Cell:
        curves = [falling(float(workers), 2.0, end) for end in ends]
        if more:  # accuracies
            curves = [[(p, s, 1.0 - value) for p, s, value in curve] for curve in curves]
        return cell_of("sync", workers, curves, more=more)

    for ends, is_told in (((0.4, 0.3), True), ((0.4, 0.1), False)):
        cells = [cell(1, (0.1, 0.1)), cell(4, ends)]
        lines = answer(build_table(cells, 0.8 if more else 0.2))
        assert any("its time is that of a dip" in line for line in lines) == is_told
