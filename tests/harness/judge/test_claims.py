from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge import (
    Interval,
    all_of,
    judge_direction,
    judge_prediction,
    judge_size,
    mean_ci,
    relative_error,
)

numbers = st.floats(-100, 100)
ends = st.floats(allow_nan=False)
widths = st.floats(0, 100) | st.just(math.inf)
sides = st.sampled_from(["below", "above"])
intervals = (
    st.lists(ends, min_size=3, max_size=3).map(sorted).map(lambda x: Interval(x[1], x[0], x[2]))
)
bands = st.tuples(ends, ends).map(lambda b: (min(b), max(b)))
OPPOSITE = {"reproduced": "contradicted", "contradicted": "reproduced", "undecided": "undecided"}


def wider(interval, below, above):
    return Interval(interval.estimate, interval.low - below, interval.high + above)


@given(intervals)
def test_what_reproduces_one_side_contradicts_the_other(interval):
    assert judge_direction(interval, "below") == OPPOSITE[judge_direction(interval, "above")]


@given(intervals, sides, widths, widths)
def test_widening_never_earns_or_turns_a_direction(interval, side, below, above):
    before = judge_direction(interval, side)
    assert judge_direction(wider(interval, below, above), side) in (before, "undecided")


@given(intervals, bands, widths, widths)
def test_widening_never_earns_or_turns_a_size(interval, band, below, above):
    before = judge_size(interval, band)
    assert judge_size(wider(interval, below, above), band) in (before, "undecided")


@given(intervals, bands)
def test_a_size_is_judged_by_where_every_point_of_the_interval_lies(interval, band):
    verdict = judge_size(interval, band)
    inside = [band[0] <= x <= band[1] for x in (interval.low, interval.estimate, interval.high)]
    if verdict == "reproduced":
        assert all(inside)
    if verdict == "contradicted":
        assert not any(inside)


@given(
    st.lists(numbers, min_size=1, max_size=1), sides, bands.filter(lambda b: math.isfinite(b[1]))
)
def test_one_seed_decides_nothing(values, side, band):
    assert judge_direction(mean_ci(values), side) == "undecided"
    assert judge_size(mean_ci(values), band) == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.3, -0.1, "reproduced"),
        (0.1, 0.3, "contradicted"),
        (-0.1, 0.3, "undecided"),
        (-0.1, 0.0, "undecided"),
        (0.0, 0.0, "undecided"),
        (math.nan, math.nan, "undecided"),
    ],
)
def test_a_direction_needs_the_interval_wholly_on_one_side_of_zero(low, high, verdict):
    assert judge_direction(Interval(0.0, low, high), "below") == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (5, 8, "reproduced"),
        (6.38, 6.38, "reproduced"),
        (8.5, 9, "contradicted"),
        (4.9, 6, "undecided"),
        (8, 9, "undecided"),
        (1, 100, "undecided"),
    ],
)
def test_a_size_is_undecided_across_an_end_of_its_band(low, high, verdict):
    assert judge_size(Interval(6, low, high), (5, 8)) == verdict


def test_a_band_may_be_open_at_one_end():
    assert judge_size(Interval(0.1, -0.05, 0.12), (-math.inf, 0.15)) == "reproduced"
    assert judge_size(Interval(0.1, -math.inf, math.inf), (-math.inf, 0.15)) == "undecided"


def test_an_empty_band_is_refused():
    with pytest.raises(ValueError, match="empty"):
        judge_size(Interval.exact(1), (2, 1))


@pytest.mark.parametrize(
    ("predicted", "verdict"),
    [(17.0, "reproduced"), (18.6, "reproduced"), (18.8, "contradicted"), (math.nan, "undecided")],
)
def test_a_prediction_agrees_within_ten_per_cent(predicted, verdict):
    assert judge_prediction(predicted, 17.0) == verdict


def test_a_prediction_with_chance_in_it_needs_its_whole_interval_in_the_band():
    assert judge_prediction(Interval(17.5, 17.0, 18.0), 17.0) == "reproduced"
    assert judge_prediction(Interval(17.5, 16.0, 19.0), 17.0) == "undecided"
    assert judge_prediction(Interval(17.5, 17.0, 18.0), 17.0, band=0.02) == "undecided"


def test_a_relative_error_keeps_its_ends_in_order():
    found = relative_error(Interval(-1.1, -1.2, -1.0), -1.0)
    assert found.low <= found.estimate <= found.high
    with pytest.raises(ValueError, match="no relative error"):
        relative_error(1.0, 0.0)


verdicts = st.sampled_from(["reproduced", "contradicted", "undecided"])


@given(st.lists(verdicts, min_size=1))
def test_a_claim_of_parts_holds_with_all_and_falls_with_any(parts):
    whole = all_of(parts)
    assert (whole == "reproduced") == (set(parts) == {"reproduced"})
    assert (whole == "contradicted") == ("contradicted" in parts)


def test_a_claim_without_parts_is_refused():
    with pytest.raises(ValueError, match="without parts"):
        all_of([])
