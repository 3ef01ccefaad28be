"""Which of two errors is less, also where more of the metric is better."""

from pathlib import Path

from harness.judge.direction import as_error, is_maximised
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
