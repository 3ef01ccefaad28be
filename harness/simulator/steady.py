"""The long run of a simulation: what it comes to once its start is forgotten.

A simulation begins with every worker reading at once, which no later instant is like. It is run
until three things hold, or its cost is spent:

- the start is found and dropped, and is less than half of the run (`warm_up`, MSER-5);
- throughput and mean staleness have confidence intervals of at most `PRECISION` (`ratio`): the
  widest of those from few long batches, which show what lasts long, and from more of half and of a
  quarter of their length, whose spread is known better;
- what is still under way does not matter. By Little's law, counted in folds, the mean number
  under way is mean staleness + 1; so what contributions under way have aged since the run was
  half as long is what the mean over folded ones lacks. It widens the interval of staleness.

The run doubles until they hold `IN_A_ROW` times: an interval at which one stops because it is
narrow is too narrow, and the last is of a run four times as long as the first that was narrow
enough. Where nothing is stale no fold remembers another, and once is enough. The run is kept as
sums over some `BATCHES` of equally many folds (`batches`), which are merged in pairs as it doubles:
a long run takes no more memory than a short one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # pyright: ignore[reportMissingTypeStubs]

from harness.simulator.batches import Batches, Floats, Samples, Stretch, nothing
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline

__all__ = [
    "PRECISION",
    "Estimate",
    "LongRun",
    "is_transient",
    "long_run",
    "ratio",
    "settled",
    "warm_up",
]

PRECISION = 0.01
"""Half of an interval over its middle, at which a figure is known well enough."""
CONFIDENCE = 0.95
BATCHES, LEAST_FOLDS = 64, 5
"""Batches of the first stretch, and folds of each: those of MSER-5."""
PERIODS = 3
"""Batches of the first stretch where each holds a whole period."""
FEW = (8, 16, 32)
"""Batches that intervals are made of, at least."""
IN_A_ROW = 3
MOST_FOLLOWING = 0.9
"""Correlation of one batch with the next, of which no interval is worth more."""
FEW_FOLDS = 0.01
"""An error of mean staleness that never matters: it may be 0."""
EQUAL, ROUNDING = 1e-9, 1e-6
"""Relative spread of batches that rounding makes, and of the sums of long runs."""
TELLS = 0.05
"""Relative error beyond which a timeline does not tell of the long run."""
PIECES = 16
"""Pieces of a stretch, for whoever watches."""


class Estimate(NamedTuple):
    """A figure and its 95% confidence interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """From the figure to the farther end of its interval."""
        return max(self.value - self.low, self.high - self.value, 0.0)

    def widened(self, more: float) -> Estimate:
        """With so much more on both sides."""
        return Estimate(self.value, self.low - more, self.high + more)


@dataclass(frozen=True)
class LongRun:
    """What a simulation came to.

    Attributes:
        folds, virtual_s: the whole run's, its start included.
        warm_up_folds, warm_up_s: the start, which the figures are without.
        throughput_per_s: folded minibatches a second (infinite where nothing costs time).
        staleness: mean, in folds.
        lag_s: mean.
        single: [S] staleness and lag of single contributions after the start.
        largest: of all of them, the start's too.
        lacks: why the figures are not known to `PRECISION`; empty if they are.
    """

    folds: int
    virtual_s: float
    warm_up_folds: int
    warm_up_s: float
    throughput_per_s: Estimate
    staleness: Estimate
    lag_s: Estimate
    single: tuple[NDArray[Any], Floats]
    largest: tuple[float, float]
    lacks: str

    @property
    def reached(self) -> bool:
        """Whether throughput and staleness are known to `PRECISION`."""
        return not self.lacks


