"""The largest rate at which a sequence training does not diverge, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.base.seeds import identity
from harness.base.settings import setting
from harness.execution.runs.executed import Progress, Watch, executed
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training import run as _registered  # noqa: F401  # pyright: ignore[reportUnusedImport]
from harness.store import Run, RunWriter, Store

FORMAT = 1
"""Grows when the same configuration would no longer give the same bytes."""
TOLD = ("outer_staleness_mean", "kept_frames")
"""What the summary has of the run at the largest stable rate."""


@dataclass(frozen=True)
class LargestRateConfig:
    """A training, and between which rates its largest stable one is looked for.

    Every rate that is tried is a run of its own. What diverges at a rate is taken to diverge at
    all larger ones.

    Args:
        training: at any rate.
        lowest, highest: an end is tried only if the search comes to lie next to it.
        halvings: of the distance between their logarithms.
    """

    training: SequenceConfig
    lowest: float = setting(above=0.0)
    highest: float = setting(above=0.0)
    halvings: int = setting(at_least=1)
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        ends = {"lowest": self.lowest, "highest": self.highest, "halvings": self.halvings}
        training = replace(self.training, rate=self.lowest).to_dict()
        return {"is": "LargestRateConfig", "training": training, **ends, "format": self.format}


@executed.register
def largest_rate(config: LargestRateConfig, store: Store, watch: Watch) -> Run:
    """The finished search of a configuration, and before it the runs that it asks for.

    Its summary has ``stable``, the largest rate that was, and ``diverged``, the smallest that did;
    a key is missing where no such rate was found.
    """
    name = identity(config.to_dict())

    def tell(progress: Progress) -> None:
        watch(replace(progress, run=name))

    def tried(rate: float) -> Run:
        return executed(replace(config.training, rate=rate), store, tell)

    def execute(writer: RunWriter) -> None:
        stable, diverged = bisected(config, lambda rate: tried(rate).status == "done")
        found = {"stable": stable, "diverged": diverged}
        summary = {name: rate for name, rate in found.items() if 0.0 < rate < math.inf}
        if stable:
            told = tried(stable).summary
            summary |= {name: told[name] for name in TOLD if name in told}
        writer.finish("done", summary)

    return store.obtain(config.to_dict(), execute)


def bisected(config: LargestRateConfig, is_stable: Callable[[float], bool]) -> tuple[float, float]:
    """The largest rate that is stable and the smallest that is not; 0 or inf beyond the ends.

    Args:
        config: the ends and how often to halve.
        is_stable: asked once for each rate that is tried.
    """
    low, high = config.lowest, config.highest
    for _ in range(config.halvings):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_stable(middle) else (low, middle)
    if low == config.lowest and not is_stable(low):
        return 0.0, low
    if high == config.highest and is_stable(high):
        return high, math.inf
    return low, high
