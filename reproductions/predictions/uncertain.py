"""Figures of a plan that are known within limits.

`draws` takes one value from each of as many equally likely parts of a figure's law (McKay, Beckman
and Conover, "A comparison of three methods for selecting values of input variables", 1979), so few
draws suffice.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.base.settings import Spec, setting
from harness.cluster_keys import get, is_key, put


@dataclass(frozen=True)
class Uncertain(Spec):
    """A figure of a file that is known within limits.

    Attributes:
        key: a key of the file, as for a sweep.
        law: ``uniform``, from ``low`` to ``high``; ``log-uniform``, the same in the logarithm;
            ``normal``, with these as its 5th and 95th percentiles; ``either``, one of the two,
            equally likely.
        low, high: its limits.
        factor: whether it multiplies the file's value instead of replacing it.
        algorithms: names of the algorithms concerned; none named is all.
        source: of the limits.
    """

    key: str = setting()
    law: str = setting(one_of=("uniform", "log-uniform", "normal", "either"))
    low: float = setting()
    high: float = setting()
    factor: bool = setting(False)
    algorithms: tuple[str, ...] = setting(())
    source: str = setting("")

    def trouble(self) -> tuple[str, str] | None:
        """Limits in the wrong order, or a malformed key."""
        if not self.low <= self.high:
            return "high", f"{self.high!r} is not allowed; allowed: at least low, {self.low!r}"
        if self.law == "log-uniform" and not self.low > 0.0:
            return "low", f"{self.low!r} is not allowed with {self.law}; allowed: above 0"
        if not is_key(self.key):
            return "key", f"{self.key!r} is not a key; allowed: a key of the cluster file"
        return None

    def quantile(self, part: float) -> float:
        """The quantile of the law at probability ``part``.

        Example:
            >>> Uncertain("link.latency_s", "uniform", 0.0, 2.0).quantile(0.25)
            0.5
        """
        if self.law == "either":
            return self.low if part < 0.5 else self.high
        if self.law == "uniform":
            return self.low + part * (self.high - self.low)
        if self.law == "log-uniform":
            return self.low * (self.high / self.low) ** part
        spread = (self.high - self.low) / (2.0 * NormalDist().inv_cdf(0.95))
        return (self.low + self.high) / 2.0 + spread * NormalDist().inv_cdf(part)


def draws(figures: Sequence[Uncertain], count: int, seed: int) -> Any:
    """[D, U] values: ``count`` draws D of each figure, which has its own random stream."""
    parts = (np.arange(count) + 0.5) / count
    values = np.empty((count, len(figures)))
    for place, figure in enumerate(figures):
        order = stream(seed, "uncertain", place).permutation(count)
        values[:, place] = [figure.quantile(part) for part in parts[order].tolist()]
    return values


def with_values(
    table: dict[str, Any], values: Iterable[tuple[Uncertain, float]], where: str
) -> dict[str, Any]:
    """A copy of a file's table with drawn values.

    Raises:
        UserError: there is no such key, or it has no number to multiply.
    """
    changed = copy.deepcopy(table)
    for figure, value in values:
        factor = get(changed, figure.key, where) if figure.factor else 1.0
        if not isinstance(factor, int | float):
            raise UserError(
                f"{where}: {figure.key}: {factor!r} is not a number, so it cannot be scaled"
            )
        drawn = value * factor
        if figure.law == "either" and drawn == int(drawn):  # of a key that takes whole numbers only
            drawn = int(drawn)
        put(changed, figure.key, drawn, where)
    return changed
