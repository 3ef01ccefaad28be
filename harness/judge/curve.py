"""A claim's ratio over scale as ``results.json`` holds it; ``scaling`` computes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Word = Literal["in the band", "outside", "unclear"]
"""An extrapolated value against the claim's band; never the word of a verdict."""
Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class Extrapolation:
    """The size held out, measured, and as a law fitted on the smaller sizes predicts it.

    Attributes:
        at: the size.
        measured: ratio there.
        predicted: ratio by the law.
        ci95: interval of the prediction; None at an end if unknown.
        holds: whether 0 lies in the interval of measured minus predicted; None if unknown.
    """

    at: float
    measured: float | None
    predicted: float | None
    ci95: Ends
    holds: bool | None


@dataclass(frozen=True)
class Law:
    """``ratio = 1 + floor + factor n^-exponent`` with a floor of at least 0, fitted to all sizes.

    Attributes:
        name: ``power``, which has no floor, or ``power above a floor``.
        factor, exponent, floor: parameters.
        value: ratio at the paper's size.
        ci95: its 95% interval; None at an end if unknown.
        held_out: check on the largest size; None if the others are too few.
        line: size, ratio and ends of its interval, from the smallest size to the paper's.
        at_bound: whether a parameter lies at a bound of its search; such a law is never chosen.
    """

    name: str
    factor: float
    exponent: float
    floor: float
    value: float | None
    ci95: Ends
    held_out: Extrapolation | None = None
    line: tuple[tuple[float | None, ...], ...] = ()
    at_bound: bool = False


@dataclass(frozen=True)
class Trend:
    """One ratio of a curve, e.g. that on one test set.

    Attributes:
        label: its name; rows of the exhibit with this label have the ratios that were run.
        paper: the paper's ratio, at the paper's size; None if it prints none.
        laws: those with enough sizes.
        chosen: name of the law that predicts the size held out better, of those not at a bound;
            empty if there is none.
        word: its value at the paper's size against the band.
    """

    label: str
    paper: float | None
    laws: tuple[Law, ...]
    chosen: str
    word: Word

    @property
    def law(self) -> Law | None:
        """The chosen law."""
        return next((law for law in self.laws if law.name == self.chosen), None)


@dataclass(frozen=True)
class Curve:
    """A claim's ratio over scale.

    Attributes:
        claim: id of the claim.
        ratio: description of the ratio.
        grows: description of the size.
        unit: unit of the size; empty if it is a number.
        paper_size: the paper's size.
        band: band of the claim; None at an unbounded end.
        trends: the ratios.
        missing: registered seeds that were not run or of which a run diverged, by size; empty if
            the curve is whole.
        registered: SHA-256 of the registration.
    """

    claim: str
    ratio: str
    grows: str
    unit: str
    paper_size: float
    band: Ends
    trends: tuple[Trend, ...]
    missing: dict[str, int] = field(default_factory=dict[str, int])
    registered: str = ""
