"""The law of averages: the excess error of N workers after R averages, fitted, checked and shown.

``error(N) / error(1) = 1 + A N^w R^-a``, both on the same data. With the error of one worker
falling as ``D^-b`` in the data D, and D growing as ``N R``, it also predicts the number of workers
that pays: in the same time, R averages, more workers use more data and lose more by averaging.

The law is fitted to cells and checked on other runs. Its constants and predictions are means over
seeds; their intervals are a jackknife's. Exhibits show the cells that it was fitted to, its
predictions, and the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from harness.judge.builders import NO_ROWS, UNKNOWN, Maker, Runs, unless_missing
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging import errors
from reproductions.paper2_ng_averaging.experiments import (
    BEYOND,
    SERIAL,
    SHARES,
    SIZES,
    STEPS,
    cell,
    gpus,
    serial,
)
from reproductions.paper2_ng_averaging.prediction import REPORTED, averaging, cluster, load_fit
from reproductions.run_metrics import hashes

WORKERS, AVERAGES = 16.0, 100.0
"""Units of both, so that A is the excess of 16 workers after 100 averages."""

LIMITS = ((math.log(1e-6), -3.0, 0.0), (math.log(1e3), 3.0, 3.0))
"""Limits of log A, w and a; a is at least 0, so that more averages never harm."""


class Cell(NamedTuple):
    """A measurement: the error of ``workers`` over that of one, after ``averages``."""

    workers: float
    averages: float
    ratio: float


@dataclass(frozen=True)
class Law:
    """The law with its constants.

    Args:
        size: A, in the units above.
        by_workers: w.
        by_averages: a.
    """

    size: float
    by_workers: float
    by_averages: float

    def ratio(self, workers: float, averages: float) -> float:
        """The law's error of ``workers`` over that of one, after ``averages``."""
        grown = (workers / WORKERS) ** self.by_workers
        return 1.0 + self.size * grown * (averages / AVERAGES) ** -self.by_averages

    def most_that_pay(self, averages: float, by_data: float) -> float:
        """The number of workers at which one more, in the same time, no longer helps.

        The error goes as ``N^-b (1 + x)`` with ``x`` as ``N^w``: it is lowest where
        ``x = b / (w - b)``.

        Args:
            averages: R, the time.
            by_data: b, from `slope`.

        Returns:
            1 if more data gain nothing, infinity if the loss never outgrows their gain.
        """
        if by_data <= 0.0:
            return 1.0
        if self.by_workers <= by_data:
            return math.inf
        excess = by_data / (self.by_workers - by_data)
        unit = excess / self.size * (averages / AVERAGES) ** self.by_averages
        return WORKERS * unit ** (1.0 / self.by_workers)


def fit(cells: Sequence[Cell]) -> Law:
    """The law that comes closest to measured ratios, by least squares of the ratios themselves.

    An excess that chance has made negative counts as it is: logarithms would drop it.

    Args:
        cells: at least three, of two numbers of workers and two of averages.

    Raises:
        ValueError: a ratio that is not finite.
    """
    from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

    workers, averages, ratios = (np.array(column) for column in zip(*cells, strict=True))

    def residuals(constants: Sequence[float]) -> Any:
        size, by_workers, by_averages = constants
        grown = size + by_workers * np.log(workers / WORKERS)
        return 1.0 + np.exp(grown - by_averages * np.log(averages / AVERAGES)) - ratios

    # The search starts from log A, which a mean excess below 0 does not have.
    excess = max(float(np.mean(ratios)) - 1.0, 1e-3)
    start = (math.log(excess), 0.5, 0.5)
    found = cast(Any, optimize).least_squares(
        residuals, start, bounds=LIMITS, x_scale=(1.0, 0.3, 0.3)
    )
    size, by_workers, by_averages = map(float, found.x)
    return Law(math.exp(size), by_workers, by_averages)


def slope(data: Sequence[float], errors: Sequence[float]) -> float:
    """b, the power with which the error of one worker falls as its data grow."""
    return -float(np.polyfit(np.log(data), np.log(errors), 1)[0])


def pseudo_values(statistic: Callable[[Sequence[int]], float], seeds: int) -> list[float]:
    """The jackknife's values of a statistic, one a seed: their mean and scatter bound it.

    Args:
        statistic: function of the indices of seeds.
        seeds: S.
    """
    every = range(seeds)
    if seeds < 2:
        return [statistic(every)]
    whole = statistic(every)
    left_out = ([s for s in every if s != out] for out in every)
    return [seeds * whole - (seeds - 1) * statistic(rest) for rest in left_out]


