"""Statistics of settings' errors: ours, the paper's, and the paper's at our level of errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.judge.makers import UNKNOWN, Runs, unless_missing
from harness.judge.parts import Quantity
from harness.judge.statistics import Interval
from harness.judge.utterances import Counts, rate_ci, rate_difference_ci, rate_ratio_ci
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging import errors
from reproductions.paper2_ng_averaging.losses import loss_difference_ci

Statistic = Callable[..., Interval]


@unless_missing(UNKNOWN)
def over_sets(
    subject: Subject,
    runs: Runs,
    settings: Sequence[str],
    statistic: Statistic,
    test: str = errors.ALL,
) -> Interval:
    """A statistic of some settings' errors on a set, or on all of them together."""
    read = [errors.of(subject, runs[name], test) for name in settings]
    return statistic(*(each.wrong for each in read), read[0].said)


def shown(
    subject: Subject,
    runs: Runs,
    settings: Sequence[str],
    statistic: Statistic,
    scale: float = 1.0,
    before: str = "",
) -> list[Quantity]:
    """The same on each main set, beside what the paper's table gives; not judged."""
    found: list[Quantity] = []
    for test in errors.main_tests(subject):
        interval = over_sets(subject, runs, settings, statistic, test)
        shown = interval if scale == 1.0 else 100.0 * interval
        label = before + errors.label_of(test)
        found.append(Quantity(label, paper(settings, test, statistic), shown))
    return found


def paper(settings: Sequence[str], test: str, statistic: Statistic) -> float | None:
    """The statistic of the paper's own rates, if it prints them all."""
    printed = [errors.printed(name, test) for name in settings]
    rates = [rate for rate in printed if rate is not None]
    return round(PAPERS[statistic](rates), 3) if len(rates) == len(printed) else None


def true_value(
    subject: Subject, runs: Runs, settings: Sequence[str], statistic: Statistic
) -> float:
    """The statistic if the paper's relative effects were ours, on all sets it prints together.

    Its rates are scaled so that the last setting has our rate.
    """
    tests = [
        t for t in errors.LABELS if all(errors.printed(name, t) is not None for name in settings)
    ]
    rates = [sum(errors.printed(name, t) or 0.0 for t in tests) for name in settings]
    ours = over_sets(subject, runs, settings[-1:], rate_ci).estimate
    return PAPERS[statistic]([ours * rate / rates[-1] for rate in rates])


def gain_difference_ci(a: Counts, b: Counts, c: Counts, d: Counts, said: Counts) -> Interval:
    """(A − B) − (C − D), paired."""
    return rate_difference_ci(a - b, c - d, said)


PAPERS: dict[Statistic, Callable[[Sequence[float]], float]] = {
    loss_difference_ci: lambda r: r[0] / r[1] - r[2] / r[3],
    rate_difference_ci: lambda r: r[0] - r[1],
    rate_ratio_ci: lambda r: r[0] / r[1],
    gain_difference_ci: lambda r: (r[0] - r[1]) - (r[2] - r[3]),
}
"""Each statistic of the rates that the paper prints."""
