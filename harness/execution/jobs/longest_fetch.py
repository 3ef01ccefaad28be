"""The longest interval at which decoders may fetch and a sequence training still gains as much."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from harness.execution.jobs.bisection import bisected
from harness.execution.runs.executed import Progress, Watch, executed
from harness.execution.runs.sequence import SequenceConfig
from harness.execution.training import run as _registered  # noqa: F401  # pyright: ignore[reportUnusedImport]
from harness.identity import identity
from harness.spec import setting
from harness.store import Run, RunWriter, Store

FORMAT = 1
"""Grows when the same configuration would no longer give the same bytes."""


@dataclass(frozen=True)
class LongestFetchConfig:
    """A training, and among which fetch intervals its longest harmless one is looked for.

    Harmless is an interval that keeps that share of what the training gains. Every interval that
    is tried is a run of its own. What harms at an interval is taken to harm at all longer ones.

    Args:
        training: fetching as often as others are to be compared with.
        tried: intervals in simulated seconds, ascending, at least two; an end is tried only if
            the search comes to lie next to it.
        halvings: of the distance between the logarithms of the two neighbours that remain.
        keeps: the share of the criterion's gain.
    """

    training: SequenceConfig
    tried: tuple[float, ...]
    halvings: int = setting(at_least=0)
    keeps: float = setting(above=0.0, at_most=1.0)
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what the run's identity hashes."""
        return {
            "is": "LongestFetchConfig",
            "training": self.training.to_dict(),
            "tried": list(self.tried),
            "halvings": self.halvings,
            "keeps": self.keeps,
            "format": self.format,
        }


@executed.register
def longest_fetch(config: LongestFetchConfig, store: Store, watch: Watch) -> Run:
    """The finished search of a configuration, and before it the runs that it asks for.

    Its summary has ``harmless``, the longest interval in seconds that was, and ``harmful``, the
    shortest that was not; a key is missing where no such interval was found, both where the
    training itself gains nothing.
    """
    name = identity(config.to_dict())

    def tell(progress: Progress) -> None:
        watch(replace(progress, run=name))

    def gain(training: SequenceConfig) -> float:
        return gained(executed(training, store, tell))

    def execute(writer: RunWriter) -> None:
        whole = gain(config.training)
        if not whole > 0.0:
            writer.finish("done", {})
            return

        def harmless(fetch_s: float) -> bool:
            return gain(replace(config.training, fetch_s=fetch_s)) >= config.keeps * whole

        ends = bisected(config.tried, config.halvings, harmless)
        found = dict(zip(("harmless", "harmful"), ends, strict=True))
        writer.finish("done", {name: t for name, t in found.items() if 0.0 < t < math.inf})

    return store.obtain(config.to_dict(), execute)


def gained(run: Run) -> float:
    """What the held-out criterion has gained, nats a frame; 0 for a run that diverged or lost."""
    if run.status != "done":
        return 0.0
    _, values, _ = run.curve("held_out_criterion")
    return max(float(values[-1] - values[0]), 0.0)
