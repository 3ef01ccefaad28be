import numpy as np
from scipy import stats

from harness.judge.paired import seeds_of, subtract_reference
from harness.judge.results import Row
from harness.judge.statistics import mean_ci

RNG = np.random.default_rng(3)
SHARED = RNG.normal(0, 10, 5)


def row(label, column, values):
    return Row.from_interval(label, column, None, mean_ci(values), (f"{label}{column}",))


def test_what_the_seeds_share_cancels_as_in_scipys_paired_test():
    a, b = SHARED + RNG.normal(1, 0.1, 5), SHARED + RNG.normal(0, 0.1, 5)
    (found,) = subtract_reference([row("a", 1.0, a), row("b", 1.0, b)], "b")
    oracle = stats.ttest_rel(a, b).confidence_interval(0.95)
    np.testing.assert_allclose(found.ci95, (oracle.low, oracle.high), rtol=1e-9)
    assert found.runs == ("a1.0", "b1.0")
    assert row("a", 1.0, a).ci95[1] - row("a", 1.0, a).ci95[0] > 10


def test_readings_at_nearly_the_same_times_are_paired_by_their_order():
    rows = [row("a", t + 0.01, SHARED + t) for t in (1.0, 2.0)]
    rows += [row("b", t, SHARED) for t in (1.0, 2.0)]
    found = subtract_reference(rows, "b")
    assert [(r.column, round(r.measured, 6)) for r in found] == [(1.01, 1.0), (2.01, 2.0)]


def test_curves_of_different_lengths_are_paired_where_their_columns_meet():
    rows = [row("a", t, SHARED + t) for t in (1.0, 2.0, 3.0)]
    rows += [row("b", t, SHARED) for t in (1.0, 3.0)]
    assert [r.column for r in subtract_reference(rows, "b")] == [1.0, 3.0]


def test_without_a_value_for_each_seed_there_is_no_difference():
    rows = [row("a", 1.0, SHARED), Row("b", 1.0, None, 0.0, (-1.0, 1.0)), row("c", 1.0, SHARED[:3])]
    assert subtract_reference(rows, "b") == ()
    assert [r.label for r in subtract_reference(rows, "c")] == []
    assert seeds_of(rows[0]) == SHARED.tolist()