def long_run(
    simulation: Simulation,
    most: int,
    *,
    period: int = 1,
    least_s: float = 0.0,
    watch: Callable[[Timeline], object] | None = None,
) -> LongRun:
    """Run a simulation from its start until its long run is known, or its cost is spent.

    Args:
        simulation: at its start.
        most: contributions it may cost; the first stretch is simulated anyway.
        period: folds after which everything repeats, as those of an epoch.
        least_s: virtual time that is needed whatever the intervals say, for what is seldom.
        watch: told each part of the timeline as it has been simulated.

    Raises:
        UserError: the simulation ends, because every worker is gone.
    """
    size, count = (LEAST_FOLDS, BATCHES) if period == 1 else (period, PERIODS)
    batches, samples, aged, held = nothing(), Samples(), 0.0, 0
    while True:
        stretch = Stretch(simulation.version, simulation.now_s, size, count)
        for part in _parts(simulation, size * count):
            stretch.add(part)
            samples.add(part.staleness(), part.lag_s())
            if watch is not None:
                watch(part)
        batches = batches.then(stretch.batches)
        older, aged = stretch.aged - aged, stretch.aged
        found = _found(batches, size, samples, older / stretch.folded, least_s)
        held = held + 1 if found.reached else 0
        # Where nothing is stale, every fold begins anew, and no start is remembered.
        if held >= (1 if samples.largest[0] == 0.0 else IN_A_ROW) or 2 * samples.seen > most:
            return found
        if len(batches.seconds) >= BATCHES:
            batches, size = batches.merged(2), 2 * size
        count = len(batches.seconds)


