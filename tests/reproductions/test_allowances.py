"""Predictions of asynchronous training from a synchronous run's seconds."""

import csv
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.settings import load_spec
from harness.cli import main
from reproductions.predictions.allowances import COLUMNS, Allowances, predict_allowances

ROOT = Path(__file__).parents[2]
PLAN = """
is = "Allowances"
synchronous_s = 1000.0
updates = 40
generators = 2
allowances = [1, 2, 4]
draws = 1
rollouts = {rule = "admission", batch = 4, group = 2, slots = 64, tokens = 2000.0, tokens_cv = 0.0}
shares = { generation = 0.8, copies = 0.05, reading = 1.0 }
"""


@pytest.fixture
def plan(tmp_path):
    def write(more="", text=PLAN):
        path = tmp_path / "plan.toml"
        path.write_text(text + more)
        return path

    return write


def relative_seconds(updates, eta, generation, training):
    """Time of equal rollouts: a batch begins with the version that the allowance asks for."""
    published = dict.fromkeys(range(-eta, 1), 0.0)
    for n in range(1, updates + 1):
        complete = published[n - 1 - eta] + generation
        published[n] = max(published[n - 1], complete) + training
    return published[updates] / (updates * (generation + training))


@pytest.mark.parametrize("generation", [0.3, 0.8])
def test_equal_rollouts_take_the_seconds_of_a_pipeline_with_as_many_batches(plan, generation):
    path = plan(text=PLAN.replace("generation = 0.8", f"generation = {generation}"))
    for row in predict_allowances(load_spec(Allowances, path), path):
        expected = 1000.0 * relative_seconds(40, row.allowance, generation, 1.0 - generation)
        assert row.seconds == pytest.approx(expected, rel=2e-3)  # rollouts begin with a decode step
        assert row.low == row.seconds == row.high


def test_drawn_shares_widen_the_interval_and_the_command_writes_the_same_rows(plan, tmp_path):
    drawn = '[[uncertain]]\nkey = "shares.generation"\nlaw = "uniform"\nlow = 0.3\nhigh = 0.9\n'
    path = plan(drawn, PLAN.replace("draws = 1", "draws = 9"))
    found = list(predict_allowances(load_spec(Allowances, path), path))
    assert all(row.low < row.seconds < row.high for row in found)
    assert main(["predict", str(path), "--out", str(tmp_path / "out.csv")]) == 0
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seconds"] for row in rows] == [f"{row.seconds:.0f}" for row in found]


def test_shares_of_more_than_an_update_are_refused(plan):
    path = plan(text=PLAN.replace("copies = 0.05", "copies = 0.5"))
    with pytest.raises(UserError, match=r"copies: 0\.5 is not allowed; allowed: at most 0\.2"):
        load_spec(Allowances, path)


def test_rollouts_of_unequal_lengths_wait_for_each_other_only_where_generators_drain(plan):
    seconds = {}
    for way in ("between", "drain"):
        text = PLAN.replace("tokens_cv = 0.0", "tokens_cv = 1.0")
        path = plan(text=text.replace("draws = 1", f'draws = 1\npublish = ["{way}"]'))
        seconds[way] = next(predict_allowances(load_spec(Allowances, path), path)).seconds
    assert seconds["between"] < seconds["drain"] < 1000.0


def test_equal_rollouts_of_a_window_that_is_bounded_by_the_allowance_are_not_thrown_away(plan):
    admitted, bounded = (
        list(predict_allowances(load_spec(Allowances, path), path))
        for path in (plan(), plan(text=PLAN.replace("admission", "window")))
    )
    for row, other in zip(admitted, bounded, strict=True):
        assert other.seconds == pytest.approx(row.seconds, rel=5e-3)


def test_either_of_two_whole_numbers_is_drawn_as_one(plan):
    drawn = '[[uncertain]]\nkey = "rollouts.slots"\nlaw = "either"\nlow = 2\nhigh = 64\n'
    path = plan(drawn, PLAN.replace("draws = 1", "draws = 4"))
    assert len(list(predict_allowances(load_spec(Allowances, path), path))) == 3


@pytest.mark.parametrize("name", ["rl", "rl-mended"])
def test_the_published_prediction_has_a_row_for_each_allowance_of_its_plan(name):
    planned = load_spec(Allowances, ROOT / f"reproductions/predictions/{name}.toml")
    with (ROOT / f"reports/published/predictions/{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [int(row["allowance"]) for row in rows] == list(planned.allowances)
    for row in rows:
        low, seconds, high = (float(row[name]) for name in ("low", "seconds", "high"))
        assert 0.0 < low < seconds < high < planned.synchronous_s
