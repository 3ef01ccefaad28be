"""How long the rest of a grid takes, from what runs of each kind took.

A grid holds runs of a tenth of a second beside runs of minutes, so their number says little of the
time. Seeds of one setting take about as long; where none has finished yet, runs of the same class.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from harness.base.seeds import identity
from harness.execution.runs.executed import Configuration, Progress

__all__ = ["Estimate", "Left", "kind_of"]

Kind = tuple[str, str]
"""The class of a configuration, and what it has in common with other seeds."""
OF_A_SEED = ("seed", "corpus_seed", "fingerprint")
ENOUGH = 0.05
"""Share of a run after which the rest of it can be foretold from its beginning."""


@dataclass(frozen=True)
class Estimate:
    """Seconds that the rest takes.

    Attributes:
        seconds: of the runs of which something is known.
        whole: whether that is all of them; else it takes longer.
    """

    seconds: float
    whole: bool


def kind_of(config: Configuration) -> Kind:
    """What decides how long a run takes, as far as it is not measured."""
    return type(config).__name__, identity(_without_seeds(config.to_dict()))


def _without_seeds(table: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in table.items() if key not in OF_A_SEED}
    return {k: _without_seeds(v) if isinstance(v, dict) else v for k, v in kept.items()}  # pyright: ignore[reportUnknownArgumentType]


@dataclass
class Left:
    """What is known of the time that runs take.

    Args:
        kinds: of every run, by its hash.
        processes: runs at a time.
    """

    kinds: Mapping[str, Kind]
    processes: int
    _took: dict[Kind, list[float]] = field(default_factory=dict[Kind, list[float]])

    def learn(self, name: str, seconds: float) -> None:
        """A run is finished."""
        self._took.setdefault(self.kinds[name], []).append(seconds)

    def estimate(
        self, unfinished: Sequence[str], running: Mapping[str, tuple[Progress, float]]
    ) -> Estimate | None:
        """What the rest takes; None where nothing is known of any of it.

        Args:
            unfinished: hashes, also of those that run, in the order in which they begin.
            running: where a run is, and the seconds since it began.
        """
        in_order = sorted(unfinished, key=lambda name: name not in running)  # stable
        rests = [self._rest(name, running) for name in in_order]
        known = [rest for rest in rests if rest is not None]
        if not known:
            return None
        free_s = [0.0] * self.processes  # when each process has nothing left
        for rest in known:
            heapq.heapreplace(free_s, free_s[0] + rest)
        return Estimate(max(free_s), len(known) == len(rests))

    def _rest(self, name: str, running: Mapping[str, tuple[Progress, float]]) -> float | None:
        share, spent_s = _share(running, name)
        whole = self._expected(self.kinds[name], running)
        if share > ENOUGH and (whole is None or spent_s > whole):
            return spent_s * (1.0 - share) / share
        return None if whole is None else max(whole * (1.0 - share), 0.0)

    def _expected(self, kind: Kind, running: Mapping[str, tuple[Progress, float]]) -> float | None:
        """Seconds of a whole run: the mean of its setting, of its class, or of what has begun."""
        alike = [took for known, took in self._took.items() if known[0] == kind[0]]
        begun = list(self._begun(kind[0], running))
        for found in (self._took.get(kind, []), [s for took in alike for s in took], begun):
            if found:
                return fmean(found)
        return None

    def _begun(self, kind: str, running: Mapping[str, tuple[Progress, float]]) -> Iterator[float]:
        for name in running:
            share, spent_s = _share(running, name)
            if share > ENOUGH and self.kinds.get(name, ("", ""))[0] == kind:
                yield spent_s / share


def _share(running: Mapping[str, tuple[Progress, float]], name: str) -> tuple[float, float]:
    """The share of a run that is done, and the seconds since it began."""
    if name not in running:
        return 0.0, 0.0
    progress, spent_s = running[name]
    return min(1.0, progress.done / progress.passes), spent_s
