"""Statistics, verdicts and the results file; nothing here trains or draws.

``statistics`` turns values over seeds into 95% intervals, ``utterances`` does so
for errors over seeds and test utterances, ``claims`` turns intervals into
verdicts, ``makers`` turns finished runs into exhibits and claims, and ``results``
is what a reproduction writes and a report reads.
"""

from harness.judge.claims import (
    Verdict,
    all_of,
    judge_direction,
    judge_prediction,
    judge_size,
    relative_error,
)
from harness.judge.reading import read_results
from harness.judge.results import Claim, Exhibit, Part, Results, Row, write_results
from harness.judge.statistics import (
    Interval,
    bounded_difference_ci,
    mean_ci,
    paired_difference_ci,
    rank_correlation_ci,
    ratio_ci,
    wilson,
)
from harness.judge.utterances import (
    bootstrap_rate_ci,
    rate_ci,
    rate_difference_ci,
    rate_ratio_ci,
)

__all__ = [
    "Claim",
    "Exhibit",
    "Interval",
    "Part",
    "Results",
    "Row",
    "Verdict",
    "all_of",
    "bootstrap_rate_ci",
    "bounded_difference_ci",
    "judge_direction",
    "judge_prediction",
    "judge_size",
    "mean_ci",
    "paired_difference_ci",
    "rank_correlation_ci",
    "rate_ci",
    "rate_difference_ci",
    "rate_ratio_ci",
    "ratio_ci",
    "read_results",
    "relative_error",
    "wilson",
    "write_results",
]
