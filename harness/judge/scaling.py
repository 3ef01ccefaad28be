"""A ratio measured at several sizes, laws through it, and its value at another size.

Both laws are of the ratio's distance from 1, at size n::

    power                    ratio - 1 = c n^-a            0 <= a <= 3
    power above a floor      ratio - 1 = f + c n^-a        0.1 <= a <= 3, f >= 0

A law is the weighted least-squares fit of the ratios; a ratio r of S seeds has the weight S / r^2,
as if every seed's logarithm scattered alike. For each exponent the rest is linear, so the exponent
alone is searched, on a grid and then by golden section (variable projection: Golub and Pereyra,
1973). A fit with a parameter at a bound tells where the search ended and not what the law is: it
is marked, and gives no value at the paper's size. A size with fewer than three seeds is left out.

Intervals resample seeds. Every draw gives each seed a normal weight, the same at all sizes that the
seed was run at, and each size the root of its own chi-squared divisor. Means of numerators and
denominators move by their weighted deviations, so a mean of S seeds is drawn from Student's t with
S - 1 degrees of freedom, paired as the seeds are; both laws are fitted to every draw. The
quantiles of an ordinary bootstrap of three seeds are less than half as wide.

The largest size is held out: a law fitted on the others predicts it, and the prediction holds if
0 lies in the interval of the measured ratio minus the predicted one, drawn together. The law that
predicts it better gives the value at the paper's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from harness.base.seeds import stream
from harness.judge.claims import Rule
from harness.judge.curve import Extrapolation, Law, Trend
from harness.judge.interval import Interval
from harness.judge.statistics import LEVEL, Array

DRAWS = 4000
"""Draws of seeds behind an interval: its ends are then known to about 3% of its width."""
LEAST_SEEDS = 3
"""Seeds of a size: of fewer the means have such tails that no interval can be drawn."""
LEAST_EXPONENT: Mapping[str, float] = {"power": 0.0, "power above a floor": 0.1}
"""Law -> its smallest exponent; below 0.1 a floor and a power cannot be told apart."""
LARGEST_EXPONENT = 3.0
AT_BOUND = 1e-6
"""Distance of an exponent from an end of its search, far above what golden section leaves."""
STEPS = 61
GOLDEN_STEPS = 30
LINE = 25
"""Sizes at which a law's line and band are drawn."""


@dataclass(frozen=True)
class Size:
    """The runs of one size.

    Args:
        at: the size.
        seeds: seeds of the runs.
        pairs: numerator and denominator of each seed, [S, 2].
    """

    at: float
    seeds: tuple[int, ...]
    pairs: tuple[tuple[float, float], ...]

    @property
    def ratio(self) -> float:
        """Mean of the numerators over the mean of the denominators."""
        over, under = np.mean(self.pairs, axis=0)
        return float(over / under)


class Fit(NamedTuple):
    """Parameters of one law for each of D data sets, every one [D]."""

    factor: Array
    exponent: Array
    floor: Array

    def predict(self, at: float) -> Array:
        """The ratio at a size, [D]."""
        predicted: Array = 1.0 + self.floor + self.factor * at**-self.exponent
        return predicted

    def is_at_bound(self, law: str) -> bool:
        """Whether a parameter of the first data set lies at a bound of its search."""
        exponent, least = self.exponent[0], LEAST_EXPONENT[law]
        is_inside = least + AT_BOUND < exponent < LARGEST_EXPONENT - AT_BOUND
        return bool(not is_inside or (law != "power" and self.floor[0] <= 0.0))


def draw_ratios(sizes: Sequence[Size], draws: int = DRAWS, seed: int = 0) -> Array:
    """Ratios [D, K] of K sizes in draws of the seeds."""
    rng = stream(seed, "scaling")
    names = sorted({seed for size in sizes for seed in size.seeds})
    weights = dict(zip(names, rng.normal(size=(len(names), draws)), strict=True))
    columns: list[Array] = []
    for size in sizes:
        pairs, count = np.asarray(size.pairs, np.float64), len(size.seeds)
        normals = np.stack([weights[seed] for seed in size.seeds], axis=1)
        moved = normals @ (pairs - pairs.mean(axis=0)) / math.sqrt(count * (count - 1))
        moved /= np.sqrt(rng.chisquare(count - 1, draws) / (count - 1))[:, None]
        means = pairs.mean(axis=0) + moved
        columns.append(means[:, 0] / means[:, 1])
    return np.stack(columns, axis=1)


def weights_of(sizes: Sequence[Size]) -> Array:
    """Weights [K] of the sizes in a fit."""
    return np.array([len(size.seeds) / size.ratio**2 for size in sizes])


def fit(at: Sequence[float], ratios: Array, weights: Array, law: str) -> Fit | None:
    """A law fitted to ratios at K sizes; None if there are fewer sizes than its parameters.

    Args:
        at: the sizes, [K].
        ratios: one data set per row, [D, K].
        weights: of the sizes, [K].
        law: one of `LEAST_EXPONENT`.
    """
    has_floor = law == "power above a floor"
    if len(at) < (3 if has_floor else 2):
        return None
    x, y = np.asarray(at, np.float64), np.asarray(ratios, np.float64) - 1.0
    middle = float(np.exp(np.log(x).mean()))  # the basis is 1 in the middle, whatever the exponent

    def solve(exponent: Array) -> tuple[Array, Array, Array]:
        """Misfit, factor at the middle and floor, each [D], for exponents [D]."""
        basis = (x / middle) ** -exponent[:, None]
        factor, floor = _slope(basis, y, weights), np.zeros(len(y))
        if has_floor:
            means = _mean(basis, weights), _mean(y, weights)
            free = _slope(basis - means[0], y - means[1], weights)
            height = (means[1] - free[:, None] * means[0])[:, 0]
            is_above = height > 0.0  # elsewhere the best floor that is allowed is 0
            factor, floor = np.where(is_above, free, factor), np.where(is_above, height, floor)
        residual = y - floor[:, None] - factor[:, None] * basis
        return (weights * residual**2).sum(axis=1), factor, floor

    grid = np.linspace(LEAST_EXPONENT[law], LARGEST_EXPONENT, STEPS)
    misfits = np.stack([solve(np.full(len(y), each))[0] for each in grid])
    best = np.argmin(np.nan_to_num(misfits, nan=math.inf), axis=0)
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, STEPS - 1)]
    exponent = _search_golden(lambda each: solve(each)[0], low, high)
    _, factor, floor = solve(exponent)
    return Fit(factor * middle**exponent, exponent, floor)