WHOLE = "ng_1"

Statistic = Callable[[Sequence[int]], float]

Array = npt.NDArray[np.float64]


def cells_of(step: str) -> dict[str, str]:
    """The cells that the law of an outer step is fitted to, with one worker on the same data."""
    return {cell(step, size, share): serial(share) for size in SIZES for share in SHARES}


def settings_of_step(step: str) -> tuple[str, ...]:
    """The settings behind the law of an outer step."""
    return (WHOLE, *map(serial, SHARES), *cells_of(step))


def paper_averages(workers: int) -> float:
    """Averages in a run of the paper: about 8,900 on 16 GPUs."""
    return REPORTED["paper"]["epochs"] * averaging().epoch_folds(cluster(load_fit().free), workers)


def place(group: Sequence[Run]) -> tuple[int, float]:
    """Workers and averages of a setting, these as a mean over seeds: corpora differ in size."""
    folds = [run.summary["folds"] for run in group]
    return group[0].config["workers"], float(np.mean(folds))


@dataclass(frozen=True)
class Excess:
    """Errors of settings over that of one worker on the same data, and the law of an outer step.

    Args:
        subject: scale and corpus of the report.
        runs: the finished runs of `settings_of_step`, and those asked for by name.
        step: name of the server's outer step among the cells.
        read: cache of error rates ``[S]``, by setting.
        fitted: cache of fitted laws, by their seeds.
    """

    subject: Subject
    runs: Runs
    step: str
    read: dict[str, Array] = field(default_factory=dict[str, Array])
    fitted: dict[tuple[int, ...], Law] = field(default_factory=dict[tuple[int, ...], Law])

    @unless_missing(UNKNOWN)
    def error_ratio(self, name: str, alone: str = WHOLE) -> Interval:
        """The error of a setting over that of one worker, or of another, over seeds."""
        return ratio_ci(self._rates(name).tolist(), self._rates(alone).tolist())

    def law_ratio(self, workers: int, after: float) -> Interval:
        """The law's error of ``workers`` over that of one, over seeds."""
        return self._jackknife(lambda seeds: self._law(seeds).ratio(workers, after))

    def law_ratio_of(self, name: str) -> Interval:
        """`law_ratio` at the workers and averages of a setting."""
        return self._jackknife(lambda seeds: self._law(seeds).ratio(*place(self.runs[name])))

    def constants(self) -> dict[str, Interval]:
        """The law's constants, by name."""
        return {
            name: self._jackknife(lambda seeds, name=name: getattr(self._law(seeds), name))
            for name in ("size", "by_workers", "by_averages")
        }

    def most_that_pay(self, name: str) -> Interval:
        """The workers beyond which more, in the time of a setting, no longer help."""

        def most(seeds: Sequence[int]) -> float:
            return self._law(seeds).most_that_pay(place(self.runs[name])[1], self._slope(seeds))

        return self._jackknife(most)

    def law_ratio_between(self, many: str, few: str, share: float) -> Interval:
        """The error of a setting over that of one on a share of its data, by the law."""

        def ratio(seeds: Sequence[int]) -> float:
            law, grown = self._law(seeds), share ** self._slope(seeds)
            above, below = (law.ratio(*place(self.runs[name])) for name in (many, few))
            return grown * above / below

        return self._jackknife(ratio)

    def _law(self, seeds: Sequence[int]) -> Law:
        """The law fitted to the cells of some seeds."""

        def cell_of(name: str, alone: str) -> Cell:
            ratio = self._rates(name)[list(seeds)].mean() / self._rates(alone)[list(seeds)].mean()
            return Cell(*place(self.runs[name]), float(ratio))

        # Every jackknifed statistic uses the law of the same subsets of seeds.
        known = tuple(seeds)
        if known not in self.fitted:
            self.fitted[known] = fit([cell_of(*names) for names in cells_of(self.step).items()])
        return self.fitted[known]

    def _slope(self, seeds: Sequence[int]) -> float:
        means = [float(self._rates(serial(share))[list(seeds)].mean()) for share in SHARES]
        return slope(list(SHARES.values()), means)

    def _rates(self, name: str) -> Array:
        """The error rate of each seed."""
        if name not in self.read:
            wrong, said = errors.count_errors(self.subject, self.runs[name])
            self.read[name] = wrong.sum(-1) / said.sum(-1)
        return self.read[name]

    @unless_missing(UNKNOWN)
    def _jackknife(self, statistic: Statistic) -> Interval:
        return mean_ci(pseudo_values(statistic, len(self.runs[WHOLE])))


