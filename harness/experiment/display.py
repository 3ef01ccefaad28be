"""Progress of a grid: what runs, how far it is, and one estimate of the time that is left.

Live lines on a terminal, and a plain line every `PLAIN_EVERY_S` elsewhere.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from harness.base.log import LOG
from harness.base.seeds import SHORT
from harness.experiment.contract import Progress

if TYPE_CHECKING:
    from rich.live import Live

PLAIN_EVERY_S = 10.0
"""Seconds between two plain lines."""

WORTH_TELLING_S = 10.0
"""Seconds of work below which no summary is printed."""

ENOUGH = 0.02
"""Share of the work after which the time left is extrapolated from it, or one training."""


def describe_seconds(seconds: float) -> str:
    """Seconds or minutes, for people."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


@dataclass
class Tally:
    """Trainings of a whole search, which chooses its runs on the way.

    Args:
        most: largest number of trainings.
        usual: number of trainings that it mostly takes.
        done: number of trainings that are done.
        made: number of those that the store lacked.
        began_s: when the first began, on the monotonic clock.
        shown_s: when a plain line was last printed, likewise.
    """

    most: int = 0
    usual: float = 0
    done: int = 0
    made: int = 0
    began_s: float = field(default_factory=lambda: time.monotonic())
    shown_s: float = 0.0

    def describe(self, finished: int) -> str:
        """The state in a few words, e.g. ``"training 5 of at most 28"``.

        Args:
            finished: number of trainings that are done and not yet counted.
        """
        return f"training {min(self.done + finished + 1, self.most)} of at most {self.most}"


class Display:
    """Shows on standard error how far runs are; use as a context manager.

    Args:
        titles: name of each run for the user, by hash.
        efforts: amount of work of each run that is to be made, by hash; equal ones if all are 0.
        already: number of runs that were there before.
        tally: counts the trainings of a search, of which these runs are a part; None if they are
            all.
    """

    def __init__(
        self,
        titles: Mapping[str, str],
        efforts: Mapping[str, float],
        already: int = 0,
        tally: Tally | None = None,
    ) -> None:
        self._titles, self._tally, self._already = titles, tally, already
        self._efforts = efforts if any(efforts.values()) else dict.fromkeys(efforts, 1.0)
        self._clock = tally or Tally(usual=already + len(efforts))
        self._running, self._finished = dict[str, Progress](), set[str]()
        self._compiling, self._lock = "", Lock()
        self._live: Live | None = None

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True)
            self._live.__enter__()
        if self._live or self._already:  # else the first plain line has the first progress
            self._show()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)
        elapsed_s = time.monotonic() - self._clock.began_s
        if kind is None and self._tally is None and elapsed_s >= WORTH_TELLING_S:
            count = len(self._efforts)
            before = f", {self._already} finished before" if self._already else ""
            seconds = describe_seconds(elapsed_s)
            LOG.info(f"{count} run{'' if count == 1 else 's'} in {seconds}{before}")

    def hear(self, news: Any) -> None:
        """Handle news of a run (`harness.experiment.pools.Hear`), on any thread."""
        # Levels are of a process, so a child's line is judged by this process's level.
        if isinstance(news, logging.LogRecord):
            if LOG.isEnabledFor(news.levelno):
                LOG.handle(news)
            return
        with self._lock:
            if not isinstance(news, Progress):
                self._compiling = news
            elif news.run not in self._efforts and news.done >= news.passes:
                # A run that others start from: no job of the grid reports its end.
                self._running.pop(news.run, None)
            elif news.run not in self._finished:
                self._running[news.run] = news
            self._show()

    def finish(self, name: str) -> None:
        """Note that a run is finished."""
        with self._lock:
            self._running.pop(name, None)
            self._finished.add(name)
            self._show()

    def left_s(self) -> float | None:
        """Seconds that are left, at the pace so far; None at the beginning.

        Of a search these are those of the trainings that it mostly takes.
        """
        shares = {name: min(1.0, p.done / p.passes) for name, p in self._running.items()}
        shares |= dict.fromkeys(self._finished, 1.0)
        progress = sum(effort * shares.get(name, 0.0) for name, effort in self._efforts.items())
        clock, count = self._clock, len(self._efforts)
        progress *= count / (sum(self._efforts.values()) or 1.0)
        trained, ahead = clock.made + progress, clock.usual - clock.done - self._already
        left = max(ahead, count) - progress
        # Extrapolated from a moment of work, the time would jump.
        is_enough = trained > min(1.0, ENOUGH * (trained + left))
        return (time.monotonic() - clock.began_s) * left / trained if is_enough else None

    def _show(self) -> None:
        now_s = time.monotonic()
        # The end of a grid is always told; of a search, these are only some of the runs.
        is_last = self._tally is None and len(self._finished) == len(self._efforts)
        if self._live:
            from rich.text import Text

            self._live.update(Text("\n".join([self._head(), *self._lines()])))
        elif is_last or now_s - self._clock.shown_s >= PLAIN_EVERY_S:
            self._clock.shown_s = now_s
            LOG.info(f"{self._head()} {'; '.join(self._lines())}".rstrip())

    def _head(self) -> str:
        compiling = self._compiling and f"; compiling, once on this machine: {self._compiling}"
        left_s, about = self.left_s(), "about " if self._tally else ""
        remaining = f", {about}{describe_seconds(left_s)} left" if left_s and left_s >= 1.0 else ""
        finished, total = (self._already + len(n) for n in (self._finished, self._efforts))
        if self._tally:
            return f"[{self._tally.describe(finished)}{remaining}{compiling}]"
        return f"[{finished} of {total} runs finished{remaining}{compiling}]"

    def _lines(self) -> Iterator[str]:
        """The progress of each running run."""
        for run, p in self._running.items():
            title = self._titles.get(run, f"start of other runs ({run[:SHORT]})")
            measured = f", {p.measured}" if p.measured else ""
            yield f"{title} {p.done:.1f}/{p.passes:g} {p.unit}{measured}"
