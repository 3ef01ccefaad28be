"""Learning-rate schedules, and the trial descents of a rate search.

A schedule is a rule that executors call at set moments; its state is in a `Pace`. The algorithm
determines the gradient that a learning rate multiplies: **summed** over a minibatch in `AsyncSgd`
(paper 1's equation 1), **mean** in `ModelAveraging` (paper 2).

`trial_losses` runs the trial descents of a rate search, all rates at once as one replica stack.

A schedule may follow the share of training that is done, applied at every fold.

Fold v of F, from 0, has the share ``v / F``. Step k of the n local steps of a contribution that
read version v has the share ``(v + k / n) / F``, also if other folds come before its own. So one
worker has the learning rates of a plain loop in which step i of N has the share ``i / N``.

- `Cosine`: Loshchilov and Hutter (arXiv 1608.03983), one period without restarts.
- `Linear`, `Warmup`, `Steps`: as in common training recipes.
- `Rates`: the learning rates of one run, for executors.

Any `Schedule` that overrides `factor_at` is applied in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi
from typing import ClassVar

import torch
from torch import Tensor

from harness.base.settings import Spec, setting
from harness.networks.contract import Gradient, Minibatch


@dataclass
class Pace:
    """Learning rate and state of a schedule; plain numbers, for checkpoints.

    Args:
        rate: the present learning rate.
        stop: whether training is over.
        halving: whether halving has begun.
        accuracy: frame accuracy after the last pass.
        held_out: the last held-out loss.
    """

    rate: float
    stop: bool = False
    halving: bool = False
    accuracy: float | None = None
    held_out: float | None = None


class Schedule:
    """Base class of schedules: a constant learning rate. State that changes is in a `Pace`."""

    of_folds: ClassVar[bool] = True
    """Whether it can be followed in training by folds."""

    rate: float
    """The initial learning rate."""

    @property
    def varies(self) -> bool:
        """Whether learning rates follow `factor_at`, from fold to fold."""
        return type(self).factor_at is not Schedule.factor_at

    def factor_at(self, share: float) -> float:
        """The factor of the learning rate at a moment of training.

        Args:
            share: the share of training that is done, in [0, 1); see the module.
        """
        del share
        return 1.0

    def after_pass(self, pace: Pace, passes: int, accuracy: float | None) -> None:
        """Update the pace after a pass over the data.

        Args:
            pace: changed in place.
            passes: number of finished passes.
            accuracy: frame accuracy on the development set; None except for `Halving`.
        """
        del pace, passes, accuracy


@dataclass(frozen=True)
class Constant(Schedule):
    """One learning rate for the whole run. Paper 1's *adapt* uses it with AsyncSgd's memory of one.

    Args:
        rate: learning rate of every fold.
    """

    rate: float = setting(above=0.0)


@dataclass(frozen=True)
class Exponential(Schedule):
    """Constant in a pass, ``rate * last ** ((i - 1) / (n - 1))`` in pass i of n: paper 2.

    Args:
        rate: learning rate of the first pass.
        passes: n, the number of passes.
        last: learning rate of the last pass, as a share of the first's.
    """

    rate: float = setting(above=0.0)
    passes: int = setting(at_least=1)
    last: float = setting(0.01, above=0.0)

    def after_pass(self, pace: Pace, passes: int, accuracy: float | None) -> None:
        """Set the next pass's learning rate; beyond pass n it is constant."""
        progress = min(passes, self.passes - 1) / max(1, self.passes - 1)
        pace.rate = self.rate * self.last**progress


