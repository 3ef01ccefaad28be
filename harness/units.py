"""Numbers in SI units, printed for people."""

from __future__ import annotations

_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def format_quantity(value: float, unit: str) -> str:
    """A quantity with a decimal prefix.

    Example:
        >>> format_quantity(6e9, "B/s")
        '6 GB/s'
    """
    for size, prefix in _STEPS:
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def format_seconds(seconds: float) -> str:
    """A duration in the largest unit that it fills.

    Example:
        >>> format_seconds(0.0586), format_seconds(7200), format_seconds(0)
        ('58.6 ms', '2 h', '0 s')
    """
    if abs(seconds) >= 3600.0:
        return f"{seconds / 3600.0:.4g} h"
    if abs(seconds) >= 60.0:
        return f"{seconds / 60.0:.4g} min"
    for size, unit in _SMALL:
        if abs(seconds) >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds:.4g} s"