NOTHING = 1e-6

NAMES = {"mean": "averaging", "bmuf": "block momentum", "outer": "outer Nesterov"}

HELD_OUT = {
    "mean": {n: f"ng_{n}" for n in (8, 16, 32, BEYOND)},
    "bmuf": {16: "bmuf"},
    "outer": {16: "outer"},
}
"""Settings on the whole data, by outer step and workers; no cell has the whole data."""

CONSTANTS = {
    "size": "A, at 16 workers and 100 averages",
    "by_workers": "w, power of workers",
    "by_averages": "a, power of averages",
}

FORETOLD, MEASURED, APART = "foretold", "measured", "measured − foretold"

ON_HALF = "measured on half the data"

PAYS = cell("mean", SIZES[1], "half")
"""Overnight, half as many workers as the most on half the data: as many averages, the same time."""


def law(subject: Subject, runs: Runs) -> Exhibit:
    """Excess errors of plain averaging against averages: cells, and the law through them."""
    return _figure("p2.law", subject, runs, ("mean",))


def momenta(subject: Subject, runs: Runs) -> Exhibit:
    """The same with a momentum on the server."""
    return _figure("p2.law-momenta", subject, runs, ("bmuf", "outer"))


def _figure(id_: str, subject: Subject, runs: Runs, steps: Sequence[str]) -> Exhibit:
    rows = [row for step in steps for row in _curves(Excess(subject, runs, step))]
    drawn = any(_whole(Excess(subject, runs, step)) for step in steps)
    held_out = "A fourth point" if drawn else "What p2.law-checked shows"
    return Exhibit(
        id_,
        "figure",
        "Word error over that of one GPU on the same data, against the number of averages: "
        f"{' and '.join(NAMES[step] for step in steps)}",
        tuple(rows),
        axes={"x": "averages in a run", "y": "error over that of one GPU"},
        draw={"as": "curves", "x_scale": "log", "x_ticks": _ticks(rows)},
        paper_label="Beyond the paper",
        note="The law is 1 + A (GPUs/16)^w (averages/100)^−a, fitted to an eighth, a quarter and "
        f"half of the data. {held_out}, on the whole data, was held out. Every cell has the rate "
        f"found on a quarter of the data. Whole rounds only: {_describe_lost_frames(runs, steps)}.",
    )


@unless_missing("how many frames that leaves out is not known")
def _describe_lost_frames(runs: Runs, steps: Sequence[str]) -> str:
    """The frames that one worker sees and many do not, as their rounds do not share them out."""
    names = [names for step in steps for names in cells_of(step).items()]
    shares = dict[str, float]()
    for name, alone in names:
        workers, rounds = place(runs[name])
        share = 1.0 - workers * rounds / place(runs[alone])[1]
        shares[f"{gpus(workers)} on {SHARES[alone.removeprefix(f'{SERIAL}_')]:.3g}"] = share
    most = max(shares, key=lambda label: shares[label])
    return f"{most} of the data leave out {shares[most]:.0%} of the frames that one sees, the most"


def _whole(excess: Excess) -> list[str]:
    """The settings on the whole data with as many workers as a cell."""
    drawn = {excess.runs[name][0].config["workers"] for name in cells_of(excess.step)}
    return [name for n, name in HELD_OUT[excess.step].items() if n in drawn]


def _ticks(rows: Sequence[Row]) -> list[float]:
    """1, 2 and 5 of every power of ten among the rows' columns."""
    columns = [float(row.column) for row in rows] or [1.0]
    ticks = (m * 10.0**power for power in range(7) for m in (1, 2, 5))
    return [tick for tick in ticks if min(columns) <= tick <= max(columns)]


def law_check(subject: Subject, runs: Runs) -> Exhibit:
    """The law's predictions for settings that it was not fitted to, and its constants."""
    rows: list[Row] = []
    for step, names in HELD_OUT.items():
        excess = Excess(subject, runs, step)
        for n, name in names.items():
            label = f"{NAMES[step]}, {gpus(n)}"
            behind = hashes(runs[name], *(runs[each] for each in settings_of_step(step)))
            rows += _comparison_rows(
                label, excess.law_ratio_of(name), excess.error_ratio(name), behind
            )
            rows += _half_data_rows(label, excess, name)
    return Exhibit(
        "p2.law-checked",
        "table",
        "Error over that of one GPU on the whole data: foretold by the law, and measured",
        (*rows, *_whether_more_pay(subject, runs)),
        paper_label="Beyond the paper",
        note="The row without the law carries over the ratio that was "
        f"{ON_HALF}. {_constants_told(subject, runs)}",
    )