@dataclass(frozen=True)
class Hand(Schedule):
    """Annealing on a held-out loss, tested often: paper 1's *ASGD-hand*.

    If a held-out test finds that the loss has fallen by less than ``gain`` (relative) since the
    last test, ``rate <- rate * factor ** (groups_a_pass / tests_a_pass)``: a fall by ``factor``
    per minibatch group, for all groups between two tests at once.

    Args:
        rate: the initial learning rate.
        factor: factor of the learning rate per minibatch group without a gain; 0.999 in the paper.
        groups_a_pass: minibatch groups in one pass over the data; 7,000 of them at 0.999
            would take the learning rate to exp(-7) of itself if no test showed a gain.
        tests_a_pass: number of held-out tests per pass.
        gain: the relative fall of the loss from which on the learning rate stays.
    """

    rate: float = setting(above=0.0)
    factor: float = setting(0.999, above=0.0, at_most=1.0)
    groups_a_pass: int = setting(7000, at_least=1)
    tests_a_pass: int = setting(50, at_least=1)
    gain: float = setting(0.01, at_least=0.0)

    def after_test(self, pace: Pace, loss: float) -> None:
        """Anneal unless the loss has clearly fallen since the last test.

        Args:
            pace: changed in place.
            loss: on held-out data, in nats per frame.
        """
        before, pace.held_out = pace.held_out, loss
        if before is not None and not loss < before * (1.0 - self.gain):
            pace.rate *= self.factor ** (self.groups_a_pass / self.tests_a_pass)


@dataclass(frozen=True)
class Search(Schedule):
    """Before each chunk, the rate with the lowest loss of its trial descent: *ASGD-search*.

    Paper 1, section 4.1, after Guenter et al. (its reference 14): trial descents over about
    3% of the chunk from the present model, at rates above and below the last one. A trial is
    short and its loss noisy, so the last rate stays unless another is clearly better.

    Args:
        rate: the learning rate before the first chunk; 0.008 in paper 1.
        sample: length of a trial as a share of a chunk; 0.03 in paper 1.
        factor: ratio of neighbouring rates of the ladder.
        rungs: number of rates above, and below, the last one.
        least_minibatches: least number of minibatches of a trial: as many as 3% of paper 1's chunk
            of 1 h has.
        clear: relative fall of the loss below the last rate's that counts as clear.
        whole_trials: whether a last chunk that is shorter than a trial keeps the last rate. Its few
            utterances are memorised fastest at a rate that ruins the model.
        rises: whether rates above the last one are tried, too. Without, the rate only falls.
    """

    rate: float = setting(0.008, above=0.0)
    sample: float = setting(0.03, above=0.0, at_most=1.0)
    factor: float = setting(2.0, above=1.0)
    rungs: int = setting(1, at_least=1)
    least_minibatches: int = setting(42, at_least=1)
    clear: float = setting(0.03, at_least=0.0)
    whole_trials: bool = setting(False)
    rises: bool = setting(True)

    def trial_steps(self, chunk_steps: int) -> int:
        """Minibatches of a trial: ``sample`` of a chunk, at least ``least_minibatches``."""
        return max(self.least_minibatches, round(self.sample * chunk_steps))

    def tries(self, chunk_steps: int, steps_left: int) -> bool:
        """Whether a chunk is searched.

        Args:
            chunk_steps: minibatches of a whole chunk.
            steps_left: minibatches until the pass ends.
        """
        return not self.whole_trials or steps_left >= self.trial_steps(chunk_steps)

    def ladder(self, rate: float) -> list[float]:
        """The learning rates to try, the last one first."""
        signs = (1, -1) if self.rises else (-1,)
        powers = [sign * k for k in range(1, self.rungs + 1) for sign in signs]
        return [rate, *(rate * self.factor**p for p in powers)]

    def choose(self, ladder: Sequence[float], losses: Sequence[float]) -> float:
        """The rate of the lowest finite loss, or the ladder's first if none is clearly lower.

        Args:
            ladder: the learning rates that were tried.
            losses: of each trial, in nats, summed over its frames, each minibatch scored before
                the step on it; not finite where the trial diverged.
        """
        finite = [(loss, rate) for rate, loss in zip(ladder, losses, strict=True) if isfinite(loss)]
        if not finite:  # every trial diverged
            return min(ladder)
        best, rate = min(finite)
        keep = isfinite(losses[0]) and best >= losses[0] * (1.0 - self.clear)
        return ladder[0] if keep else rate


