"""The long run of a simulation: steady-state estimates without the warm-up.

A simulation begins with every worker reading at once, unlike any later instant. `long_run`
simulates until three conditions hold, or its cost limit is reached:

- the warm-up is found and dropped, and is less than half of the run (`warm_up`, MSER-5);
- throughput and mean staleness have confidence intervals of at most `PRECISION` (`ratio`): the
  widest of those from few long batches, which contain slow variation, and from more batches of half
  and a quarter of their length, with a better known spread;
- contributions in flight do not matter. By Little's law, counted in folds, their mean number is
  mean staleness + 1. So the growth of their age since the run was half as long is missing from
  the mean over folded ones, and widens the interval of staleness.

The run doubles until they hold `IN_A_ROW` times: stopping at the first narrow interval would select
intervals that are too narrow, and the last one is of a run four times as long as the first narrow
one. If nothing is stale, folds are independent and once is enough. The run is stored as sums over
about `BATCHES` batches of equally many folds, merged in pairs as the run doubles, and as a sample
of single contributions (`Samples`), so memory does not grow with the run.

`horizon_of` determines the least length and the largest cost of a long run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from harness.simulator.cluster import Cluster, Fault, Workload
from harness.simulator.costs import compute_seconds
from harness.simulator.protocols.contract import TimingProtocol, epoch_folds
from harness.simulator.simulation import Simulation
from harness.simulator.timeline import Timeline

PRECISION = 0.01
"""Largest relative half-width of the interval of a figure that counts as known."""

CONFIDENCE = 0.95

BATCHES, LEAST_FOLDS = 64, 5
"""Batches of the first stretch, and folds of each, as in MSER-5."""

PERIODS = 3
"""Batches of the first stretch if each is a whole period."""

FEW = (8, 16, 32)
"""Least numbers of batches for intervals."""

IN_A_ROW = 3

MOST_FOLLOWING = 0.9
"""Upper limit of the estimated correlation between neighbouring batches."""

FEW_FOLDS = 0.01
"""Half-width of mean staleness that is always precise enough, since the mean may be 0."""

EQUAL, ROUNDING = 1e-9, 1e-6
"""Relative spread of batches due to rounding, and relative error of the sums of long runs."""

PIECES = 16
"""Number of progress reports per stretch."""


class Estimate(NamedTuple):
    """A figure and its 95% confidence interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Distance from the figure to the farther end of its interval."""
        return max(self.value - self.low, self.high - self.value, 0.0)


@dataclass(frozen=True)
class LongRun:
    """Steady-state figures of a simulation.

    Attributes:
        folds, virtual_s: length of the whole run, including the warm-up.
        warm_up_folds, warm_up_s: length of the warm-up, which the figures exclude.
        throughput_per_s: folded minibatches per second (infinite if nothing costs time).
        staleness: mean staleness, in folds.
        lag_s: mean lag.
        single: [S] staleness and lag of single contributions after the warm-up.
        largest: largest staleness and lag, including the warm-up.
        lacks: reason that the figures are not known to `PRECISION`; empty if they are.
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
    simulation: Simulation, most: int, *, period: int = 1, least_s: float = 0.0
) -> LongRun:
    """Run a simulation from its start until its long run is known, or its cost is used up.

    Args:
        simulation: at its start.
        most: largest number of contributions; the first stretch is simulated in any case.
        period: folds after which everything repeats, as those of an epoch.
        least_s: least virtual time, for rare events that narrow intervals may miss.

    Raises:
        UserError: the simulation ends, because every worker is gone.
    """
    size, count = (LEAST_FOLDS, BATCHES) if period == 1 else (period, PERIODS)
    batches, samples, aged, streak, undone = np.zeros((ROWS, 0)), Samples(), 0.0, 0, 0
    while True:
        stretch = Stretch(simulation.version, simulation.now_s, size, count, undone)
        for part in _parts(simulation, size * count):
            stretch.add(part)
            samples.add(part.staleness(), part.lag_s())
        undone = stretch.undone
        batches = np.concatenate([batches, stretch.batches], axis=1)
        # In flight at the end of the stretch, less what was in flight at its beginning.
        older, aged = stretch.aged - aged, stretch.aged
        older /= max(float(stretch.batches[CONTRIBUTIONS].sum()), 1.0)
        figures = _estimate_long_run(batches, size, samples, older, least_s)
        streak = streak + 1 if figures.reached else 0
        # Without staleness folds are independent, so one narrow interval suffices.
        if streak >= (1 if samples.largest[0] == 0.0 else IN_A_ROW) or 2 * samples.seen > most:
            return figures
        # Fewer and longer batches, as the run grows: long ones are nearly independent.
        # Their number sets the next stretch, which is as long as the run so far.
        if batches.shape[1] >= BATCHES:
            batches, size = merge(batches, 2), 2 * size
        count = batches.shape[1]


