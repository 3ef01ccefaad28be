"""A law of stability, beyond the paper: the largest stable rate from the age of outer gradients.

The paper needs a smaller rate with more replicas and does not quantify it. If one replica with
fresh gradients is stable up to a rate r0 a frame, and age lowers that rate in proportion,

    1 / (rate x slots) = a (1 + b x age),

with the mean age of outer gradients in updates. Where age dominates, rate x stale frames is
constant (stale frames: slots x age); the fit shows how far from there the cells are. It is fitted
on some cells and tested on others.

Beside it are the largest rates of two algorithms for stale gradients. Staleness-aware rates (Zhang
et al., arXiv 1511.05950) divide a gradient's rate by its staleness, and delay compensation (Zheng
et al., arXiv 1609.08326) corrects it to first order. Both use the staleness of an inner gradient,
the number of updates since its replica read the model, and not the age of the outer gradient in
it. All runs are on development data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.judge.builders import Maker, Runs
from harness.judge.interval import Interval
from harness.judge.results import Exhibit, Row
from harness.judge.statistics import Array, Values, t_quantile
from harness.store import Run
from reproductions.paper import Subject
from reproductions.paper3_async_mmi.experiments import (
    ALIKE,
    ASKED,
    CELLS,
    FITTED,
    HELD_OUT,
    RIVALS,
    STRENGTH,
    STRENGTHENED,
    STRENGTHENED_BY,
    Cell,
)
from reproductions.run_metrics import hashes, summary_values

AGES = np.geomspace(1e-5, 1.0, 501)
"""Grid of b, for one update."""

LARGE = 1e4
"""Factor of the rates in figures and tables."""


@dataclass(frozen=True)
class Law:
    """The two constants of the law above.

    Attributes:
        fresh: a, one over the largest stable rate times slots without age.
        wear: b, for one update.
    """

    fresh: float
    wear: float

    def rate(self, age: float, slots: float) -> float:
        """The largest stable rate at an age in updates."""
        return 1.0 / (self.fresh * (1.0 + self.wear * age) * slots)


def fit_law(ages: Values, slots: Values, rates: Values) -> Law:
    """The law with the least squared error of the rates' logarithms.

    Args:
        ages: of each cell's outer gradients, in updates, [C].
        slots: of its minibatches, [C].
        rates: the largest stable, [C].
    """
    age, wanted = np.asarray(ages, np.float64), -np.log(np.asarray(rates) * np.asarray(slots))
    # For a given b the best log a is a mean, so the fit is a search over a grid of b alone.
    shapes = np.log1p(AGES[:, None] * age)
    level = (wanted - shapes).mean(axis=1)
    best = int(np.argmin(((wanted - shapes - level[:, None]) ** 2).sum(axis=1)))
    return Law(math.exp(float(level[best])), float(AGES[best]))


def slope(x: Values, y: Values) -> Interval:
    """The slope of log y on log x by least squares, with Student's interval.

    Args:
        x: above 0, at least three different, [C].
        y: above 0, [C].
    """
    u, v = np.log(np.asarray(x, np.float64)), np.log(np.asarray(y, np.float64))
    du, dv = u - u.mean(), v - v.mean()
    found = float(du @ dv / (du @ du))
    spare = len(u) - 2
    scatter = float(((dv - found * du) ** 2).sum()) / spare
    half = t_quantile(spare) * math.sqrt(scatter / float(du @ du))
    return Interval(found, found - half, found + half)


TOLD = ("stable", "diverged", "outer_staleness_mean")


@dataclass(frozen=True)
class RateBracket:
    """Result of a cell's search: stable and diverged rate, age in updates, and slots."""

    stable: float
    diverged: float
    age: float
    slots: int

    @classmethod
    def from_runs(cls, runs: Sequence[Run]) -> RateBracket:
        """The bracket of one search, which all seeds share; NaN where an end was not found."""
        stable, diverged, age = (float(summary_values(runs, name).mean()) for name in TOLD)
        return cls(stable, diverged, age, runs[0].config["training"]["slots"])

    @property
    def rate(self) -> float:
        """The bracket's middle."""
        return math.sqrt(self.stable * self.diverged)