@dataclass(frozen=True)
class Halving(Schedule):
    """Constant, then halved each pass once gains grow small, then stopped: Kaldi's newbob.

    Paper 2's *newbob* has these defaults. Paper 1's multi-pass baseline: decay 0.5, stop when
    the development frame accuracy gains less than 0.1% absolute. That paper does not say when
    halving begins; here it begins when a pass gains less than ``halve_below``, as in newbob.

    Args:
        rate: the initial learning rate.
        halve_below: gain in frame accuracy (absolute share) below which halving begins.
        stop_below: gain below which training stops, once halving has begun.
    """

    rate: float = setting(above=0.0)
    halve_below: float = 0.005
    stop_below: float = 0.001

    def after_pass(self, pace: Pace, passes: int, accuracy: float | None) -> None:
        """Halve the learning rate, or stop, by the pass's gain in accuracy."""
        assert accuracy is not None
        # The gain of the first pass counts from an accuracy of 0.
        gain = accuracy - (pace.accuracy or 0.0)
        pace.accuracy = accuracy
        if pace.halving and gain < self.stop_below:
            pace.stop = True
            return
        pace.halving = pace.halving or gain < self.halve_below
        pace.rate *= 0.5 if pace.halving else 1.0


@torch.no_grad()
def trial_losses(
    gradient: Gradient, model: Tensor, rates: Sequence[float], minibatches: Iterable[Minibatch]
) -> list[float]:
    """Descend from ``model [P]`` at each learning rate; the model itself is not changed.

    Args:
        gradient: the model's summed gradient.
        model: initial parameters of every descent.
        rates: one learning rate per descent; 0 measures the unchanged model.
        minibatches: each with W = 1; the same for every descent.

    Returns:
        For each rate the loss summed over all frames, each minibatch scored before the step on it;
        NaN or infinity where the descent diverged.
    """
    stack = model.repeat(len(rates), 1)
    out = torch.empty_like(stack)
    scale = torch.tensor(rates, dtype=model.dtype, device=model.device).unsqueeze(1)
    losses = torch.zeros(len(rates), dtype=torch.float64, device=model.device)
    for x, targets in minibatches:
        shared = Minibatch(
            _repeat_minibatch(x, len(rates)), _repeat_minibatch(targets, len(rates)).contiguous()
        )
        losses += gradient(stack, *shared, out)
        stack.sub_(out.mul_(scale))
    return [float(loss) for loss in losses]


def _repeat_minibatch(minibatch: Tensor, times: int) -> Tensor:
    """One minibatch as ``times`` equal rows, without a copy."""
    return minibatch.expand(times, *(-1 for _ in minibatch.shape[1:]))


# -- rates of the share of training that is done -------------------------------------------------


def _warm_up(share: float, warmup: float) -> float:
    """The factor within the warm-up, from 0 to 1, and after it."""
    return share / warmup if share < warmup else 1.0


@dataclass(frozen=True)
class Decay(Spec, Schedule, ABC):
    """Base of schedules with a linear warm-up, then a decay from ``rate`` to ``floor * rate``.

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
        if share < self.warmup:
            return _warm_up(share, self.warmup)
        return self.decay((share - self.warmup) / (1.0 - self.warmup))

    @abstractmethod
    def decay(self, progress: float) -> float:
        """The factor at a share of the decay."""


@dataclass(frozen=True)
class Cosine(Decay):
    """Linear warm-up, then half a cosine from ``rate`` to ``floor * rate``.

    Examples:
        >>> [Cosine(0.1, warmup=0.5).factor_at(share) for share in (0.0, 0.25, 0.5, 0.75)]
        [0.0, 0.5, 1.0, 0.5]
    """

    def decay(self, progress: float) -> float:
        """See `Decay`."""
        return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + cos(pi * progress))


@dataclass(frozen=True)
class Linear(Decay):
    """Linear warm-up, then a linear decay from ``rate`` to ``floor * rate``."""

    def decay(self, progress: float) -> float:
        """See `Decay`."""
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
        return _warm_up(share, self.warmup)


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
        reached = sum(share >= edge for edge in self.at)
        return _warm_up(share, self.warmup) * self.by**reached


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
