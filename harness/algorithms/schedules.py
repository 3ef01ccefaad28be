"""Learning-rate schedules as explicit states: each rule is a pure function of what was seen.

A rate multiplies the gradient **summed** over a minibatch, as in paper 1's equation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True)
class Constant:
    """One rate for the whole run. Paper 1's *adapt* uses it with AsyncSgd's memory of one."""

    rate: float


@dataclass(frozen=True)
class Hand:
    """Annealing on a held-out loss, tested often: paper 1's *ASGD-hand*.

    The held-out loss is measured ``tests_a_pass`` times in a pass. When it has fallen by
    less than ``gain`` (relative) since the last test, the rate falls as it would have by
    ``factor`` a group, ``groups_a_pass / tests_a_pass`` groups at once.

    Args:
        rate: the first rate.
        factor: 0.999 in the paper.
        groups_a_pass: minibatch groups in one pass over the data; 7,000 of them at 0.999
            would take the rate to exp(-7) if no test showed a gain.
        tests_a_pass: how often the held-out loss is measured.
        gain: the relative fall of the loss that leaves the rate alone.
    """

    rate: float
    factor: float = 0.999
    groups_a_pass: int = 7000
    tests_a_pass: int = 50
    gain: float = 0.01

    def after_test(self, rate: float, before: float, now: float) -> float:
        """The rate after a test that found the loss ``now`` where it was ``before``."""
        if now < before * (1.0 - self.gain):
            return rate
        return rate * self.factor ** (self.groups_a_pass / self.tests_a_pass)


@dataclass(frozen=True)
class Search:
    """Before each chunk, the rate whose trial descent has the lowest loss: *ASGD-search*.

    Paper 1, section 4.1, after Guenter et al. (its reference 14): trial descents over about
    3% of the chunk from the present model, at rates above and below the last one. A trial is
    short and its loss noisy, so the last rate stays unless another is clearly better.

    Args:
        rate: the rate before the first chunk; 0.008 in paper 1.
        sample: the share of a chunk each trial descends on; 0.03 in paper 1.
        factor: from one rung of the ladder to the next.
        rungs: rungs above and below the last rate.
        least_minibatches: a trial never runs on fewer minibatches than this: as many as 3%
            of paper 1's chunk of 1 h has.
        clear: relative fall of the loss below the last rate's that counts as clear.
    """

    rate: float = 0.008
    sample: float = 0.03
    factor: float = 2.0
    rungs: int = 1
    least_minibatches: int = 42
    clear: float = 0.03

    def ladder(self, last: float) -> list[float]:
        """The rates to try, the last one first."""
        powers = [p for k in range(1, self.rungs + 1) for p in (k, -k)]
        return [last, *(last * self.factor**p for p in powers)]

    def choose(self, ladder: Sequence[float], losses: Sequence[float]) -> float:
        """The rate of the lowest finite loss, or the ladder's first if none is clearly lower."""
        finite = [(loss, rate) for rate, loss in zip(ladder, losses, strict=True) if isfinite(loss)]
        if not finite:
            return min(ladder)
        best, rate = min(finite)
        keep = isfinite(losses[0]) and best >= losses[0] * (1.0 - self.clear)
        return ladder[0] if keep else rate


@dataclass(frozen=True)
class Halving:
    """Constant, then halved each pass once gains grow small, then stopped.

    Paper 1's multi-pass baseline: decay 0.5, stop when the development frame accuracy
    gains less than 0.1% absolute. The paper does not say when halving begins; here it begins
    when a pass gains less than ``halve_below``, Kaldi's newbob rule.

    Args:
        rate: the first rate.
        halve_below: gain in frame accuracy (absolute share) below which halving begins.
        stop_below: gain below which training stops, once halving has begun.
    """

    rate: float
    halve_below: float = 0.005
    stop_below: float = 0.001

    def after_pass(self, rate: float, halving: bool, gain: float) -> tuple[float, bool, bool]:
        """``(rate, halving, stop)`` for the next pass, from this pass's gain in accuracy."""
        if halving and gain < self.stop_below:
            return rate, True, True
        halving = halving or gain < self.halve_below
        return (rate * 0.5 if halving else rate), halving, False


Schedule = Constant | Hand | Search | Halving