def law(subject: Subject, runs: Runs) -> Exhibit:
    """Largest stable rates by replicas, slots and kept frames; fitted, predicted and measured."""
    del subject
    found = {cell: RateBracket.from_runs(runs[cell.name]) for cell in CELLS}
    known, made = _complete_cells(found), _law_of(found)
    rows: list[Row] = []
    for cell, seen in found.items():
        kind = "fitted" if cell in FITTED else "held out"
        label = f"{cell.name.removeprefix('law ')} ({kind})"
        predicted = made.rate(seen.age, seen.slots)
        columns = {
            "age (updates)": seen.age,
            "stable at": seen.stable,
            "diverged at": seen.diverged,
            "the law": predicted,
            "measured over law": seen.rate / predicted,
            "rate × stale frames": seen.rate * seen.slots * seen.age,
        }
        run = hashes(runs[cell.name])
        rows += [Row(label, column, None, value, None, run) for column, value in columns.items()]
    return Exhibit(
        "p3.law", "table", "Largest stable rate by replicas, slots and kept frames",
        tuple(rows), paper_label="Beyond the paper", note=_describe_fit(made, known, found),
    )  # fmt: skip


def law_figure(subject: Subject, runs: Runs) -> Exhibit:
    """The same rates over the age of gradients, a curve for each size of the slots, and the law."""
    del subject
    found = {cell: RateBracket.from_runs(runs[cell.name]) for cell in CELLS}
    return figure(found, {cell: hashes(runs[cell.name]) for cell in CELLS})


def figure(found: Mapping[Cell, RateBracket], behind: Mapping[Cell, tuple[str, ...]]) -> Exhibit:
    """The figure of the cells.

    Args:
        found: result of each cell's search.
        behind: hashes of its runs.
    """
    made, curves = _law_of(found), dict[str, list[Row]]()
    shown = [cell for cell in found if math.isfinite(found[cell].rate)]
    for cell in sorted(shown, key=lambda each: (each.slots, found[each].age)):
        seen, label = found[cell], f"slots × {cell.slots:g}"
        kept = "" if cell.cancel_below == Cell.cancel_below else f", τ {cell.cancel_below:g}"
        for name, rate in (
            (f"{label}{kept}", seen.rate),
            (f"law, {label}", made.rate(seen.age, seen.slots)),
        ):
            row = Row(name, seen.age, None, LARGE * rate, None, behind[cell])
            curves.setdefault(name, []).append(row)
    held = "; ".join(cell.name.removeprefix("law ") for cell in HELD_OUT)
    wide = max((found[cell].diverged / found[cell].stable for cell in shown), default=math.nan)
    return Exhibit(
        "p3.law-drawn", "figure", "Largest stable rate over the age of outer gradients",
        tuple(row for rows in curves.values() for row in rows), paper_label="Beyond the paper",
        axes={"x": "age of outer gradients (updates)", "y": "largest stable rate (10⁻⁴)"},
        draw={"as": "curves", "x_scale": "log"},
        note=f"Middles of brackets, the widest a factor of {wide:.2f}; p3.law has their ends. "
        "Frames are left out whose derivative adds up to less than τ in size; τ is "
        f"{Cell.cancel_below:g} where none is told. Held out of the fit: {held}.",
    )  # fmt: skip


def _complete_cells(found: Mapping[Cell, RateBracket]) -> list[RateBracket]:
    """Cells of the fit with both ends of the bracket."""
    return [found[cell] for cell in FITTED if math.isfinite(found[cell].rate)]


def _law_of(found: Mapping[Cell, RateBracket]) -> Law:
    """The fitted law; unknown where a cell of the fit has no rate."""
    seen = _complete_cells(found)
    if len(seen) < len(FITTED):
        return Law(math.nan, math.nan)
    return fit_law([m.age for m in seen], [m.slots for m in seen], [m.rate for m in seen])


def _describe_fit(made: Law, seen: Sequence[RateBracket], found: dict[Cell, RateBracket]) -> str:
    if len(seen) < len(FITTED):
        return "Not all searches that the law is fitted to found both ends."
    stale = np.array([m.slots * m.age for m in seen])
    rates = np.array([m.rate for m in seen])
    steep = slope(stale, rates)
    held = {cell: found[cell] for cell in HELD_OUT if math.isfinite(found[cell].rate)}
    laws = {"the law": [made.rate(m.age, m.slots) for m in held.values()]}
    for name, size in CONSTANT.items():
        level = _level([found[cell].rate * size(cell, found[cell]) for cell in FITTED])
        laws[name] = [level / size(cell, m) for cell, m in held.items()]
    measured = list(held.values())
    errors = "; ".join(f"{n} {_error(measured, p):.0%}" for n, p in laws.items())
    return (
        f"1 / (rate × slots) = {made.fresh:.3g} (1 + {made.wear:.2g} × age), fitted on "
        f"{len(seen)} cells. Root mean squared error of predicted rates on {len(held)} held-out "
        f"cells: {errors}. The slope of log rate on log stale frames is {steep.estimate:.2f} "
        f"[{steep.low:.2f}, {steep.high:.2f}]; −1 would be a constant product. One development "
        "seed; each rate is known up to its bracket."
    )


