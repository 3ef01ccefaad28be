"""Trainings of a search: how many were done, how many there can be, and the time that is left."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import fmean

from harness.store import Run


@dataclass(frozen=True)
class Span:
    """Bounds of a number of trainings."""

    least: int
    most: int

    def __add__(self, other: Span) -> Span:
        return Span(self.least + other.least, self.most + other.most)

    def __mul__(self, times: int) -> Span:
        return Span(self.least * times, self.most * times)

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"

    def count(self, name: str) -> str:
        """The bounds with the name of what is counted, in the plural unless it is one."""
        return f"{self} {name}{'' if self.most == 1 else 's'}"


@dataclass
class Tally:
    """Trainings of a whole search, which chooses its runs on the way.

    Args:
        jobs: number of runs at a time.
        done: number of trainings that are done.
        shown_s: when a line of progress was last printed, on the monotonic clock.
    """

    jobs: int = 1
    done: int = 0
    shown_s: float = 0.0
    _left: dict[Hashable, Span] = field(default_factory=dict[Hashable, Span])
    _took_s: dict[str, float] = field(default_factory=dict[str, float])

    def expect(self, part: Hashable, further: Span) -> None:
        """Set how many further trainings a part of the search needs."""
        self._left[part] = further

    def add(self, part: Hashable, run: Run) -> None:
        """Count a finished run."""
        self.done += 1
        left = self._left.get(part, Span(0, 0))
        self._left[part] = Span(max(left.least - 1, 0), max(left.most - 1, 0))
        took = run.provenance.get("wall_s")
        if isinstance(took, int | float):
            self._took_s[run.hash] = float(took)

    @property
    def total(self) -> Span:
        """Bounds of the number of all trainings, those that are done included."""
        return sum(self._left.values(), Span(self.done, self.done))

    def left_s(self, done: int) -> tuple[float, float] | None:
        """Bounds of the seconds that are left, by the trainings so far; None without any.

        The first is the least number of trainings at the pace of the fastest, the second the
        largest number at the mean pace.

        Args:
            done: number of trainings that are done by now.
        """
        took = [*self._took_s.values()]
        if not took:
            return None
        least, most = self.total.least - done, self.total.most - done
        return max(least, 0) * min(took) / self.jobs, max(most, 0) * fmean(took) / self.jobs

    def describe(self, finished: int = 0) -> str:
        """The state in a few words, e.g. ``"training 5 of at most 28, 40 s to 90 s left"``.

        Args:
            finished: number of trainings that are done and not yet added.
        """
        done, total = self.done + finished, self.total
        many = f"at most {total.most}" if total.least < total.most else f"{total.most}"
        told = f"training {min(done + 1, total.most)} of {many}"
        if (left := self.left_s(done)) is None:
            return told
        ends = [*dict.fromkeys(describe_seconds(each) for each in left)]
        return f"{told}, {' to '.join(ends)} left"


def describe_seconds(seconds: float) -> str:
    """Seconds or minutes, for people."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
