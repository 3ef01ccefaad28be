import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import numbers


@pytest.mark.parametrize(
    ("value", "ci95", "figure", "beside"),
    [
        (8.149999, (7.64, 8.66), "8.15", "± 0.51"), (22.5, (18.1, 26.9), "22.5", "± 4.4"),
        (123.4, (0.0, 246.8), "123", "± 123"), (-0.0312, (-0.04, -0.0224), "−0.0312", "± 0.0088"),
        (10.5067, (10.5029, 10.5105), "10.507", "± 0.004"),
        (1234.5678, (1234.5675, 1234.5681), "1\u202f234.5678", "± 0.0003"),
        (1.03, (1.0, 1.2), "1.03", "1.00 to 1.20"), (7.63, None, "7.630", "no interval"),
        (7.63, (None, None), "7.630", "no interval"), (7.63, (7.0, None), "7.630", "≥ 7.000"),
        (7.63, (7.63, 7.63), "7.630", "equal in all runs"),
        (4.0, (4.0 - 3e-9, 4.0 + 2e-9), "4.000", "equal in all runs"), (None, None, "–", ""),
        (123456.7, None, "123\u202f457", "no interval"),
    ],
)  # fmt: skip
def test_a_figure_has_as_many_digits_as_its_interval_supports(value, ci95, figure, beside):
    assert numbers.format_measured(value, ci95) == figure
    assert numbers.spread(value, ci95) == beside


@pytest.mark.parametrize(
    ("value", "text"), [(7.63, "7.63"), (15, "15"), (-2.5, "−2.5"), ("holds", "holds"), (None, "–")]
)
def test_the_papers_figures_are_printed_as_they_stand(value, text):
    assert numbers.format_number(value) == text


def test_minus_zero_is_zero():
    assert numbers.format_fixed(-0.0001, 2) == "0.00"


def test_figures_of_one_row_share_their_decimals():
    assert numbers.places_of([23.4, 22.87, None, 9]) == 2
    assert numbers.places_of([None]) == 0
    assert numbers.format_number(23.4, 2) == "23.40"


@given(st.floats(-1e12, 1e12), st.floats(0, 1e12))
def test_every_finite_figure_can_be_printed(value, half):
    bounds = (value - half, value + half)
    assert numbers.format_measured(value, bounds)
    assert numbers.spread(value, bounds)
    assert numbers.interval(value, bounds)


@pytest.mark.parametrize(("s", "text"), [(0.4, "0 s"), (90, "1 min 30 s"), (7260, "2 h 1 min")])
def test_a_duration_is_told_in_the_unit_a_person_would_choose(s, text):
    assert numbers.duration(s) == text
