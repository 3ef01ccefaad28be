"""Which of two errors is less, also where more of the metric is better or it is negative."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.direction import as_error, excess, is_maximised
from harness.store import Run


def run(**config: object) -> Run:
    return Run("0" * 64, config, "done", {}, "", Path("nowhere"))


def test_only_a_run_that_says_so_has_a_metric_of_which_more_is_better():
    assert is_maximised(run(problem={"better": "more"}))
    assert not any(is_maximised(each) for each in (run(problem={}), run(corpus="yesno")))


def test_an_accuracy_is_negated_to_be_an_error_and_back():
    accuracy = run(problem={"better": "more"})

    assert as_error(accuracy, as_error(accuracy, 0.9)) == 0.9
    assert as_error(accuracy, 0.9) < as_error(accuracy, 0.8)


@given(st.floats(-1e6, 1e6).filter(lambda x: abs(x) > 1e-6), st.floats(0.0, 1.0))
def test_a_margin_goes_by_the_size_of_a_number_not_by_its_sign(reference: float, share: float):
    assert excess(reference + share * abs(reference), reference) == pytest.approx(share, abs=1e-9)


def test_nothing_is_a_share_of_zero():
    assert (excess(0.0, 0.0), excess(1.0, 0.0), excess(-1.0, 0.0)) == (0.0, math.inf, -math.inf)
