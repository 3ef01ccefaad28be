"""Word errors of paper 2's settings, the cost of changes in word errors, and their intervals.

A claim is judged on the errors of all test sets together: one set of a small corpus is a few
thousand words, and the paper's losses are a few in a hundred of them (decision record on paper 2).
The sets that the paper prints are shown beside it. Statistics are ours, the paper's, and the
paper's at our level of errors.

A ratio of two rates is nearly linear in errors near their means, so its deviation is carried
by each utterance of each seed as ``(a - (A/B) b) / B`` (the delta method). A difference of two
ratios is then a sum of such shares, and its interval that of a rate (``utterances``), with
everything paired by seed and by utterance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from harness.judge.builders import UNKNOWN, Runs, unless_missing
from harness.judge.claims import Rule
from harness.judge.parts import Quantity, side_of_zero
from harness.judge.results import Row
from harness.judge.statistics import Array, Interval
from harness.judge.utterances import Counts, rate_ci, rate_difference_ci, rate_ratio_ci, seed_rates
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging.prediction import REPORTED
from reproductions.run_metrics import errors_of_utterances, hashes, lengths_of_utterances

LABELS = {
    "swb": "SWB",
    "callhome": "CallHome",
    "hub5-swb": "Hub5'01 SWB",
    "swb2p3": "Hub5'01 SWB2P3",
    "swb-cell": "Hub5'01 SWB-Cell",
}

ALL = "all sets"

MAIN = 2
"""Number of main test sets, a corpus's first: SWB and CallHome in tables 2 to 6."""


class Errors(NamedTuple):
    """Word errors ``[S, U]`` of S seeds on U utterances, and words said in each.

    ``[U]`` where all seeds share a corpus, else ``[S, U]``.
    """

    wrong: np.ndarray
    said: np.ndarray


def count_errors(subject: Subject, runs: Sequence[Run], test: str = ALL) -> Errors:
    """Word errors of each seed's run after its last pass, on a test set or on all of them."""
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


def paper_error_rate(setting: str, test: str) -> float | None:
    """The paper's word error rate (%), where it prints one."""
    return REPORTED["wer"].get(setting, {}).get(test)


def row(subject: Subject, runs: Runs, setting: str, test: str, label: str, column: str) -> Row:
    """A table's cell: the word error rate (%) of a setting on a set."""
    rate = 100.0 * _rate(subject, runs[setting], test)
    paper = paper_error_rate(setting, test)
    return Row.from_interval(label, column, paper, rate, hashes(runs[setting]))


@unless_missing(UNKNOWN)
def _rate(subject: Subject, runs: Sequence[Run], test: str) -> Interval:
    return rate_ci(*count_errors(subject, runs, test))


def loss_difference_ci(a: Counts, b: Counts, c: Counts, d: Counts, lengths: Counts) -> Interval:
    """Difference of two relative losses, of ``a`` to ``b`` and ``c`` to ``d``: A / B - C / D.

    Args:
        a: errors of a setting, [S, U]; the others are on the same seeds and utterances.
        b: errors of its baseline.
        c: errors of another setting.
        d: errors of that one's baseline.
        lengths: reference length per utterance, [U] or [S, U].

    Raises:
        ValueError: shapes do not fit, or nothing was tested.
    """
    for errors in (a, b, c, d):  # shapes are checked before anything is divided
        rate_ci(errors, lengths)
    if not (b.sum() and d.sum()):
        return Interval(np.nan)
    loss, ratio = _linearise(a, b, lengths)
    second, second_ratio = _linearise(c, d, lengths)
    return rate_ci(loss - second + (ratio - second_ratio) * lengths, lengths)


def _linearise(a: Counts, b: Counts, lengths: Counts) -> tuple[Array, float]:
    """Contribution of each utterance to A / B beyond its mean, [S, U], and A / B itself."""
    rate = float(seed_rates(b, lengths).mean())
    ratio = float(seed_rates(a, lengths).mean()) / rate
    return (np.asarray(a, np.float64) - ratio * np.asarray(b, np.float64)) / rate, ratio


Statistic = Callable[..., Interval]