def _parts(simulation: Simulation, folds: int) -> Iterator[Timeline]:
    """A stretch in `PIECES` parts for progress reports; the last part is what is in flight."""
    piece, tail = max(1, folds // PIECES), Timeline()
    for start in range(0, folds, piece):
        for part in simulation.parts(folds=min(piece, folds - start)):
            if len(part.folds):
                yield part
            tail = part
    yield tail


def steady_estimate(timeline: Timeline) -> tuple[int, Estimate]:
    """Folds of the warm-up of a timeline from its start, and folds per second after it.

    Raises:
        ValueError: fewer than two folds.
    """
    if len(timeline.folds) < 2:
        raise ValueError("a rate needs two folds")
    size = max(1, len(timeline.folds) // BATCHES)
    stretch = Stretch(0, 0.0, size, len(timeline.folds) // size)
    stretch.add(timeline)
    start = _start(stretch.batches)
    steady = stretch.batches[:, start:]
    count = max(1, steady.shape[1] // FEW[0])
    folds = np.full(steady.shape[1] // count, float(size * count))
    return size * start, _per_second(folds, merge(steady, count)[SECONDS])


def warm_up(values: Floats) -> int:
    """Number of batches to drop at the start: MSER-5, with batches that are means of five or more.

    The d up to half of the batches that minimises Σ_{j>d} (y_j − ȳ_d)² / (B − d)², the squared
    standard error of the rest's mean (White, Cobb and Spratt, "A comparison of five steady-state
    truncation heuristics for simulation", 2000). If it is half, the warm-up may not be over.

    Args:
        values: [B] means of batches.

    Example:
        >>> warm_up(np.array([0.0, 5.0, 9.0, 10.0, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0]))
        3
    """
    # Rounding alone would choose among equal batches.
    if np.ptp(values) <= EQUAL * np.abs(values).max():
        return 0
    tails = [values[start:] for start in range(len(values) // 2 + 1)]
    return int(np.argmin([tail.var() / len(tail) for tail in tails]))


def ratio(above: Floats, below: Floats) -> Estimate:
    """Σ above / Σ below, with its interval from batches.

    The interval is Student's on the residuals above − ratio·below of the batches (the method of
    batch means for a ratio; Law, "Simulation modeling and analysis", 9.5.3). If neighbouring
    batches are correlated by φ, it is √((1 + φ) / (1 − φ)) times as wide
    (Tafazzoli and Wilson, "Skart: a skewness- and autoregression-adjusted batch-means procedure
    for simulation analysis", 2011).

    Args:
        above: [B] sums of the numerator in at least two batches.
        below: [B] sums of the denominator.
    """
    from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

    value, count = float(above.sum()) / float(below.sum()), len(above)
    residuals = above - value * below
    squares = float(residuals @ residuals)
    follows = float(residuals[1:] @ residuals[:-1]) / squares if squares > 0.0 else 0.0
    # Below 0 it would narrow the interval, for which a few batches are no evidence.
    follows = min(max(follows, 0.0), MOST_FOLLOWING)
    error = math.sqrt(squares / (count - 1) / count) / float(below.mean())
    error *= math.sqrt((1.0 + follows) / (1.0 - follows))
    half = float(cast(Any, stdtrit)(count - 1, 0.5 + CONFIDENCE / 2.0)) * error
    # A periodic run has equal batches, and yet its sums are rounded.
    half += ROUNDING * abs(value)
    return Estimate(value, value - half, value + half)


def _estimate_long_run(
    batches: Floats, size: int, samples: Samples, older: float, least_s: float
) -> LongRun:
    """The figures of the batches so far.

    Args:
        batches: [ROWS, B] of ``size`` folds each.
        size: folds per batch.
        samples: all so far.
        older: folds that mean staleness lacks for contributions in flight.
        least_s: least virtual time.
    """
    start = _start(batches)
    count, steady = batches.shape[1], batches[:, start:]
    mergers = [merge(steady, max(1, (count - start) // few)) for few in FEW]
    per_s = _widest(_per_second(sums[MINIBATCHES], sums[SECONDS]) for sums in mergers)
    stale = _widest(ratio(sums[STALENESS], sums[CONTRIBUTIONS]) for sums in mergers)
    staleness = Estimate(stale.value, stale.low - abs(older), stale.high + abs(older))
    virtual_s = float(batches[SECONDS].sum())
    lacks = ""
    if virtual_s < least_s:
        folds = f"about {least_s / virtual_s * size * count:.2g} folds" if virtual_s else "or more"
        lacks = f"faults are rare: {least_s:.3g} s of virtual time, {folds}, would show enough"
    elif 2 * start >= count:
        lacks = "the start-up transient may not be over"
    elif not (_is_precise(per_s) and _is_precise(staleness, FEW_FOLDS)):
        lacks = f"the interval is wider than {PRECISION:.0%}"
    return LongRun(
        folds=size * count,
        virtual_s=virtual_s,
        warm_up_folds=size * start,
        warm_up_s=float(batches[SECONDS, :start].sum()),
        throughput_per_s=per_s,
        staleness=staleness,
        lag_s=_widest(ratio(sums[LAG], sums[CONTRIBUTIONS]) for sums in mergers),
        single=samples.drop_first(int(batches[CONTRIBUTIONS, :start].sum())),
        largest=samples.largest,
        lacks=lacks,
    )


def _start(batches: Floats) -> int:
    """Number of batches to drop, the larger of those for throughput and for staleness."""
    mean = batches[STALENESS] / np.maximum(batches[CONTRIBUTIONS], 1.0)
    return max(warm_up(batches[SECONDS]), warm_up(mean))


def _widest(estimates: Iterable[Estimate]) -> Estimate:
    return max(estimates, key=lambda estimate: estimate.width)


def _per_second(amounts: Floats, seconds: Floats) -> Estimate:
    """Amounts of batches per second; infinite if no time passes."""
    if not seconds.sum() > 0.0:
        return Estimate(math.inf, math.inf, math.inf)
    return ratio(amounts, seconds)


def _is_precise(figure: Estimate, enough: float = 0.0) -> bool:
    """Whether an interval is at most `PRECISION` wide, or its half-width at most ``enough``."""
    return math.isinf(figure.value) or figure.width <= max(PRECISION * abs(figure.value), enough)


Floats = NDArray[np.float64]

MOST_SAMPLES = 1 << 20
"""Largest number of single contributions that are stored."""


SECONDS, MINIBATCHES, CONTRIBUTIONS, STALENESS, LAG = range(5)
"""Rows of the sums over batches of equally many folds: duration of the folds; minibatches folded,
less those that a restart of the server undid; contributions folded; sums over these of their
staleness and of their lag in seconds."""

ROWS = 5


def merge(batches: Floats, count: int) -> Floats:
    """[ROWS, B] sums over each ``count`` neighbours; a remainder at the start is dropped."""
    spare = batches.shape[1] % count
    return batches[:, spare:].reshape(ROWS, -1, count).sum(axis=2)


class Samples:
    """Staleness and lag of single contributions: of all, or of every 2nd, 4th … of many.

    Attributes:
        stride: one of so many contributions is stored.
        staleness, lag_s: [S] of those stored.
        seen: number of contributions so far.
        largest: largest staleness and lag of all contributions.
    """

    def __init__(self) -> None:
        self.stride, self.seen = 1, 0
        self.staleness, self.lag_s = np.zeros(0, np.int64), np.zeros(0)
        self.largest = (0.0, 0.0)

    def add(self, staleness: NDArray[Any], lag_s: Floats) -> None:
        """Add the next contributions."""
        # Every ``stride``-th of all contributions, wherever parts begin.
        choice = slice(-self.seen % self.stride, None, self.stride)
        self.staleness = np.concatenate([self.staleness, staleness[choice]])
        self.lag_s = np.concatenate([self.lag_s, lag_s[choice]])
        self.seen += len(staleness)
        if len(staleness):
            largest = float(staleness.max()), float(lag_s.max())
            self.largest = max(self.largest[0], largest[0]), max(self.largest[1], largest[1])
        while len(self.staleness) > MOST_SAMPLES:
            self.staleness, self.lag_s = self.staleness[::2], self.lag_s[::2]
            self.stride *= 2

    def drop_first(self, contributions: int) -> tuple[NDArray[Any], Floats]:
        """Stored staleness and lag, without those of the first ``contributions``."""
        start = -(-contributions // self.stride)
        return self.staleness[start:], self.lag_s[start:]


class Stretch:
    """Sums over the batches of one stretch of a simulation, filled part by part.

    Attributes:
        batches: [ROWS, B] the sums.
        aged: sum of the folds since their reads, over contributions in flight at the end.
        undone: version of the last restart, before which no other can undo a fold once more.
    """

    def __init__(self, begin: int, start_s: float, size: int, count: int, undone: int = 0) -> None:
        self.first, self.last_s, self.size, self.count = begin, start_s, size, count
        self.undone = undone
        self.batches = np.zeros((ROWS, count))
        self.aged = 0.0

    def add(self, part: Timeline) -> None:
        """Add the folds of a part; the last part has the contributions in flight."""
        rows, folds = part.folded(), part.folds
        times_s = np.diff(folds.time_s, prepend=self.last_s)
        self._sum(SECONDS, folds.fold, times_s)
        self._sum(MINIBATCHES, rows.fold, rows.steps)
        self._sum(CONTRIBUTIONS, rows.fold, np.ones(len(rows)))
        self._sum(STALENESS, rows.fold, part.staleness())
        self._sum(LAG, rows.fold, part.lag_s())
        if len(folds):
            self.last_s = float(folds.time_s[-1])
        versions, steps = part.restarts.version, float(rows.steps.sum()) / max(1, len(folds))
        edges = np.r_[self.undone, versions]
        lost = versions - np.maximum(part.restarts.restored_version, edges[:-1])
        self._sum(MINIBATCHES, versions - 1, -steps * lost)
        self.undone = int(edges[-1])
        end = self.first + self.size * self.count
        self.aged = float(np.maximum(end - part.in_flight().read_version, 0).sum())

    def _sum(self, row: int, folds: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add ``values`` of folds to the sums of their batches."""
        place = (folds - self.first) // self.size
        inside = (place >= 0) & (place < self.count)
        self.batches[row] += np.bincount(place[inside], values[inside], self.count)


COST = 1 << 20

EACH = 512
"""Largest number of contributions of a long run: `COST`, or `EACH` per worker if that is more."""

ENOUGH = 30
"""Least number of occurrences of a rare event for a meaningful mean."""

MATTERS = PRECISION / 10.0
"""Share of the time lost to a rare event below which the run need not contain it."""


class Horizon(NamedTuple):
    """Limits of a long run (see `steady.long_run`).

    Attributes:
        most: largest number of contributions.
        period: folds after which everything repeats.
        least_s: least virtual time, for enough rare events.
    """

    most: int
    period: int
    least_s: float


def history(cluster: Cluster) -> str:
    """Reason that a cluster has no long run, because an event happens once; empty if it has one."""
    for place, fault in enumerate(cluster.faults):
        if fault.kind == "death" and fault.down_s is None:
            return f"faults[{place}]: workers leave permanently"
        if fault.at_s and fault.kind != "late":
            return f"faults[{place}].at_s lists instants"
    return ""


def horizon_of(
    cluster: Cluster, protocol: TimingProtocol, workload: Workload, workers: int
) -> Horizon:
    """The limits of a long run for a number of workers of a cluster."""
    minibatch_s = compute_seconds(cluster, workload)
    needed_s = [_observation_s(fault, workers, minibatch_s) for fault in cluster.faults]
    chance, times = cluster.stragglers.probability, cluster.stragglers.slowdown - 1.0
    if chance * times > MATTERS:
        needed_s.append(ENOUGH / chance * minibatch_s / workers)
    return Horizon(
        most=max(COST, EACH * workers),
        period=max(1, epoch_folds(protocol, cluster, workers)),
        least_s=max(needed_s, default=0.0),
    )


def _observation_s(fault: Fault, workers: int, minibatch_s: float) -> float:
    """Virtual time in which a fault occurs often enough; 0 if it costs too little to matter."""
    if fault.kind == "late":
        return 4.0 * fault.at_s[0]
    if fault.kind == "message":
        lost_s, each_s = fault.probability * (fault.retry_s or 0.0), minibatch_s / workers
        return ENOUGH / fault.probability * each_s if lost_s > MATTERS * minibatch_s else 0.0
    down_s, mean_s = fault.down_s or 0.0, fault.mean_s or 0.0
    lost_s = down_s + (fault.checkpoint_s or 0.0 if fault.kind == "server" else minibatch_s)
    if lost_s <= MATTERS * (mean_s + down_s):
        return 0.0
    struck = sum(worker < workers for worker in fault.workers) if fault.workers else workers
    hit = 1 if fault.kind == "server" else struck
    often_s = ENOUGH * (mean_s + down_s) / hit if hit else 0.0
    return max(often_s, 3.0 * min(mean_s, down_s))
