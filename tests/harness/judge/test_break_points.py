"""Ratios of errors with intervals, and the data that they need, where the truth is known."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.break_point import Need, Tolerance, compare_errors, point, reference_point
from reports.tolerance import describe_tolerance

SHARES = st.lists(st.integers(0, 40), min_size=2, max_size=5)


def cell_of(errors, weight=0.0, more=False):
    config = {"problem": {"better": "more"} if more else {}}
    runs = [
        SimpleNamespace(
            status="done" if math.isfinite(error) else "diverged",
            summary={"dev/iterate": error},
            deployed=lambda judged: f"{judged}/iterate",
            config=config,
        )
        for error in errors
    ]
    return SimpleNamespace(runs=runs, judged="dev", example_weight=weight)


@given(SHARES, st.data())
def test_an_interval_of_shares_never_leaves_what_a_ratio_can_be(counts, data):
    others = data.draw(
        st.lists(st.integers(0, 40), min_size=len(counts), max_size=len(counts)), label="others"
    )
    found = compare_errors([n / 40 for n in counts], [n / 40 for n in others], 1 / 40).interval()
    assert 0.0 <= found.low <= found.estimate <= found.high
    mirrored = compare_errors([n / 40 for n in others], [n / 40 for n in counts], 1 / 40).interval()
    assert mirrored.low == pytest.approx(1 / found.high, rel=1e-9)
    assert mirrored.high == pytest.approx(1 / found.low, rel=1e-9)


def test_the_interval_of_seeds_alone_is_that_of_a_paired_t_test_of_small_changes():
    """For small relative changes the logarithm is a straight line."""
    generator = np.random.default_rng(0)
    base = 1.0 + 1e-4 * generator.normal(size=6)
    errors = base * (1.0 + 1e-4 * generator.normal(size=6))
    found = compare_errors([*errors], [*base]).interval()
    difference = errors - base
    half = 2.570581835636314 * difference.std(ddof=1) / math.sqrt(6)
    assert found.estimate == pytest.approx(errors.mean() / base.mean(), abs=1e-12)
    assert found.high - found.low == pytest.approx(2 * half, rel=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("ratio", [1.0, 1.3])
def test_the_interval_covers_the_ratio_of_fresh_seeds_and_fresh_development_sets(ratio):
    """Both models' errors on a set are independent here, which is what the limit presumes."""
    generator, examples, seeds, inside = np.random.default_rng(1), 200, 3, 0
    trials = 600
    for _ in range(trials):
        # a set's difficulty is shared by all seeds, a training's luck is not
        sets = [generator.binomial(examples, p) / examples for p in (0.2 * ratio, 0.2)]
        luck = np.exp(0.05 * generator.normal(size=(2, seeds)))
        errors, reference = (each * row for each, row in zip(sets, luck, strict=True))
        found = compare_errors([*errors], [*reference], 1 / examples).interval()
        inside += found.low <= ratio <= found.high
    assert 0.93 * trials <= inside


def test_equal_shares_of_few_examples_are_not_decided_and_of_many_they_are():
    few = compare_errors([0.3, 0.3], [0.3, 0.3], 1 / 60)
    assert few.interval().high > 1.2
    many = compare_errors([0.3, 0.3], [0.3, 0.3], 1e-6)
    assert many.interval().high < 1.01
    exact = compare_errors([0.3, 0.3], [0.3, 0.3]).interval()
    assert (exact.low, exact.high) == (1.0, 1.0)


def test_what_is_said_to_be_needed_decides():
    """The friction that made this: 60 examples, a third of them wrong, and 11% more."""
    errors, reference, margin = [0.35, 0.37, 0.40], [0.32, 0.33, 0.35], 0.01
    found = compare_errors(errors, reference, 1 / 60)
    need = found.find_need(margin)
    assert found.interval().low < 1 + margin < found.interval().estimate
    assert 1000 < need.examples < 10000
    assert compare_errors(errors, reference, 1 / need.examples).interval().low > 1 + margin
    less = compare_errors(errors, reference, 1 / round(need.examples / 4)).interval()
    assert less.low < 1 + margin
    assert need.seeds == math.inf  # no number of seeds makes up for 60 examples