def follow(
    label: str,
    sizes: Sequence[Size],
    paper: tuple[float, float | None],
    band: Rule,
    whole: bool = True,
    draws: int = DRAWS,
) -> Trend:
    """Both laws through the ratio at its sizes, and its value at the paper's size.

    Args:
        label: of the ratio.
        sizes: those that were run, ascending; one with too few seeds is left out.
        paper: the paper's size, and its own ratio if it prints one.
        band: the claim's.
        whole: whether all registered sizes were run; until then the answer is ``unclear``, as it
            is where a size is left out.
        draws: draws of the seeds.
    """
    drawn = [size for size in sizes if len(size.seeds) >= LEAST_SEEDS]
    whole = whole and len(drawn) == len(sizes)
    ratios = draw_ratios(drawn, draws) if drawn else np.zeros((draws, 0))
    laws = tuple(
        fitted
        for law in LEAST_EXPONENT
        if (fitted := _fit_law(law, drawn, ratios, paper[0])) is not None
    )
    chosen = min((law for law in laws if not law.at_bound), key=_misses, default=None)
    return Trend(
        label,
        paper[1],
        laws,
        "" if chosen is None else chosen.name,
        _judge(chosen, band) if whole and chosen is not None else "unclear",
    )


def _fit_law(law: str, sizes: Sequence[Size], draws: Array, paper_size: float) -> Law | None:
    at, weights = [size.at for size in sizes], weights_of(sizes)
    ratios = np.array([[size.ratio for size in sizes]])
    curve, curves = (fit(at, data, weights, law) for data in (ratios, draws))
    if curve is None or curves is None:
        return None
    value = curve.predict(paper_size)
    line = np.geomspace(min(at), max(*at, paper_size), LINE)
    check = _hold_out(law, at, weights, ratios, draws)
    return Law(
        law,
        float(curve.factor[0]),
        float(curve.exponent[0]),
        float(curve.floor[0]),
        float(value[0]),
        _ends(curves.predict(paper_size)),
        check,
        tuple((float(x), float(curve.predict(x)[0]), *_ends(curves.predict(x))) for x in line),
        curve.is_at_bound(law),
    )


def _hold_out(
    law: str, at: Sequence[float], weights: Array, ratios: Array, draws: Array
) -> Extrapolation | None:
    """The largest size as the others predict it; None if they are too few for the law."""
    curve, curves = (fit(at[:-1], data[:, :-1], weights[:-1], law) for data in (ratios, draws))
    if curve is None or curves is None:
        return None
    predicted = curves.predict(at[-1])
    low, high = _ends(draws[:, -1] - predicted)
    return Extrapolation(
        at[-1],
        float(ratios[0, -1]),
        float(curve.predict(at[-1])[0]),
        _ends(predicted),
        None if low is None or high is None else low <= 0.0 <= high,
    )


def _misses(law: Law) -> float:
    """Distance of a law's prediction of the size held out, in octaves; infinite if not checked."""
    check = law.held_out
    if check is None or check.predicted is None or check.measured is None or check.predicted <= 0:
        return math.inf
    return abs(math.log2(check.measured / check.predicted))


def _judge(law: Law, band: Rule) -> Literal["in the band", "outside", "unclear"]:
    """The answer at the paper's size: of a law that predicted the size held out, else unclear."""
    low, high = law.ci95
    if law.held_out is None or not law.held_out.holds or None in (law.value, low, high):
        return "unclear"
    answer = band.judge(Interval(law.value or 0.0, low or 0.0, high or 0.0))
    return "in the band" if answer == "holds" else "outside" if answer == "fails" else "unclear"


def _ends(draws: Array) -> tuple[float, float] | tuple[None, None]:
    """The 95% interval of draws; unknown if one of them is not finite."""
    if not np.isfinite(draws).all():
        return None, None
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _slope(basis: Array, values: Array, weights: Array) -> Array:
    """Weighted least-squares factor of a basis through the origin for each row, [D]."""
    slope: Array = (weights * basis * values).sum(axis=1) / (weights * basis**2).sum(axis=1)
    return slope


def _mean(values: Array, weights: Array) -> Array:
    """Weighted mean of each row, [D, 1]."""
    mean: Array = (values * weights).sum(axis=1, keepdims=True) / weights.sum()
    return mean


def _search_golden(misfit: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The least misfit between ``low`` and ``high``, element by element."""
    share = (math.sqrt(5.0) - 1.0) / 2.0
    a, b = low.copy(), high.copy()
    for _ in range(GOLDEN_STEPS):
        lower, upper = b - share * (b - a), a + share * (b - a)
        is_left = misfit(lower) < misfit(upper)
        a, b = np.where(is_left, a, lower), np.where(is_left, upper, b)
    return (a + b) / 2.0
