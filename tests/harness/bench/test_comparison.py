from __future__ import annotations

import pytest

from harness.bench.comparison import (
    LEAST_TOLERANCE,
    UNREPEATED,
    BaselineEntry,
    Bound,
    Measurement,
    better,
    bound,
    build_entry,
    compare,
    loss,
    read,
    select_failing,
)

NAME = "tests/benchmarks/test_it.py::test_it"
BASE = {
    NAME: BaselineEntry({"ratio": Bound(1.0, 0.2), "times_simpy": Bound(50.0, 0.2)}, {"folds": 7})
}


def verdicts(measured, baseline=BASE, **more):
    return {row.quantity: row.verdict for row in compare({NAME: measured}, baseline, **more)}


def test_what_moves_within_its_tolerance_passes():
    rows = verdicts(Measurement({"ratio": 1.19, "times_simpy": 42.0}, {"folds": 7}))
    assert rows == {"ratio": "ok", "times_simpy": "ok", "folds": "ok"}


def test_a_cost_that_grows_and_a_speed_that_falls_beyond_it_fail():
    rows = verdicts(Measurement({"ratio": 1.21, "times_simpy": 41.0}, {"folds": 7}))
    assert rows == {"ratio": "SLOWER", "times_simpy": "SLOWER", "folds": "ok"}


def test_a_ratio_that_is_no_number_fails():
    assert verdicts(Measurement({"ratio": float("nan")}))["ratio"] == "SLOWER"


def test_what_became_better_is_told_and_does_not_fail():
    rows = verdicts(Measurement({"ratio": 0.8, "times_simpy": 70.0}, {"folds": 7}))
    assert rows == {"ratio": "faster", "times_simpy": "faster", "folds": "ok"}


@pytest.mark.parametrize("count", [8, 7.0000001, "7"])
def test_a_count_that_is_not_equal_fails(count):
    assert verdicts(Measurement({}, {"folds": count}))["folds"] == "DIFFERENT"


def test_a_quantity_or_a_benchmark_that_vanished_fails():
    assert verdicts(Measurement({"ratio": 1.0}))["times_simpy"] == "GONE"
    assert select_failing(compare({}, BASE)) == [NAME]


def test_a_benchmark_that_says_it_cannot_run_here_is_not_missed():
    (row,) = compare({}, BASE, skipped=[NAME])
    assert (row.verdict, row.fails) == ("skipped", False)


def test_what_the_baseline_does_not_know_passes_as_new():
    rows = compare({NAME: Measurement({"ratio": 9.0}, {"folds": 1})}, {})
    assert [row.verdict for row in rows] == ["new", "new"]
    assert select_failing(rows) == []


def test_on_another_processor_ratios_have_more_room_and_counts_have_none():
    rows = verdicts(Measurement({"ratio": 1.9, "times_simpy": 26.0}, {"folds": 8}), least=1.0)
    assert rows == {"ratio": "ok", "times_simpy": "ok", "folds": "DIFFERENT"}


def test_a_loss_is_the_same_for_a_cost_that_doubles_and_a_speed_that_halves():
    assert loss("ratio", 2.0, 1.0) == loss("times_simpy", 1.0, 2.0) == 1.0


def test_names_say_which_figures_are_compared():
    noted = {"ratio": 1, "processor_ratio": 2, "times_kaldi": 3, "folds_per_s": 4, "frames": 5}
    assert read({**noted, "counts": {"folds": 6}}) == Measurement(
        {"ratio": 1.0, "processor_ratio": 2.0, "times_kaldi": 3.0}, {"folds": 6}
    )


def test_of_two_measurements_the_better_counts_but_counts_must_agree():
    first = Measurement({"ratio": 1.3, "times_simpy": 50.0}, {"folds": 7})
    again = Measurement({"ratio": 1.1, "times_simpy": 40.0}, {"folds": 7})
    assert better(first, again) == Measurement({"ratio": 1.1, "times_simpy": 50.0}, {"folds": 7})
    assert better(first, Measurement({}, {"folds": 8})).counts == {"folds": "7 | 8"}


def test_a_tolerance_is_twice_the_worst_loss_seen_and_never_below_the_least():
    assert bound("ratio", [1.0, 1.2, 0.5]) == Bound(1.0, pytest.approx(0.4))
    assert bound("times_simpy", [10.0, 5.0, 12.0]) == Bound(10.0, pytest.approx(2.0))
    assert bound("ratio", [2.0, 2.0, 2.0]) == Bound(2.0, LEAST_TOLERANCE)


def test_of_fewer_runs_the_tolerance_is_wide():
    assert bound("ratio", [2.0, 2.0]) == Bound(2.0, UNREPEATED)


def test_a_baseline_refuses_counts_that_differ_from_run_to_run():
    assert build_entry([Measurement({}, {"folds": 7})] * 2).counts == {"folds": 7}
    with pytest.raises(ValueError, match="differ"):
        build_entry([Measurement({}, {"folds": 7}), Measurement({}, {"folds": 8})])