def test_seeds_that_are_needed_decide_too():
    generator = np.random.default_rng(3)
    errors, reference = ([*(mean + 0.02 * generator.normal(size=4))] for mean in (0.33, 0.30))
    need = compare_errors(errors, reference).find_need(0.02)
    assert need.examples == math.inf
    repeats = math.ceil(need.seeds / 4)
    again = compare_errors(errors * repeats, reference * repeats)
    assert again.interval().low > 1.02
    assert str(need) == f"about {need.seeds:g} seeds"


@pytest.mark.parametrize(
    ("need", "told"),
    [
        (Need(1634.2, math.inf, (3000.0, 9)), "about 1,700 development examples"),
        (Need(1634.2, 12, (3000.0, 9)), "about 1,700 development examples or 12 seeds"),
        (Need(math.inf, math.inf, (3021.0, 9)), "about 3,100 development examples and 9 seeds"),
        (Need(math.inf, math.inf, (math.inf, math.inf)), "more than 10000 seeds: it is at the m"),
    ],
)
def test_what_is_needed_is_said_with_two_figures(need, told):
    assert str(need).startswith(told)


def test_a_metric_of_which_more_is_better_breaks_where_it_falls():
    reference = cell_of([0.9, 0.92], more=True)
    first = reference_point(1, reference)
    worse = point(2, cell_of([0.5, 0.52], more=True), first.errors, 0.05)
    better = point(2, cell_of([0.95, 0.97], more=True), first.errors, 0.05)
    assert (worse.broken, worse.decided, better.broken) == (True, True, False)
    assert worse.ratio.estimate == pytest.approx(1 + (0.91 - 0.51) / 0.91)


def test_no_error_at_the_reference_and_diverged_or_single_seeds_have_their_own_answers():
    base = [0.0, 0.0]
    assert point(2, cell_of([0.1, 0.2]), base, 0.1).broken
    assert not point(2, cell_of([0.0, 0.0]), base, 0.1).broken
    few = point(2, cell_of([0.10, 0.05], 0.05), base, 0.1)
    assert (few.broken, few.decided) == (True, False)
    diverged = point(2, cell_of([0.1, math.inf]), [0.1, 0.1], 0.1)
    assert (diverged.ratio, diverged.broken, diverged.decided) == (None, True, True)
    alone = point(2, cell_of([0.2]), [0.1], 0.1)
    assert (alone.ratio.low, alone.ratio.high, alone.decided) == (0.0, math.inf, False)


def test_the_break_point_has_an_interval_between_what_is_decided():
    reference = cell_of([0.30, 0.30, 0.30], 1 / 1000)
    first = reference_point(1, reference)
    at = {2: [0.30, 0.305, 0.30], 4: [0.33, 0.33, 0.32], 8: [0.6, 0.6, 0.6]}
    points = [point(v, cell_of(each, 1 / 1000), first.errors, 0.05) for v, each in at.items()]
    found = Tolerance("workers", "workers", 0.05, [first, *points], 2, 4)
    assert [p.decided for p in points] == [False, False, True]
    assert found.interval == (1, 8)
    told = list(describe_tolerance(found))
    assert told[:2] == [
        "workers: up to 2 the error stays within 5% of that at 1, and at 4 it does not.",
        "Sure (95%, 3 seeds) is only that it does not at 8.",
    ]
    assert [line.partition(" takes")[0] for line in told[2:]] == [
        f"To be sure at {value}" for value in (2, 4)
    ]
    sure = Tolerance("workers", "workers", 0.5, [first, *points[:1]], 2, math.inf)
    assert sure.interval[1] == math.inf
