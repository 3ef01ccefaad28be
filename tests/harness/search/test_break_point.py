import logging
import math
from types import SimpleNamespace

import pytest

from harness.base.errors import UserError
from harness.search.break_search import Search, ToleranceSearch, bracket
from harness.search.search import solve


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


class FakeGrid:
    """A grid of one cell."""

    searches, methods, workers, count_trainings = False, (), (1,), lambda *_: 2

    def __init__(self, errors, said):
        self.errors, self.said = errors, said

    def run(self, runner, tally):
        self.said.append(tally.describe(0))
        runs = [run_of(error) for error in self.errors]
        tally.done += len(runs)
        return [SimpleNamespace(runs=runs, judged="dev", example_weight=0.0, rate=1.0, workers=1)]


def run_of(error):
    return SimpleNamespace(
        status="diverged" if error == math.inf else "done", summary={"dev/iterate": error},
        deployed=lambda judged: f"{judged}/iterate", config={}, hash=str(error),
    )  # fmt: skip


def found_for(error, between=(1, 64)):
    """The result of a search of whole numbers, and what the tally said before each value."""
    said = []

    def grid_at(value):
        return FakeGrid([error(value, seed) for seed in (0, 1)], said)

    search = Search("workers", "workers", True, between, margin=0.1)
    return ToleranceSearch(search, grid_at, None).find(), said


def test_the_break_of_a_known_curve_is_found_and_the_trainings_are_counted(caplog):
    with caplog.at_level(logging.INFO, "lagbench"):
        found, said = found_for(lambda value, seed: (0.1 if value <= 11 else 0.2) + 0.001 * seed)
    assert (found.tolerated, found.broken, found.interval) == (11, 12, (11, 12))
    assert said[:2] == ["training 1 of at most 16", "training 3 of at most 16"]
    counts = [int(line.split()[1]) for line in said]
    assert counts == list(range(1, 2 * len(said), 2))
    assert counts[-1] + 1 <= 16
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("tolerate: at most 8 values of workers, 2 trainings each;")
    assert "workers 12: broken" in lines


def test_a_curve_that_seeds_cannot_tell_from_its_reference_leaves_the_interval_open():
    noise = {(1, 0): 0.1, (1, 1): 0.2, (64, 0): 0.17, (64, 1): 0.14}
    found, _ = found_for(lambda value, seed: noise.get((value, seed), 0.15))
    assert found.interval == (1, math.inf)
    assert "needs about" in f"needs {found.points[-1].need}"
    assert all(p.ratio.low >= 0.0 for p in found.points)


@pytest.mark.parametrize(
    ("end", "told"), [(math.inf, "training diverged"), (math.nan, "the metric is not finite")]
)
def test_a_reference_without_an_error_is_one_line(end, told):
    with pytest.raises(UserError, match=f"tolerate: {told} at workers 1; nothing to compare"):
        found_for(lambda value, seed: end)
    found, _ = found_for(lambda value, seed: 0.1 if value < 3 else end)
    assert (found.tolerated, found.broken) == (2, 3)
