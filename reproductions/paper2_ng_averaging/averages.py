"""What averaging costs by the number of averages: the law fitted to cells and checked on others.

Its constants, and what they foretell, are means over seeds; their intervals are a jackknife's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.judge.makers import UNKNOWN, Runs, unless_missing
from harness.judge.statistics import Interval, mean_ci, ratio_ci
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper2_ng_averaging import errors
from reproductions.paper2_ng_averaging.cells import SHARES, SIZES, cell, serial
from reproductions.paper2_ng_averaging.law import Cell, Law, fit, pseudo_values, slope
from reproductions.paper2_ng_averaging.prediction import REPORTED, averaging, cluster, fitted

WHOLE = "ng_1"
Statistic = Callable[[Sequence[int]], float]
Array = npt.NDArray[np.float64]


def cells_of(step: str) -> dict[str, str]:
    """The cells that the law of an outer step is fitted to, with one worker on the same data."""
    return {cell(step, size, share): serial(share) for size in SIZES for share in SHARES}


def needed(step: str) -> tuple[str, ...]:
    """The settings behind the law of an outer step."""
    return (WHOLE, *map(serial, SHARES), *cells_of(step))


def in_the_paper(workers: int) -> float:
    """Averages in a run of the paper: about 8,900 on 16 GPUs."""
    return REPORTED["paper"]["epochs"] * averaging().epoch_folds(cluster(fitted().free), workers)


def place(group: Sequence[Run]) -> tuple[int, float]:
    """Workers and averages of a setting, these as a mean over seeds: corpora differ in size."""
    folds = [run.summary["folds"] for run in group]
    return group[0].config["workers"], float(np.mean(folds))


@dataclass(frozen=True)
class Excess:
    """Errors of settings over that of one worker on the same data, and the law of an outer step.

    Args:
        subject: what the report is about.
        runs: the finished ones that are `needed`.
        step: of the server, by its name among the cells.
        read: error rates ``[S]`` that were read, by setting.
        fitted: laws that were fitted, by their seeds.
    """

    subject: Subject
    runs: Runs
    step: str
    read: dict[str, Array] = field(default_factory=dict[str, Array])
    fitted: dict[tuple[int, ...], Law] = field(default_factory=dict[tuple[int, ...], Law])

    @unless_missing(UNKNOWN)
    def measured(self, name: str, alone: str = WHOLE) -> Interval:
        """The error of a setting over that of one worker, or of another, over seeds."""
        return ratio_ci(self._rates(name).tolist(), self._rates(alone).tolist())

    def foretold(self, workers: int, after: float) -> Interval:
        """The same by the law."""
        return self._over_seeds(lambda seeds: self._law(seeds).ratio(workers, after))

    def foretold_of(self, name: str) -> Interval:
        """The same at the workers and averages of a setting."""
        return self._over_seeds(lambda seeds: self._law(seeds).ratio(*place(self.runs[name])))

    def constants(self) -> dict[str, Interval]:
        """The law's, by what they are."""
        return {
            name: self._over_seeds(lambda seeds, name=name: getattr(self._law(seeds), name))
            for name in ("size", "by_workers", "by_averages")
        }

    def most_that_pay(self, name: str) -> Interval:
        """The workers beyond which more, in the time of a setting, no longer help."""

        def most(seeds: Sequence[int]) -> float:
            return self._law(seeds).most_that_pay(place(self.runs[name])[1], self._slope(seeds))

        return self._over_seeds(most)

    def over(self, many: str, few: str, share: float) -> Interval:
        """The error of a setting over that of one on a share of its data, by the law."""

        def ratio(seeds: Sequence[int]) -> float:
            law, grown = self._law(seeds), share ** self._slope(seeds)
            above, below = (law.ratio(*place(self.runs[name])) for name in (many, few))
            return grown * above / below

        return self._over_seeds(ratio)

    def _law(self, seeds: Sequence[int]) -> Law:
        """Fitted to the cells of some seeds."""

        def of(name: str, alone: str) -> Cell:
            ratio = self._rates(name)[list(seeds)].mean() / self._rates(alone)[list(seeds)].mean()
            return Cell(*place(self.runs[name]), float(ratio))

        known = tuple(seeds)
        if known not in self.fitted:
            self.fitted[known] = fit([of(*names) for names in cells_of(self.step).items()])
        return self.fitted[known]

    def _slope(self, seeds: Sequence[int]) -> float:
        means = [float(self._rates(serial(share))[list(seeds)].mean()) for share in SHARES]
        return slope(list(SHARES.values()), means)

    def _rates(self, name: str) -> Array:
        """The error rate of each seed."""
        if name not in self.read:
            wrong, said = errors.of(self.subject, self.runs[name])
            self.read[name] = wrong.sum(-1) / said.sum(-1)
        return self.read[name]

    @unless_missing(UNKNOWN)
    def _over_seeds(self, statistic: Statistic) -> Interval:
        return mean_ci(pseudo_values(statistic, len(self.runs[WHOLE])))
