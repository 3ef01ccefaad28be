"""Formatting of numbers, with as many digits as the interval supports."""

from __future__ import annotations

import math
from collections.abc import Iterable

Bounds = tuple[float | None, float | None] | None
MISSING = "–"
MINUS = "−"
ROUNDING = 1e-8  # relative: a smaller half width is one of floating-point numbers
SMALL = -5  # the power of ten up to which decimals would be zeros
UNBOUNDED = "no interval"
SAME = "equal in all runs"  # an interval without width: no chance entered, or none that showed


def format_number(value: float | str | None, places: int | None = None) -> str:
    """A figure as the paper prints it; a word stays a word.

    Args:
        value: the paper's figure.
        places: decimals, where a table prints all its figures alike.

    Example:
        >>> format_number(7.63), format_number(None), format_number("holds")
        ('7.63', '–', 'holds')
    """
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    return _sign(f"{value:.6g}") if places is None else format_fixed(value, places)


def places_of(values: Iterable[float | None]) -> int:
    """The most decimals that any of these figures needs.

    Example:
        >>> places_of([23.4, 22.87, None])
        2
    """
    texts = (f"{value:.6g}" for value in values if value is not None)
    return max((len(text.partition(".")[2]) for text in texts if "e" not in text), default=0)


def decimals(value: float, ci95: Bounds) -> int:
    """Decimal places for ``value``: two digits of its half width, else four digits in all.

    One digit of the half width where two would take more than five of the value.
    """
    half = half_width(ci95)
    if half:
        most = max(4 - _magnitude(value), -_magnitude(half))
        return min(6, max(0, min(1 - _magnitude(half), most)))
    return min(6, max(0, 3 - _magnitude(value)))


def half_width(ci95: Bounds) -> float | None:
    """Half the width of a bounded interval, 0 if that is rounding; None if it is unbounded."""
    if ci95 is None or ci95[0] is None or ci95[1] is None:
        return None
    low, high = ci95[0], ci95[1]
    half = (high - low) / 2
    return half if half > ROUNDING * max(abs(low), abs(high)) else 0.0


def format_measured(value: float | None, ci95: Bounds) -> str:
    """Our figure.

    Example:
        >>> found = (5.773e-15, None), (0.25, (0.2, 0.3)), (3, None)
        >>> tuple(format_measured(*each) for each in found)
        ('5.8e−15', '0.250', '3')
    """
    if value is None:
        return MISSING
    if _is_count(value, ci95):
        return format_fixed(value, 0)
    if value and _magnitude(value) <= SMALL and not half_width(ci95):
        return _sign(f"{value:.1e}".replace("e-", f"e{MINUS}"))
    return format_fixed(value, decimals(value, ci95))


def _is_count(value: float, ci95: Bounds) -> bool:
    """Whether a figure is a count, which has no decimals and no interval."""
    return isinstance(value, int) and ci95 is None


def spread(value: float | None, ci95: Bounds) -> str:
    """The interval beside our figure: ``± h`` if it is centred on it, else its ends."""
    half = half_width(ci95)
    if value is None or _is_count(value, ci95):
        return ""
    if ci95 is None or not half:
        return interval(value, ci95)
    off_centre = abs((ci95[0] or 0.0) + half - value)
    if off_centre > 0.05 * half:
        return interval(value, ci95)
    return f"± {format_fixed(half, decimals(value, ci95))}"


def interval(value: float | None, ci95: Bounds) -> str:
    """The interval by its ends; an unbounded one says so."""
    low, high = ci95 or (None, None)
    if low is None and high is None:
        return UNBOUNDED
    if half_width(ci95) == 0.0:
        return SAME
    places = decimals(value or 0.0, ci95)
    if low is None or high is None:
        side, end = ("≤", high) if low is None else ("≥", low)
        return f"{side} {format_fixed(end or 0.0, places)}"
    return f"{format_fixed(low, places)} to {format_fixed(high, places)}"


def format_fixed(value: float, places: int) -> str:
    """``value`` with ``places`` decimals, a true minus sign, and no minus zero."""
    return _sign(f"{value:,.{places}f}".replace(",", "\u202f"))


def with_unit(size: float | str, unit: str) -> str:
    """A size, a text or a number in digits, with its unit if it has one."""
    text = size if isinstance(size, str) else f"{size:,g}"
    return f"{text} {unit}" if unit else text


def duration(seconds: float) -> str:
    """A duration in the unit a person would choose.

    Example:
        >>> duration(42.0), duration(150), duration(8000)
        ('42 s', '2 min 30 s', '2 h 13 min')
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _sign(text: str) -> str:
    if text.startswith("-"):
        return MINUS + text[1:] if text.strip("-0.,") else text[1:]
    return text
