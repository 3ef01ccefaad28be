"""Word errors of paper 2's settings, by test set and over all sets together.

A claim is judged on the errors of all test sets together: one set of a small corpus is a few
thousand words, and what the paper calls a loss is a few in a hundred of them (decision
record on paper 2). The sets that the paper prints are shown beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.judge.makers import UNKNOWN, Runs, unless_missing
from harness.judge.results import Row
from harness.judge.statistics import Interval
from harness.judge.utterances import rate_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.prediction import REPORTED
from reproductions.readings import errors_of_utterances, hashes, lengths_of_utterances

LABELS = {
    "swb": "SWB",
    "callhome": "CallHome",
    "hub5-swb": "Hub5'01 SWB",
    "swb2p3": "Hub5'01 SWB2P3",
    "swb-cell": "Hub5'01 SWB-Cell",
}
ALL = "all sets"
MAIN = 2
"""How many of a corpus's sets come first: SWB and CallHome in tables 2 to 6."""


class Errors(NamedTuple):
    """Word errors ``[S, U]`` of S seeds on U utterances, and words said in each.

    ``[U]`` where all seeds share a corpus, else ``[S, U]``.
    """

    wrong: np.ndarray
    said: np.ndarray


def of(subject: Subject, runs: Sequence[Run], test: str = ALL) -> Errors:
    """What the last pass of each seed's run gets wrong on a test set, or on all of them."""
    tests = subject.corpus.tests if test == ALL else (test,)

    def wrong(name: str) -> np.ndarray:
        return errors_of_utterances(runs, lambda r: f"{name}/iterate/{r.summary['passes'] - 1}")

    return Errors(
        np.concatenate([wrong(name) for name in tests], axis=1),
        np.concatenate([lengths_of_utterances(runs, name) for name in tests], axis=-1),
    )


def main_tests(subject: Subject) -> tuple[str, ...]:
    """The sets that tables 2 to 6 show."""
    return tuple(subject.corpus.tests[:MAIN])


def label_of(test: str) -> str:
    """A set as the paper writes it."""
    return LABELS.get(test, test)


def printed(setting: str, test: str) -> float | None:
    """The paper's word error rate (%), where it prints one."""
    return REPORTED["wer"].get(setting, {}).get(test)


def row(subject: Subject, runs: Runs, setting: str, test: str, label: str, column: str) -> Row:
    """A table's cell: the word error rate (%) of a setting on a set."""
    rate = 100.0 * _rate(subject, runs[setting], test)
    paper = printed(setting, test)
    return Row.of(label, column, paper, rate, hashes(runs[setting]))


@unless_missing(UNKNOWN)
def _rate(subject: Subject, runs: Sequence[Run], test: str) -> Interval:
    return rate_ci(*of(subject, runs, test))
