"""Figures of a cluster file that are known within limits, and draws of them.

The draws of a figure have one in each of as many equally likely parts of its law (McKay, Beckman
and Conover, "A comparison of three methods for selecting values of input variables", 1979), so
that few of them suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.base.settings import Spec, setting
from harness.simulator.keys import at, is_key, put

__all__ = ["Uncertain", "draws", "set_in"]


@dataclass(frozen=True)
class Uncertain(Spec):
    """A figure of the cluster file that is known within limits.

    Attributes:
        key: which, as for a sweep.
        law: ``uniform``, from ``low`` to ``high``; ``normal``, with these as its 5th and 95th
            percentiles; ``either``, one of the two, equally likely.
        low, high: its limits.
        factor: whether it multiplies what is there.
        algorithms: whose it is; none named is all.
    """

    key: str = setting()
    law: str = setting(one_of=("uniform", "normal", "either"))
    low: float = setting()
    high: float = setting()
    factor: bool = setting(False)
    algorithms: tuple[str, ...] = setting(())

    def trouble(self) -> tuple[str, str] | None:
        """Limits are in order, and the key could be one."""
        if not self.low <= self.high:
            return "high", f"{self.high!r} is not allowed; allowed: at least low, {self.low!r}"
        if not is_key(self.key):
            return "key", f"{self.key!r} is no key; allowed: a key of the cluster file"
        return None

    def quantile(self, part: float) -> float:
        """The value below which this part of the law lies.

        Example:
            >>> Uncertain("link.latency_s", "uniform", 0.0, 2.0).quantile(0.25)
            0.5
        """
        if self.law == "either":
            return self.low if part < 0.5 else self.high
        if self.law == "uniform":
            return self.low + part * (self.high - self.low)
        spread = (self.high - self.low) / (2.0 * NormalDist().inv_cdf(0.95))
        return (self.low + self.high) / 2.0 + spread * NormalDist().inv_cdf(part)


def draws(figures: Sequence[Uncertain], count: int, seed: int) -> Any:
    """[D, U] values of each figure, D of ``count``; each has its own random stream."""
    parts = (np.arange(count) + 0.5) / count
    values = np.empty((count, len(figures)))
    for place, figure in enumerate(figures):
        order = stream(seed, "uncertain", place).permutation(count)
        values[:, place] = [figure.quantile(part) for part in parts[order].tolist()]
    return values


def set_in(table: dict[str, Any], figure: Uncertain, value: float, where: str) -> None:
    """Put a drawn value in its place in the table of a cluster file.

    Raises:
        UserError: there is no such place, or no number in it to be multiplied.
    """
    if figure.factor:
        present = at(table, figure.key, where)
        if not isinstance(present, int | float):
            raise UserError(f"{where}: {figure.key}: {present!r} is no number to multiply")
        value *= present
    put(table, figure.key, value, where)