def _half_data_rows(label: str, excess: Excess, name: str) -> list[Row]:
    """The loss of as many workers on half the data, if a cell has them: the law must be nearer."""
    runs, alone = excess.runs, serial("half")
    on_half = [each for each, one in cells_of(excess.step).items() if one == alone]
    workers = {each: runs[each][0].config["workers"] for each in (name, *on_half)}
    return [
        Row.from_interval(
            label, ON_HALF, None, excess.error_ratio(each, alone), hashes(runs[each], runs[alone])
        )
        for each in on_half
        if workers[each] == workers[name]
    ]


def _curves(excess: Excess) -> list[Row]:
    """Measured points and the law's, for each number of workers that has cells."""
    named = {**cells_of(excess.step), **dict.fromkeys(_whole(excess), WHOLE)}
    return [row for name, alone in named.items() for row in _points(excess, name, alone)]


@unless_missing(NO_ROWS)
def _points(excess: Excess, name: str, alone: str) -> tuple[Row, ...]:
    """A setting as it was measured, and by the law."""
    workers, after = place(excess.runs[name])
    label, behind = f"{NAMES[excess.step]}, {gpus(workers)}", hashes(excess.runs[name])
    return (
        Row.from_interval(label, after, None, excess.error_ratio(name, alone), behind),
        Row.from_interval(f"law, {label}", after, None, excess.law_ratio(workers, after), behind),
    )


def _whether_more_pay(subject: Subject, runs: Runs) -> list[Row]:
    """The most workers on the whole data, against fewer on half of it."""
    excess, name = Excess(subject, runs, "mean"), f"ng_{BEYOND}"
    few, many = (gpus(runs[each][0].config["workers"]) for each in (PAYS, name))
    behind = hashes(runs[name], runs[PAYS])
    foretold, measured = (
        excess.law_ratio_between(name, PAYS, SHARES["half"]),
        excess.error_ratio(name, PAYS),
    )
    rows = _comparison_rows(
        f"{many} on the whole data over {few} on half", foretold, measured, behind
    )
    most = Row.from_interval(
        f"most GPUs that pay in the time of {many} on the whole data", FORETOLD, None,
        excess.most_that_pay(name), behind,
    )  # fmt: skip
    return [*rows, most]


def _comparison_rows(
    label: str, foretold: Interval, measured: Interval, behind: tuple[str, ...]
) -> list[Row]:
    apart = measured.estimate - foretold.estimate
    return [
        Row.from_interval(label, FORETOLD, None, foretold, behind),
        Row.from_interval(label, MEASURED, None, measured, behind),
        Row(label, APART, None, apart, None, behind),
    ]


def _constants_told(subject: Subject, runs: Runs) -> str:
    """The constants of every law, with their intervals."""
    told: list[str] = []
    for step, name in NAMES.items():
        found = Excess(subject, runs, step).constants()
        each = (f"{CONSTANTS[k]}: {_constant_told(k, i)}" for k, i in found.items())
        told.append(f"{name}: {'; '.join(each)}")
    return f"Constants with 95% intervals over seeds. {'. '.join(told)}."


def _constant_told(name: str, found: Interval) -> str:
    """A constant with its interval; without one where all seeds lie at a limit of the fit."""
    ends = {limit for limits in LIMITS for limit in limits} if name != "size" else set[float]()
    for end in ends:
        if max(abs(found.low - end), abs(found.high - end)) < NOTHING:
            return f"{end:g}, where the fit may go no further"
    return f"{found.estimate:.2g} ({found.low:.2g} to {found.high:.2g})"


def _settings_behind(*steps: str) -> tuple[str, ...]:
    """The settings behind the exhibits of these outer steps, each once."""
    every = [name for step in steps for name in (*settings_of_step(step), *HELD_OUT[step].values())]
    return tuple(dict.fromkeys(every))


LAW = (
    Maker("p2.law", _settings_behind("mean"), law, smoke=False, on_request=("laptop",)),
    Maker(
        "p2.law-momenta",
        _settings_behind("bmuf", "outer"),
        momenta,
        smoke=False,
        on_request=("laptop",),
    ),
    Maker(
        "p2.law-checked",
        _settings_behind(*STEPS),
        law_check,
        smoke=False,
        on_request=("laptop",),
    ),
)
