"""Execution of a grid of named runs with a progress display.

The display has live lines on a terminal, and plain lines elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.base.log import LOG
from harness.base.seeds import identity
from harness.grid.carriers import Submission
from harness.grid.grid import ENOUGH, OWN, Estimate, Report, Runner
from harness.grid.tally import Tally, describe_seconds
from harness.store import Run, Store
from harness.tasks.contract import Configuration, Progress

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

PLAIN_EVERY_S = 10.0
"""Seconds between two plain lines."""

WORTH_TELLING_S = 10.0
"""Seconds of work below which no summary is printed."""


def remaining(report: Report, elapsed_s: float) -> Estimate | None:
    """Remaining time: the report's range, or that of a single run from its progress so far."""
    if report.left is not None or report.total != 1:
        return report.left
    done = sum(p.done / p.passes for p in report.running.values())
    return Estimate.from_middle(elapsed_s * (1.0 - done) / done, OWN) if done > ENOUGH else None


@dataclass
class Display:
    """Shows reports on standard error; use as a context manager.

    Args:
        names: title of each run, by hash.
        tally: counts the trainings of a search, of which these runs are a part; None if they are
            all.
    """

    names: dict[str, str]
    tally: Tally | None = None
    _started: float = field(default_factory=lambda: time.monotonic())
    _last: float = 0.0
    _already: int | None = None
    _live: Live | None = None
    _report: Report | None = None

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)
        report, elapsed_s = self._report, time.monotonic() - self._started
        if kind is not None or report is None or elapsed_s < WORTH_TELLING_S or self.tally:
            return
        if report.total is not None:
            LOG.info(_summary(report, self._already or 0, elapsed_s))

    def show(self, report: Report) -> None:
        """Show a report; on plain output, at most every `PLAIN_EVERY_S`, and at the end."""
        now = time.monotonic()
        if self._already is None:  # the first report: runs that the store had before
            self._already = report.finished
        self._report = report
        left = remaining(report, now - self._started)
        head = _head(report, left, self.tally)
        if self._live:
            self._live.update(self._draw(head, report))
        elif self._is_due(report, now):
            running = "; ".join(self._line(p) for p in report.running.values())
            LOG.info(f"{head} {running}".rstrip())

    def _is_due(self, report: Report, now: float) -> bool:
        """Whether a plain line is due; if so, the next one is due some seconds later."""
        last = self.tally.shown_s if self.tally else self._last
        is_last = self.tally is None and report.finished == report.total
        if now - last < PLAIN_EVERY_S and not is_last:
            return False
        self._last = now
        if self.tally:
            self.tally.shown_s = now
        return True

    def _draw(self, head: str, report: Report) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None)
        for heading in ("run", "progress", "measured"):
            table.add_column(heading)
        for p in report.running.values():
            table.add_row(self._name(p), f"{p.done:.2f} of {p.passes:g} {p.unit}", p.measured)
        return Group(Text(head), table)

    def _line(self, p: Progress) -> str:
        where = f"{self._name(p)} {p.done:.1f}/{p.passes:g} {p.unit}"
        return f"{where}, {p.measured}" if p.measured else where

    def _name(self, p: Progress) -> str:
        return self.names.get(p.run, f"start of other runs ({p.run[:12]})")


def _head(report: Report, left: Estimate | None, tally: Tally | None = None) -> str:
    ends = () if left is None else (left.least_s, left.most_s)
    told = " to ".join(dict.fromkeys(map(describe_seconds, ends)))
    time_left = f", {told} left" if told else ""
    compiling = f"; compiling, once on this machine: {report.compiling}" if report.compiling else ""
    if tally:
        return f"[{tally.describe(report.finished)}{compiling}]"
    done = f"{report.finished}" if report.total is None else f"{report.finished} of {report.total}"
    return f"[{done} runs finished{time_left}{compiling}]"


def _summary(report: Report, already: int, elapsed_s: float) -> str:
    """Closing line of a grid: number of runs and time."""
    made = report.finished - already if report.total != 1 else 1
    found = f", {already} finished before" if already and report.total != 1 else ""
    return f"{made} run{'' if made == 1 else 's'} in {describe_seconds(elapsed_s)}{found}"


Key = TypeVar("Key", bound=Hashable)


def execute_named(
    configs: Mapping[Key, Configuration],
    called: Callable[[Key], str],
    store: Store | Path,
    jobs: int,
    budget_s: float | None = None,
    submit: Submission | None = None,
) -> dict[Key, Run]:
    """Run every configuration and return its finished run; equal ones run once.

    Args:
        configs: configurations, by any keys.
        called: gives the title of a key on the display.
        store: store of the runs, or its folder.
        jobs: number of processes, or of jobs at a time.
        budget_s: seconds after which running ones are stopped, with checkpoints; None for no limit.
        submit: job backend; None for processes of this machine.

    Raises:
        UserError, ProcessDied, KeyboardInterrupt: as `harness.grid.grid.execute`.
    """
    there = store if isinstance(store, Store) else Store(store)
    with Runner(there, jobs, submit) as runner:
        return run_named(runner, configs, called, budget_s)


def run_named(
    runner: Runner,
    configs: Mapping[Key, Configuration],
    called: Callable[[Key], str],
    budget_s: float | None = None,
    tally: Tally | None = None,
) -> dict[Key, Run]:
    """As `execute_named`, on a runner that stays open, for a search that chooses further runs.

    Args:
        runner: executes runs that its store lacks.
        configs: configurations, by any keys.
        called: gives the title of a key on the display.
        budget_s: see `execute_named`.
        tally: counts the trainings of the search; the caller adds the runs.
    """
    hashes = {key: identity(config.to_dict()) for key, config in configs.items()}
    names: dict[str, dict[str, None]] = {}
    for key, hash_ in hashes.items():
        names.setdefault(hash_, {})[called(key)] = None
    titles = {hash_: " = ".join(labels) for hash_, labels in names.items()}
    with Display(titles, tally) as display:
        runs = runner.run(list(configs.values()), display.show, budget_s)
    return {key: runs[hash_] for key, hash_ in hashes.items()}
