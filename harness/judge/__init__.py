"""Statistics, verdicts and the results file; nothing here trains or draws.

``statistics`` turns values over seeds into 95% intervals, ``utterances`` does so
for errors over seeds and test utterances, ``claims`` turns intervals into verdicts,
``parts`` judges whole claims and computes the power of their design, ``builders`` turns
finished runs into exhibits and claims, and ``results`` defines the file that a
reproduction writes and a report reads.
"""

from harness.judge.claims import (
    ABOVE,
    BELOW,
    Rule,
    Verdict,
    all_of,
    holm,
    relative_error,
    rule_at_least,
    rule_at_most,
    rule_between,
    rule_near,
)
from harness.judge.interval import Interval, Sample
from harness.judge.parts import finds, power
from harness.judge.results import (
    Claim,
    Condition,
    Exhibit,
    Part,
    Results,
    Row,
    read_results,
    write_results,
)
from harness.judge.statistics import (
    bounded_difference_ci,
    interval_of,
    mean_ci,
    paired_difference_ci,
    rank_correlation_ci,
    ratio_ci,
)
from harness.judge.utterances import rate_ci, rate_difference_ci, rate_ratio_ci

__all__ = [
    "ABOVE",
    "BELOW",
    "Claim",
    "Condition",
    "Exhibit",
    "Interval",
    "Part",
    "Results",
    "Row",
    "Rule",
    "Sample",
    "Verdict",
    "all_of",
    "bounded_difference_ci",
    "finds",
    "holm",
    "interval_of",
    "mean_ci",
    "paired_difference_ci",
    "power",
    "rank_correlation_ci",
    "rate_ci",
    "rate_difference_ci",
    "rate_ratio_ci",
    "ratio_ci",
    "read_results",
    "relative_error",
    "rule_at_least",
    "rule_at_most",
    "rule_between",
    "rule_near",
    "write_results",
]
