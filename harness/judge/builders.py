"""Build exhibits and claims from finished runs.

A maker builds one exhibit or claim of any paper. A run that diverged or failed has a hash and a
configuration, but its metrics cannot be read: values that need them are missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

from harness.judge.results import Claim, Exhibit, Row
from harness.judge.statistics import Interval
from harness.store import Run

Runs = Mapping[str, Sequence[Run]]
"""Finished runs by setting, one for each seed, in the order of the seeds."""

ASKED = "divergence_asked_of"
"""Provenance key of the runs that serve only to find out whether training diverges."""

Subject = TypeVar("Subject")

Made = TypeVar("Made", Exhibit, Claim)


@dataclass(frozen=True)
class Maker(Generic[Subject, Made]):
    """Recipe of one exhibit or claim: its id, the settings it needs and a function.

    Args:
        id: as in the list of exhibits and claims, e.g. ``"p1.table2"``.
        needs: names of settings; empty if no runs are needed.
        make: function of the report's subject and the finished runs by setting.
        divergence: whether the question is if training diverges: then it is made from diverged
            runs too, and a diverged run does not make the report a failure.
        timelines: number of runs per setting, in the order of seeds, that it reads timelines of.
        on_request: scales at which it is made only if named or with everything, since none of its
            own runs decides a claim; the published one stands in the report otherwise.
    """

    id: str
    needs: tuple[str, ...]
    make: Callable[[Subject, Runs], Made]
    divergence: bool = False
    timelines: float = 0
    on_request: tuple[str, ...] = ()

    def sound(self, run: Run) -> bool:
        """Whether the run ended with a status that the maker can use."""
        return run.status == "done" or (self.divergence and run.status == "diverged")

    def readable(self, runs: Runs) -> Runs:
        """The needed runs by setting, each unsound one as `Unreadable`."""
        return {
            setting: [run if self.sound(run) else Unreadable.from_run(run) for run in runs[setting]]
            for setting in self.needs
        }


def build_exhibit(maker: Maker[Subject, Exhibit], subject: Subject, runs: Runs) -> Exhibit:
    """Build the exhibit; its note names the runs that did not end, if any."""
    exhibit = maker.make(subject, maker.readable(runs))
    return replace(exhibit, note=_explain_missing(exhibit.note, maker, runs))


def build_claim(maker: Maker[Subject, Claim], subject: Subject, runs: Runs) -> Claim:
    """Build the claim from the parts that can be judged; its note names runs that did not end."""
    claim = maker.make(subject, maker.readable(runs))
    missing = [p.label for p in claim.parts if p.measured is None and p.ci95 == (None, None)]
    return replace(claim, note=_explain_missing(claim.note, maker, runs, missing))


def divergence_hashes(makers: Sequence[Maker[Any, Any]], runs: Runs) -> list[str]:
    """Hashes of the runs that only makers with ``divergence`` need."""
    divergence, further = (
        {run.hash for m in makers if m.divergence == asks for s in m.needs for run in runs[s]}
        for asks in (True, False)
    )
    return sorted(divergence - further)


def _explain_missing(
    note: str, maker: Maker[Any, Any], runs: Runs, missing: Sequence[str] = ()
) -> str:
    """Append to a note the parts that were not measured and the runs that did not end."""
    broken = {
        run.ending(name_run(setting, run)): None
        for setting in maker.needs
        for run in runs[setting]
        if not maker.sound(run)
    }
    if not broken:
        return note
    parts = f"Not measured: {', '.join(missing)}." if missing else ""
    return " ".join(filter(None, (note, parts, f"{'; '.join(broken)}.")))


def name_run(setting: str, run: Run) -> str:
    """A run by its setting, and its seed if it has one."""
    return f"{setting}, seed {run.config['seed']}" if "seed" in run.config else setting


P = ParamSpec("P")

T = TypeVar("T")

UNKNOWN = Interval(math.nan)
"""Statistic of runs that did not end: no estimate, an unbounded interval."""

NO_ROWS = tuple[Row, ...]()
"""Curve of runs that did not end: no points."""


class DidNotEnd(Exception):  # noqa: N818 (what happened, not what was wrong)
    """A maker read the results of a run that diverged or failed."""


@dataclass(frozen=True)
class Unreadable(Run):
    """Stand-in for a run that did not end: reading its results raises `DidNotEnd`."""

    @classmethod
    def from_run(cls, run: Run) -> Unreadable:
        """The same run, unreadable."""
        return cls(*(getattr(run, entry.name) for entry in fields(run)))

    def __getattribute__(self, name: str) -> Any:
        if name in ("status", "summary", "metrics", "curve", "path", "dir"):
            raise DidNotEnd
        return super().__getattribute__(name)


def unless_missing(otherwise: T) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator of a function of runs: return ``otherwise`` if one of its runs did not end.

    Args:
        otherwise: NaN or an unbounded interval, which decides no verdict.
    """

    def decorate(reading: Callable[P, T]) -> Callable[P, T]:
        @wraps(reading)
        def read(*args: P.args, **choices: P.kwargs) -> T:
            try:
                return reading(*args, **choices)
            except DidNotEnd:
                return otherwise

        return read

    return decorate
