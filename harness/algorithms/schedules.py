"""Learning-rate schedules as explicit states: each rule is a pure function of what was seen.

A rate multiplies the gradient **summed** over a minibatch, as in paper 1's equation 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

GOLDEN = 0.618


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
    """Before each chunk, the largest rate on a ladder that does not raise the loss.

    Guenter et al. (the search of CNTK, which paper 1 cites as [14]): trial descents over a
    small sample from the present model, rates falling by the golden ratio from ``rungs_up``
    above the last one; the first whose loss over the sample, measured while descending, is
    no worse than the untouched model's is taken.

    Args:
        rate: the rate before the first chunk; 0.008 in paper 1.
        sample: the share of a chunk each trial descends on; 0.03 in paper 1.
        rungs_up: how many rungs above the last rate the ladder begins.
        rungs_down: how many rungs below it the ladder ends; its last rung is always accepted.
        least_minibatches: a trial never runs on fewer minibatches than this.
        gain: relative fall below the untouched model's loss that a rate must show.
    """

    rate: float = 0.008
    sample: float = 0.03
    rungs_up: int = 1
    rungs_down: int = 2
    least_minibatches: int = 8
    gain: float = 0.0

    def ladder(self, last: float) -> list[float]:
        """The rates to try, largest first."""
        return [last * GOLDEN**k for k in range(-self.rungs_up, self.rungs_down + 1)]

    def choose(self, ladder: Sequence[float], losses: Sequence[float], untouched: float) -> float:
        """The first rate of ``ladder`` whose trial loss is acceptable, else the last."""
        for rate, loss in zip(ladder, losses, strict=True):
            if isfinite(loss) and loss <= untouched * (1.0 - self.gain):
                return rate
        return ladder[-1]


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