@unless_missing(UNKNOWN)
def error_statistic(
    subject: Subject, runs: Runs, settings: Sequence[str], statistic: Statistic, test: str = ALL
) -> Interval:
    """A statistic of some settings' errors on a set, or on all of them together."""
    counts = [count_errors(subject, runs[name], test) for name in settings]
    return statistic(*(errors.wrong for errors in counts), counts[0].said)


@unless_missing(UNKNOWN)
def frame_statistic(
    subject: Subject, runs: Runs, settings: Sequence[str], statistic: Statistic
) -> Interval:
    """The same of frame errors, each seed's mean over the test sets."""
    frames = [_frame_errors(subject, runs[name]) for name in settings]
    return statistic(*frames, np.ones_like(frames[0]))


def _frame_errors(subject: Subject, runs: Sequence[Run]) -> np.ndarray:
    """Frame error of each seed's last model, mean over the test sets, [S, 1]."""
    keys = [f"{test}_frame_error/iterate" for test in subject.corpus.tests]
    return np.array([[np.mean([run.summary[key] for key in keys])] for run in runs])


def judge_errors(
    subject: Subject,
    runs: Runs,
    settings: Sequence[str],
    statistic: Statistic,
    label: str,
    rule: Rule | str,
    by_set: str | None = "",
) -> Iterator[Quantity]:
    """A judged quantity of word errors, of frame errors, and that of words on each main set.

    Args:
        subject: the report's.
        runs: finished runs by setting.
        settings: those compared.
        statistic: of these errors; differences of rates are in percent.
        label: of the quantity.
        rule: its band, or the side of zero.
        by_set: begins the labels of the sets, which are shown and not judged; None for no sets.
    """
    scale = 100.0 if statistic in (rate_difference_ci, gain_difference_ci) else 1.0
    true = true_value(subject, runs, settings, statistic)
    true = None if true is None else scale * true
    paper = None if true is None else round(true, 3)
    band = rule if isinstance(rule, Rule) else side_of_zero("", UNKNOWN, rule).rule
    words = scale * error_statistic(subject, runs, settings, statistic)
    frames = scale * frame_statistic(subject, runs, settings, statistic)
    side = f"{rule} 0" if isinstance(rule, str) else None
    yield Quantity(f"{label}, words", side or paper, words, band, true, "words")
    yield Quantity(f"{label}, frames", side, frames, band, measure="frames")
    for test in main_tests(subject) if by_set is not None else ():
        rate = scale * error_statistic(subject, runs, settings, statistic, test)
        printed = printed_statistic(settings, test, statistic)
        yield Quantity(f"{by_set}{label_of(test)}", printed, rate)


def printed_statistic(settings: Sequence[str], test: str, statistic: Statistic) -> float | None:
    """The statistic of the paper's own rates, if it prints them all."""
    in_print = [paper_error_rate(name, test) for name in settings]
    rates = [rate for rate in in_print if rate is not None]
    return round(PAPERS[statistic](rates), 3) if len(rates) == len(in_print) else None


def true_value(
    subject: Subject, runs: Runs, settings: Sequence[str], statistic: Statistic
) -> float | None:
    """The statistic if the paper's relative effects were ours, on all sets it prints together.

    Its rates are scaled so that the last setting has our rate. None if it prints no set.
    """
    tests = [t for t in LABELS if all(paper_error_rate(name, t) is not None for name in settings)]
    if not tests:
        return None
    rates = [sum(paper_error_rate(name, t) or 0.0 for t in tests) for name in settings]
    ours = error_statistic(subject, runs, settings[-1:], rate_ci).estimate
    return PAPERS[statistic]([ours * rate / rates[-1] for rate in rates])


def gain_difference_ci(a: Counts, b: Counts, c: Counts, d: Counts, lengths: Counts) -> Interval:
    """(A − B) − (C − D), paired."""
    return rate_difference_ci(a - b, c - d, lengths)


PAPERS: dict[Statistic, Callable[[Sequence[float]], float]] = {
    loss_difference_ci: lambda r: r[0] / r[1] - r[2] / r[3],
    rate_difference_ci: lambda r: r[0] - r[1],
    rate_ratio_ci: lambda r: r[0] / r[1],
    gain_difference_ci: lambda r: (r[0] - r[1]) - (r[2] - r[3]),
}
"""Each statistic of the rates that the paper prints."""
