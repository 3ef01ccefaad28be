"""Learning-rate schedules of the share of training that is done, applied at every fold.

Fold v of F, from 0, has the share ``v / F``. Step k of the n local steps of a contribution that
read version v has the share ``(v + k / n) / F``, also if other folds come before its own. So one
worker has the learning rates of a plain loop in which step i of N has the share ``i / N``.

- `Cosine`: Loshchilov and Hutter (arXiv 1608.03983), one period without restarts.
- `Linear`, `Warmup`, `Steps`: as in common training recipes.
- `Rates`: the learning rates of one run, for executors.

Any `Schedule` that overrides `factor_at` is applied in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi

from harness.algorithms.schedules import Constant, Schedule
from harness.base.settings import Spec, setting


def _warm_up(share: float, warmup: float) -> float | None:
    """The factor within the warm-up, from 0 to 1; None after it."""
    return share / warmup if share < warmup else None


@dataclass(frozen=True)
class Cosine(Spec, Schedule):
    """Linear warm-up, then half a cosine from ``rate`` to ``floor * rate``.

    Args:
        rate: the largest learning rate.
        warmup: share of training for the warm-up, which begins at 0.
        floor: learning rate at the end, as a share of ``rate``.

    Examples:
        >>> [Cosine(0.1, warmup=0.5).factor_at(share) for share in (0.0, 0.25, 0.5, 0.75)]
        [0.0, 0.5, 1.0, 0.5]
    """

    rate: float = setting(above=0.0)
    warmup: float = setting(0.05, at_least=0.0, at_most=1.0)
    floor: float = setting(0.0, at_least=0.0, at_most=1.0)

    def factor_at(self, share: float) -> float:
        """See `Schedule`."""
        if (warm := _warm_up(share, self.warmup)) is not None:
            return warm
        progress = (share - self.warmup) / (1.0 - self.warmup)
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + cos(pi * progress))


@dataclass(frozen=True)
class Linear(Spec, Schedule):
    """Linear warm-up, then a linear decay from ``rate`` to ``floor * rate``.

    Args:
        rate: the largest learning rate.
        warmup: share of training for the warm-up, which begins at 0.
        floor: learning rate at the end, as a share of ``rate``.
    """

    rate: float = setting(above=0.0)
    warmup: float = setting(0.05, at_least=0.0, at_most=1.0)
    floor: float = setting(0.0, at_least=0.0, at_most=1.0)

    def factor_at(self, share: float) -> float:
        """See `Schedule`."""
        if (warm := _warm_up(share, self.warmup)) is not None:
            return warm
        progress = (share - self.warmup) / (1.0 - self.warmup)
        return 1.0 - (1.0 - self.floor) * progress


@dataclass(frozen=True)
class Warmup(Spec, Schedule):
    """Linear warm-up from 0, then constant.

    Args:
        rate: learning rate after the warm-up.
        warmup: share of training for the warm-up.
    """

    rate: float = setting(above=0.0)
    warmup: float = setting(0.05, at_least=0.0, at_most=1.0)

    def factor_at(self, share: float) -> float:
        """See `Schedule`."""
        warm = _warm_up(share, self.warmup)
        return 1.0 if warm is None else warm


@dataclass(frozen=True)
class Steps(Spec, Schedule):
    """Multiplied by ``by`` at each share of training in ``at``.

    Args:
        rate: the initial learning rate.
        at: shares of training, in [0, 1], at which the learning rate changes.
        by: factor of the learning rate at each of these shares.
        warmup: share of training for a linear warm-up from 0.

    Examples:
        >>> [Steps(1.0, by=0.5).factor_at(share) for share in (0.0, 0.5, 0.75)]
        [1.0, 0.5, 0.25]
    """

    rate: float = setting(above=0.0)
    at: tuple[float, ...] = setting((0.5, 0.75), at_least=0.0, at_most=1.0)
    by: float = setting(0.1, above=0.0)
    warmup: float = setting(0.0, at_least=0.0, at_most=1.0)

    def factor_at(self, share: float) -> float:
        """See `Schedule`."""
        warm = _warm_up(share, self.warmup)
        reached = sum(share >= edge for edge in self.at)
        return (1.0 if warm is None else warm) * self.by**reached


class StepRates(float):
    """Learning rates of a contribution's local steps; as a number, that of the first one.

    Attributes:
        steps: the learning rate of each local step.
    """

    steps: tuple[float, ...]

    def __new__(cls, steps: Sequence[float]) -> StepRates:
        """Make the number of the first step."""
        number = super().__new__(cls, steps[0])
        number.steps = tuple(steps)
        return number


def rates_of(rate: float, steps: int) -> Sequence[float]:
    """The learning rate of each of ``steps`` local steps.

    Args:
        rate: one learning rate for all, or a `StepRates` with one for each.
        steps: number of local steps.
    """
    return rate.steps if isinstance(rate, StepRates) else [rate] * steps


ONE = Constant(1.0)


@dataclass(frozen=True)
class Rates:
    """Learning rates of a run's folds and local steps, by version; see the module's docstring.

    Args:
        schedule: schedule of the run.
        folds: F, the number of folds of the whole run.
    """

    schedule: Schedule = ONE
    folds: int = 1

    @property
    def vary(self) -> bool:
        """Whether learning rates differ from fold to fold."""
        return self.schedule.varies

    def fold_rate(self, rate: float, version: int) -> float:
        """The learning rate of the fold that follows a version.

        Args:
            rate: the pace's learning rate.
            version: number of folds before it.
        """
        return rate * self.schedule.factor_at(version / self.folds) if self.vary else rate

    def step_rates(self, rate: float, version: int, steps: int) -> float:
        """The learning rates of a contribution's local steps, as `StepRates` if they vary.

        Args:
            rate: the pace's learning rate.
            version: version that its worker read.
            steps: number of local steps.
        """
        if not self.vary:
            return rate
        total, before = self.folds * steps, version * steps
        shares = [(before + k) / total for k in range(steps)]
        return StepRates([rate * self.schedule.factor_at(share) for share in shares])


STEADY = Rates()
"""The same learning rate for all folds of a segment."""