def _level(products: Values) -> float:
    """The constant that products are held to be."""
    return float(np.exp(np.log(np.asarray(products)).mean()))


def _error(held: Sequence[RateBracket], predicted: Values) -> float:
    """Root mean squared relative error, in logarithms; NaN without cells."""
    if not held:
        return math.nan
    off: Array = np.log(np.asarray(predicted) / np.array([m.rate for m in held]))
    return math.sqrt(float((off**2).mean()))


CONSTANT: Mapping[str, Callable[[Cell, RateBracket], float]] = {
    "rate × stale frames constant": lambda cell, seen: seen.slots * seen.age,
    "rate × staleness of inner gradients constant": lambda cell, seen: max(1, cell.replicas - 1),
    "one rate for all cells": lambda cell, seen: 1.0,
}
"""Rival laws, each a constant product with the rate: of age alone, of the staleness that
staleness-aware rates use, and of nothing."""

NEEDS = tuple(cell.name for cell in CELLS)

LAW = (
    Maker("p3.law", NEEDS, law, smoke=False, on_request=("laptop",)),
    Maker("p3.law-drawn", NEEDS, law_figure, smoke=False, on_request=("laptop",)),
)

AWARE, COMPENSATED = RIVALS

PLAIN = "plain (10⁻⁴)"


def rivals(subject: Subject, runs: Runs) -> Exhibit:
    """Largest stable rates of plain asynchronous SGD and of both, cell by cell."""
    del subject
    rows: list[Row] = []
    for cell in ASKED:
        kind = "held out" if cell in HELD_OUT else "fitted"
        label = f"{cell.name.removeprefix('law ')} ({kind})"
        plain = RateBracket.from_runs(runs[cell.name]).rate
        rows.append(_row(label, PLAIN, LARGE * plain, runs, cell.name))
        for name in RIVALS:
            setting = cell.rival(name)
            found = RateBracket.from_runs(runs[setting]).rate
            alike = found / (cell.replicas - 1) if name == AWARE else found
            rows.append(_row(label, f"{name} (10⁻⁴)", LARGE * found, runs, setting))
            column = f"{name}, over plain"
            rows.append(_row(label, column, alike / plain, runs, setting, cell.name))
    plainly = _spread(runs, [cell.name for cell in ALIKE])
    aware, compensated = (_spread(runs, [cell.rival(n) for cell in ALIKE]) for n in RIVALS)
    counts = ", ".join(str(cell.replicas) for cell in ALIKE)
    return Exhibit(
        "p3.law-rivals", "table", "Largest stable rates with algorithms for stale gradients",
        tuple(rows), paper_label="Beyond the paper",
        note=f"Middles of brackets. From one to another of {counts} replicas, all else alike, "
        f"plain SGD's largest rate varies by {plainly}, that of staleness-aware rates by {aware} "
        f"(by 1 if the division made up for replicas), of delay compensation by {compensated}. "
        "Over plain, staleness-aware rates are divided by the number of other replicas. When a "
        "pass ends, replicas run out of utterances: fresh gradients have undivided rates. Delay "
        f"compensation has λ = {STRENGTH:g}; {_strengths(runs)}. One development seed.",
    )  # fmt: skip


def _strengths(runs: Runs) -> str:
    """The largest rate of each λ in the cell where they are compared."""
    found: list[str] = []
    for strength, setting in STRENGTHENED_BY.items():
        rate = LARGE * RateBracket.from_runs(runs[setting]).rate
        told = f"{rate:.3g} · 10⁻⁴" if math.isfinite(rate) else "not between the ends"
        found.append(f"λ {strength:g} {told}")
    return f"with {STRENGTHENED.replicas} replicas {', '.join(found)}"


def _spread(runs: Runs, settings: Sequence[str]) -> str:
    """The largest of some rates over the smallest, in words."""
    rates = [RateBracket.from_runs(runs[setting]).rate for setting in settings]
    over = max(rates) / min(rates) if all(map(math.isfinite, rates)) else math.nan
    return f"a factor of {over:.2g}" if math.isfinite(over) else "an unknown factor"


def _row(label: str, column: str, value: float, runs: Runs, *settings: str) -> Row:
    """A number, and the searches behind it."""
    behind = tuple(hash_ for setting in settings for hash_ in hashes(runs[setting]))
    return Row(label, column, None, value, None, behind)


BARE = tuple(cell.name for cell in ASKED)

RIVALLED = tuple(cell.rival(name) for cell in ASKED for name in RIVALS)

RIVALS_NEEDS = (*BARE, *RIVALLED, *STRENGTHENED_BY.values())

BESIDE = Maker("p3.law-rivals", RIVALS_NEEDS, rivals, smoke=False, on_request=("laptop",))