def _parts(simulation: Simulation, folds: int) -> Iterator[Timeline]:
    """A stretch in some pieces, so that whoever watches hears of it; in flight after the last."""
    piece, last = max(1, folds // PIECES), Timeline()
    for done in range(0, folds, piece):
        for part in simulation.parts(folds=min(piece, folds - done)):
            if len(part.folds):
                yield part
            last = part
    yield last


def is_transient(timeline: Timeline) -> bool:
    """Whether the folds of a timeline from its start say little of the long run behind them.

    They do where the start may not be over, where without it throughput or mean staleness is
    another by more than `TELLS`, or where staleness lacks more than that for what is under way.
    """
    size = max(1, len(timeline.folds) // BATCHES)
    stretch = Stretch(0, 0.0, size, len(timeline.folds) // size)
    stretch.add(timeline)
    all_of = stretch.batches
    start = _start(all_of)
    if len(all_of.seconds) < 2 or 2 * start >= len(all_of.seconds):
        return True
    rest, older = all_of.after(start), stretch.aged / stretch.folded
    mean = _mean_staleness(rest)
    stale = max(abs(_mean_staleness(all_of) - mean), older)
    rates = [float(x.minibatches.sum() / max(x.seconds.sum(), 1e-300)) for x in (all_of, rest)]
    return stale > TELLS * max(mean, 1.0) or abs(rates[0] - rates[1]) > TELLS * rates[1]


def settled(timeline: Timeline) -> tuple[int, Estimate]:
    """Of a timeline from its start: the folds of the start, and folds a second after it.

    Raises:
        ValueError: fewer than two folds.
    """
    if len(timeline.folds) < 2:
        raise ValueError("a rate needs two folds")
    size = max(1, len(timeline.folds) // BATCHES)
    stretch = Stretch(0, 0.0, size, len(timeline.folds) // size)
    stretch.add(timeline)
    start = _start(stretch.batches)
    rest = stretch.batches.after(start)
    count = max(1, len(rest.seconds) // FEW[0])
    few = rest.merged(count)
    if not few.seconds.sum() > 0.0:
        return size * start, Estimate(math.inf, math.inf, math.inf)
    return size * start, ratio(np.full(len(few.seconds), float(size * count)), few.seconds)


def warm_up(values: Floats) -> int:
    """How many batches at the start to drop: MSER-5, where batches are means of five or more.

    Those without which the rest says most about its mean: the d that makes least
    Σ_{j>d} (y_j − ȳ_d)² / (B − d)², of the d up to half (White, Cobb and Spratt, "A comparison of
    five steady-state truncation heuristics for simulation", 2000). If it is half, the start may
    not be over.

    Args:
        values: [B] means of batches.

    Example:
        >>> warm_up(np.array([0.0, 5.0, 9.0, 10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0]))
        3
    """
    if np.ptp(values) <= EQUAL * np.abs(values).max():
        return 0
    left = [values[first:] for first in range(len(values) // 2 + 1)]
    return int(np.argmin([rest.var() / len(rest) for rest in left]))


def ratio(above: Floats, below: Floats) -> Estimate:
    """Σ above / Σ below, with its interval from batches.

    The interval is Student's on the residuals above − ratio·below of the batches (the method of
    batch means for a ratio; Law, "Simulation modeling and analysis", 9.5.3). Where each batch
    still follows the one before, with correlation φ, it is √((1 + φ) / (1 − φ)) times as wide
    (Tafazzoli and Wilson, "Skart: a skewness- and autoregression-adjusted batch-means procedure
    for simulation analysis", 2011).

    Args:
        above: [B] sums of at least two batches.
        below: [B] likewise.
    """
    value, count = float(above.sum()) / float(below.sum()), len(above)
    rest = above - value * below
    squares = float(rest @ rest)
    follows = float(rest[1:] @ rest[:-1]) / squares if squares > 0.0 else 0.0
    follows = min(max(follows, 0.0), MOST_FOLLOWING)
    error = math.sqrt(squares / (count - 1) / count) / float(below.mean())
    error *= math.sqrt((1.0 + follows) / (1.0 - follows))
    half = float(cast(Any, stats.t).ppf(0.5 + CONFIDENCE / 2.0, count - 1)) * error
    half += ROUNDING * abs(value)
    return Estimate(value, value - half, value + half)


def _found(batches: Batches, size: int, samples: Samples, older: float, least_s: float) -> LongRun:
    """The figures of the batches so far.

    Args:
        batches: of ``size`` folds.
        size: of them.
        samples: all so far.
        older: folds that mean staleness lacks for what is still under way.
        least_s: virtual time that is needed.
    """
    start = _start(batches)
    rest = batches.after(start)
    few = [rest.merged(max(1, len(rest.seconds) // count)) for count in FEW]
    per_s = _widest(_per_second(it) for it in few)
    staleness = _widest(ratio(it.staleness, it.contributions) for it in few)
    staleness = staleness.widened(abs(older))
    virtual_s = float(batches.seconds.sum())
    lacks = ""
    if virtual_s < least_s:
        lacks = f"faults are seldom: {least_s:.3g} s of virtual time would show enough of them"
    elif 2 * start >= len(batches.seconds):
        lacks = "the start may not be over"
    elif not (_known(per_s) and _known(staleness, FEW_FOLDS)):
        lacks = f"the interval is wider than {PRECISION:.0%}"
    return LongRun(
        folds=size * len(batches.seconds),
        virtual_s=virtual_s,
        warm_up_folds=size * start,
        warm_up_s=float(batches.seconds[:start].sum()),
        throughput_per_s=per_s,
        staleness=staleness,
        lag_s=_widest(ratio(it.lag_s, it.contributions) for it in few),
        single=samples.after(int(batches.contributions[:start].sum())),
        largest=samples.largest,
        lacks=lacks,
    )


def _start(batches: Batches) -> int:
    """The batches to drop, so that neither throughput nor staleness remembers the start."""
    mean = batches.staleness / np.maximum(batches.contributions, 1.0)
    return max(warm_up(batches.seconds), warm_up(mean))


def _widest(found: Iterable[Estimate]) -> Estimate:
    return max(found, key=lambda estimate: estimate.width)


def _mean_staleness(batches: Batches) -> float:
    return float(batches.staleness.sum() / max(batches.contributions.sum(), 1.0))


def _per_second(batches: Batches) -> Estimate:
    """Minibatches a second; infinite where no time passes."""
    if not batches.seconds.sum() > 0.0:
        return Estimate(math.inf, math.inf, math.inf)
    return ratio(batches.minibatches, batches.seconds)


def _known(figure: Estimate, enough: float = 0.0) -> bool:
    """Whether an interval is small."""
    return math.isinf(figure.value) or figure.width <= max(PRECISION * abs(figure.value), enough)
