"""Bandwidth that messages get under the limit of a shaper."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.base.settings import Spec, setting


@dataclass(frozen=True)
class Shaping(Spec):
    """A limit on links, of which messages get less than the limit.

    A shaper counts headers too. Where its queue is short for the streams that share it, packets are
    lost and streams wait for their timeouts, so a part of the limit remains unused.

    Attributes:
        payload: share of the bytes on a link that belongs to messages and not to headers.
        limits_bytes_per_s: limits at which the unused share was measured, ascending.
        unused: that share at each of them; between two limits interpolated over their logarithm,
            beyond the first and the last one as there.
    """

    payload: float = setting(1.0, above=0.0, at_most=1.0)
    limits_bytes_per_s: tuple[float, ...] = setting((), at_least=1e-5, at_most=1e21)
    unused: tuple[float, ...] = setting((), at_least=0.0, at_most=0.999)

    def trouble(self) -> tuple[str, str] | None:
        """Limits that do not ascend, or another number of shares."""
        if any(below >= above for below, above in pairwise(self.limits_bytes_per_s)):
            return "limits_bytes_per_s", "not allowed in this order; allowed: ascending limits"
        if len(self.unused) != len(self.limits_bytes_per_s):
            counts = f"{len(self.unused)} values; allowed: {len(self.limits_bytes_per_s)}"
            return "unused", f"{counts}, one for each of limits_bytes_per_s"
        return None

    def rate_under(self, limit: float) -> float:
        """Bytes per second of messages under a limit in bytes per second.

        Examples:
            >>> shaping = Shaping(payload=0.9, limits_bytes_per_s=(1e6, 1e8), unused=(0.2, 0.0))
            >>> round(shaping.rate_under(1e7)), round(shaping.rate_under(1e9))
            (8100000, 900000000)
        """
        if not self.unused:
            return limit * self.payload
        places = [math.log(edge) for edge in self.limits_bytes_per_s]
        unused = float(np.interp(math.log(limit), places, self.unused))
        return limit * self.payload * (1.0 - unused)
