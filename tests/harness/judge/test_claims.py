import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.claims import ABOVE, BELOW, Rule, all_of, holm, relative_error, rule_near
from harness.judge.interval import Interval
from harness.judge.statistics import mean_ci, ratio_ci

numbers = st.floats(-100, 100)
ends = st.floats(allow_nan=False)
widths = st.floats(0, 100) | st.just(math.inf)
sides = st.sampled_from([BELOW, ABOVE])
intervals = (
    st.lists(ends, min_size=3, max_size=3).map(sorted).map(lambda x: Interval(x[1], x[0], x[2]))
)
bands = (
    st.tuples(ends, ends)
    .map(lambda b: (min(b), max(b)))
    .filter(lambda b: b[0] < math.inf and b[1] > -math.inf)  # some number is in every band
)
OPPOSITE = {"holds": "fails", "fails": "holds", "unclear": "unclear"}


def wider(interval, below, above):
    return Interval(interval.estimate, interval.low - below, interval.high + above)


@given(intervals)
def test_what_reproduces_one_side_contradicts_the_other(interval):
    assert BELOW.judge(interval) == OPPOSITE[ABOVE.judge(interval)]


@given(intervals, sides, widths, widths)
def test_widening_never_earns_or_turns_a_direction(interval, side, below, above):
    before = side.judge(interval)
    assert side.judge(wider(interval, below, above)) in (before, "unclear")


@given(intervals, bands, widths, widths)
def test_widening_never_earns_or_turns_a_size(interval, band, below, above):
    before = Rule(*band).judge(interval)
    assert Rule(*band).judge(wider(interval, below, above)) in (before, "unclear")


@given(intervals, bands)
def test_a_size_is_judged_by_where_every_point_of_the_interval_lies(interval, band):
    verdict = Rule(*band).judge(interval)
    inside = [band[0] <= x <= band[1] for x in (interval.low, interval.estimate, interval.high)]
    if verdict == "holds":
        assert all(inside)
    if verdict == "fails":
        assert not any(inside)


@given(
    st.lists(numbers, min_size=1, max_size=1), sides, bands.filter(lambda b: math.isfinite(b[1]))
)
def test_one_seed_decides_nothing(values, side, band):
    assert side.judge(mean_ci(values)) == "unclear"
    assert Rule(*band).judge(mean_ci(values)) == "unclear"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.3, -0.1, "holds"),
        (0.1, 0.3, "fails"),
        (-0.1, 0.3, "unclear"),
        (-0.1, 0.0, "unclear"),
        (0.0, 0.0, "unclear"),
        (math.nan, math.nan, "unclear"),
    ],
)
def test_a_direction_needs_the_interval_wholly_on_one_side_of_zero(low, high, verdict):
    assert BELOW.judge(Interval(0.0, low, high)) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (5, 8, "holds"),
        (6.38, 6.38, "holds"),
        (8.5, 9, "fails"),
        (4.9, 6, "unclear"),
        (8, 9, "unclear"),
        (1, 100, "unclear"),
    ],
)
def test_a_size_is_undecided_across_an_end_of_its_band(low, high, verdict):
    assert Rule(5, 8).judge(Interval(6, low, high)) == verdict


def test_a_band_may_be_open_at_one_end():
    assert Rule(high=0.15).judge(Interval(0.1, -0.05, 0.12)) == "holds"
    assert Rule(high=0.15).judge(Interval(0.1, -math.inf, math.inf)) == "unclear"


def test_an_empty_band_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Rule(2, 1)


@pytest.mark.parametrize(
    ("predicted", "verdict"),
    [(17.0, "holds"), (18.6, "holds"), (18.8, "fails"), (math.nan, "unclear")],
)
def test_a_prediction_agrees_within_ten_per_cent(predicted, verdict):
    assert rule_near(17.0).judge(Interval.exact(predicted)) == verdict


def test_a_prediction_with_chance_in_it_needs_its_whole_interval_in_the_band():
    assert rule_near(17.0).judge(Interval(17.5, 17.0, 18.0)) == "holds"
    assert rule_near(17.0).judge(Interval(17.5, 16.0, 19.0)) == "unclear"
    assert rule_near(17.0, 0.02).judge(Interval(17.5, 17.0, 18.0)) == "unclear"


def test_a_relative_error_keeps_its_ends_in_order():
    found = relative_error(Interval(-1.1, -1.2, -1.0), -1.0)
    assert found.low <= found.estimate <= found.high
    with pytest.raises(ValueError, match="no relative error"):
        relative_error(1.0, 0.0)


verdicts = st.sampled_from(["holds", "fails", "unclear"])


@given(st.lists(verdicts, min_size=1))
def test_a_claim_of_parts_holds_with_all_and_falls_with_any(parts):
    whole = all_of(parts)
    assert (whole == "holds") == (set(parts) == {"holds"})
    assert (whole == "fails") == ("fails" in parts)


def test_a_claim_without_parts_is_refused():
    with pytest.raises(ValueError, match="without parts"):
        all_of([])


@given(st.lists(numbers, min_size=2, max_size=6), bands)
def test_a_p_value_is_below_five_per_cent_where_the_interval_decides(values, band):
    found, rule = mean_ci(values), Rule(*band)
    outside, inside = rule.p_values(found)
    margin = 1e-9 * (1 + abs(found.low) + abs(found.high))
    for p, verdict in ((outside, "holds"), (inside, "fails")):
        sure = {rule.judge(wider(found, d, d)) == verdict for d in (margin, -margin)}
        if found.high - found.low > 4 * margin and len(sure) == 1:
            assert (p < 0.05) == sure.pop()


def test_a_p_value_is_that_of_the_t_test():
    stats = pytest.importorskip("scipy.stats")
    values = [0.3, -0.1, 0.4, 0.2]
    expected = stats.ttest_1samp(values, 0.0).pvalue
    assert ABOVE.p_values(mean_ci(values))[0] == pytest.approx(expected, rel=1e-12)
    assert BELOW.p_values(mean_ci(values))[1] == pytest.approx(expected, rel=1e-12)


def test_a_p_value_of_a_ratio_is_that_of_the_t_test_whose_interval_is_fiellers():
    stats = pytest.importorskip("scipy.stats")
    over, under, end = [1.3, 0.7, 1.2, 1.1], [1.2, 0.9, 1.3, 1.0], 1.3
    found = ratio_ci(over, under)
    expected = stats.ttest_1samp([a - end * b for a, b in zip(over, under, strict=True)], 0).pvalue
    assert Rule(high=end).p_values(found)[0] == pytest.approx(expected, rel=1e-12)
    # and so are those of what is made of it
    assert Rule(low=1 - end).p_values(1 - found)[0] == pytest.approx(expected, rel=1e-12)
    assert Rule(high=100 * end).p_values(100 * found)[0] == pytest.approx(expected, rel=1e-12)


def test_a_ratio_whose_parts_always_differ_by_as_much_is_surely_not_one():
    found = ratio_ci([40.0, 41.0, 42.0], [38.0, 39.0, 40.0])  # passes: two more each time
    assert Rule(high=1.0).p_values(found) == (1.0, 0.0)


def test_holm_corrects_as_its_own_example_does():
    # Holm's procedure by hand: 4 x 0.01, 3 x 0.02, then never less than the one before
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])


def test_one_p_value_needs_no_correction():
    assert holm([0.04]) == [0.04]
