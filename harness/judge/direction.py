"""The direction of a run's metric: whether less of it is better, or more.

Comparisons, searches and targets work on *errors*, of which less is better: the values of the
metric, negated where more is better.
"""

from __future__ import annotations

import math

from harness.store import Run

BETTER, MORE = "better", "more"
"""Key and value in the identity of a problem whose first metric is better when it is more."""


def is_maximised(run: Run) -> bool:
    """Whether more of the run's metric is better."""
    return run.config.get("problem", {}).get(BETTER) == MORE


def as_error(run: Run, value: float) -> float:
    """A value of the run's metric as an error, of which less is better; its own inverse."""
    return -value if is_maximised(run) else value


def final_error(run: Run, judged: str) -> float:
    """The last error of the candidate that would be deployed.

    Args:
        run: a finished run.
        judged: name of the metric, without a candidate's.

    Returns:
        The error; infinite if the run diverged, or if the metric is then not finite.
    """
    if run.status != "done":
        return math.inf
    error = as_error(run, float(run.summary[run.deployed(judged)]))
    return error if math.isfinite(error) else math.inf
