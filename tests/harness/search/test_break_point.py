from __future__ import annotations

import math

import pytest

from harness.base.errors import UserError
from harness.search.search import Search, bracket, solve


def searched(low: float, high: float, halvings: int = 6, whole: bool = False) -> Search:
    return Search("what", "what (s)", whole, (low, high), halvings=halvings)


@pytest.mark.parametrize("edge", [1, 2, 11, 63])
def test_a_whole_number_is_found_exactly_and_in_few_tries(edge):
    asked: list[float] = []

    def breaks(value: float) -> bool:
        asked.append(value)
        return value > edge

    assert solve(bracket(searched(1, 64, 20, whole=True)), breaks) == (edge, edge + 1)
    assert len(asked) == len(set(asked)) <= 9


def test_any_other_number_is_found_within_a_factor():
    low, high = solve(bracket(searched(0.01, 10.24)), lambda value: value > 0.3)
    assert low <= 0.3 < high
    assert high / low == pytest.approx(1024.0 ** (1 / 64))
    low, high = solve(bracket(searched(0.0, 1.0, 3)), lambda value: value > 0.3)
    assert (low, high) == (0.25, pytest.approx(0.5 * 0.5**0.5))


def test_what_never_breaks_is_tried_once():
    assert solve(bracket(searched(1, 64, whole=True)), lambda value: False) == (64, math.inf)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"between": (8, 4)}, "from 8 to 4; allowed: from less to more"),
        ({"between": (1.5, 4)}, "from 1.5 to 4 what; allowed: whole numbers"),
        ({"margin": -0.1}, "margin: -0.1; allowed: a number from 0"),
    ],
)
def test_mistakes_are_one_line(asked, told):
    with pytest.raises(UserError, match=told):
        Search("what", "what (s)", True, **{"between": (1, 64), **asked})
