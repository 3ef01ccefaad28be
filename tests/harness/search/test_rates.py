import math

import pytest

from harness.algorithms.async_sgd import AsyncSgd
from harness.algorithms.averaging import GradientAveraging
from harness.search.comparison import follow, scale_linearly
from harness.search.search import MOST_TRIES, climb, drive, lowest, solve


@pytest.mark.parametrize("best", [-6, -1, 0, 1, 5])
def test_the_best_rate_of_a_bowl_is_found_from_far_away(best):
    errors = solve(climb(), lambda rung: (rung - best) ** 2)
    assert lowest(errors) == best
    assert {best - 1, best + 1} <= errors.keys()
    assert best or len(errors) == 3


def test_a_guess_that_diverges_leads_downwards_until_the_search_ends():
    assert lowest(solve(climb(), lambda rung: math.inf if rung > -4 else 2.0**-rung)) == -4
    assert len(solve(climb(), lambda rung: math.inf)) == MOST_TRIES


def test_only_a_mean_of_gradients_earns_a_larger_rate():
    assert scale_linearly(0.1, GradientAveraging(), 2, 8) == pytest.approx(0.4)
    assert scale_linearly(0.1, AsyncSgd(), 2, 8) == 0.1


def test_a_rate_that_diverges_is_not_gone_beyond():
    errors = solve(climb(), lambda rung: math.inf if rung > 0 else -rung / 10)
    assert set(errors) == {-1, 0, 1}


def test_what_several_searches_want_next_is_tried_together_also_of_one_that_is_added():
    steps = []

    def count(name, values):
        got = yield values
        searches[f"after {name}"] = later(sum(got))
        (last,) = yield [10]
        return last

    def later(value):
        return (yield [value, value])

    searches = {"a": count("a", [1, 2]), "b": count("b", [3])}

    def answer(wanted):
        steps.append(wanted)
        return [value + 1 for _, value in wanted]

    found = drive(follow(searches), answer)
    assert steps == [
        [("a", 1), ("a", 2), ("b", 3)],
        [("a", 10), ("b", 10), ("after a", 5), ("after a", 5), ("after b", 4), ("after b", 4)],
    ]
    assert found == {"a": 11, "b": 11, "after a": [6, 6], "after b": [5, 5]}
