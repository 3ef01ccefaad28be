"""Progress of a grid of runs, for people: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.execution.jobs.grid import Report
from harness.execution.runs.executed import Progress

PLAIN_EVERY_S = 10.0


def remaining_s(report: Report, elapsed_s: float, already: int) -> float | None:
    """Seconds left if the rest goes as what was done since the start; None before anything was."""
    if report.total is None:
        return None
    done = report.finished - already + sum(p.done / p.passes for p in report.running.values())
    left = report.total - already - done
    return max(0.0, elapsed_s * left / done) if done > 0.05 else None


@dataclass
class Display:
    """Shows reports; use as a context manager.

    Args:
        names: what to call each run, by hash.
    """

    names: dict[str, str]
    _started: float = field(default_factory=time.monotonic)
    _last: float = 0.0
    _already: int | None = None
    _live: Live | None = None

    def __enter__(self) -> Display:
        console = Console(stderr=True)
        if console.is_terminal:
            self._live = Live(console=console, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def show(self, report: Report) -> None:
        """Bring the display up to date."""
        now = time.monotonic()
        if self._already is None:
            self._already = report.finished
        left = remaining_s(report, now - self._started, self._already)
        if self._live:
            self._live.update(Group(Text(_head(report, left)), self._table(report)))
        elif now - self._last >= PLAIN_EVERY_S or report.finished == report.total:
            self._last = now
            running = "; ".join(self._line(p) for p in report.running.values())
            print(f"{_head(report, left)} {running}".rstrip(), file=sys.stderr, flush=True)

    def _table(self, report: Report) -> Table:
        table = Table(box=None)
        for heading in ("run", "passes", "error"):
            table.add_column(heading)
        for p in report.running.values():
            table.add_row(self._name(p), f"{p.done:.2f} of {p.passes:g}", _wrong(p))
        return table

    def _line(self, p: Progress) -> str:
        where = f"{self._name(p)} {p.done:.1f}/{p.passes:g} passes"
        return f"{where}, error {_wrong(p)}" if _wrong(p) else where

    def _name(self, p: Progress) -> str:
        return self.names.get(p.run, f"what others start from ({p.run[:12]})")


def _wrong(p: Progress) -> str:
    """The error; nothing of a run that has none, as it trains nothing."""
    if math.isnan(p.frame_error):
        return ""
    return f"{p.frame_error:.1%}" if 0.0 <= p.frame_error <= 1.0 else f"{p.frame_error:.4g}"


def _head(report: Report, left: float | None) -> str:
    time_left = "" if left is None else f", about {_duration(left)} left"
    compiling = f"; compiling, once on this machine: {report.compiling}" if report.compiling else ""
    done = f"{report.finished}" if report.total is None else f"{report.finished} of {report.total}"
    return f"[{done} runs finished{time_left}{compiling}]"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
