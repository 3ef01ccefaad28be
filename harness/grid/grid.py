"""Execution of a grid of runs: reused if finished, resumed if begun, in parallel, longest first.

The longest runs begin first, so that no long run is alone at the end.

Remaining time: a grid has runs of a tenth of a second beside runs of minutes, so the number of
unfinished runs is no measure. A run is expected to take the mean of finished runs that differ in
their seeds only; without such runs, the mean of its configuration class, then the pace of running
ones.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch

from harness.base import forks
from harness.base.errors import UserError, describe_failure, lacks_memory, machine_error
from harness.base.log import LOG
from harness.base.seeds import identity
from harness.grid import carriers
from harness.grid.carriers import Carrier, Hear, Later, Parcel, carrier
from harness.grid.processes import Processes
from harness.kernels import notice
from harness.store import AlreadyFinished, Run, Store
from harness.store.schema import CHECKPOINT
from harness.tasks.contract import Configuration, Progress
from harness.training import loop

__all__ = [
    "Estimate",
    "RemainingTime",
    "Report",
    "Runner",
    "drop_keys",
    "execute",
    "kind_of",
    "longest_first",
]

News = Progress | str | logging.LogRecord
"""Progress of a run, name of the kernel being compiled (empty once done), or a log record."""


@dataclass(frozen=True)
class Report:
    """Progress of a grid.

    Attributes:
        finished, total: numbers of runs; the total is None in a search, which chooses further runs.
        running: progress of the running ones, by hash.
        compiling: name of a kernel that a process compiles now; empty if none.
        left: range of the remaining time, if it can be estimated.
    """

    finished: int
    total: int | None
    running: dict[str, Progress]
    compiling: str = ""
    left: Estimate | None = None


@dataclass
class Runner:
    """Executes runs in parallel; use it in a ``with`` block, which ends its processes.

    Each process uses one thread: results depend on the number of threads in their last bits, and
    two such processes are faster than one with two threads at the sizes that fit a CPU.

    Args:
        store: store of the runs.
        jobs: number of processes, or of jobs of a batch system at a time.
        submit: job backend; None for processes of this machine.
        here: whether this process executes runs too, without a backend; see `Processes`.
        keeps_faults: whether a run that raises an error is stored as failed, and the others
            continue; otherwise the error is raised.
    """

    store: Store
    jobs: int
    submit: carriers.Submission | None = None
    here: bool = False
    keeps_faults: bool = True
    _carrier: Carrier | None = field(default=None, init=False)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._carrier is not None:
            self._carrier.close()

    def run(
        self,
        configs: Sequence[Configuration],
        show: Callable[[Report], None],
        budget_s: float | None = None,
    ) -> dict[str, Run]:
        """Run every configuration that the store lacks; returns all runs by hash.

        Equal configurations run once, and the longest run begins first. A run that another process
        with the same store executes now moves to the end.

        Raises:
            UserError: a run met bad input.
            ProcessDied: a process was killed, or every job of a run; the same call resumes.
            KeyboardInterrupt: also when the budget is spent; checkpoints are kept.
        """
        end_s = math.inf if budget_s is None else time.monotonic() + budget_s
        wanted = longest_first({identity(config.to_dict()): config for config in configs})
        unfinished = self.store.missing(wanted)
        missing = {name: Parcel((name, c)) for name, c in wanted.items() if name in unfinished}
        kinds = {name: kind_of(config) for name, config in wanted.items()}
        efforts = {name: config.effort for name, config in wanted.items()}
        left = RemainingTime(kinds, efforts, min(self.jobs, max(1, len(missing))))
        board = _Board(tuple(wanted), set(missing), self.store, left, show)
        if missing:
            # With `here` the parent is a user's program: its stopped children are left alone.
            with nullcontext() if self.here else forks.kill_stopped():
                carriers.submit(
                    missing,
                    partial(
                        _execute,
                        store=self.store.with_absolute_path(),
                        keeps_faults=self.keeps_faults,
                    ),
                    self._get_carrier(),
                    board.finish,
                    end_s,
                    self.submit.runs_a_job if self.submit else 1,
                    partial(_folds_done, self.store),
                    board.hear,
                )
        return {name: self.store.load(name) for name in wanted}

    def _get_carrier(self) -> Carrier:
        if self._carrier is None and self.submit:
            folder = self.store.path.parent / "jobs"
            self._carrier = carrier(self.submit.where, folder, self.jobs)
        elif self._carrier is None:
            needed = (__name__, "pyarrow.parquet")  # the latter is imported by the first write
            self._carrier = Processes(self.jobs, _begin, *needed, here=self.here).carrier
        return self._carrier


def execute(
    configs: Sequence[Configuration],
    store: Store | Path,
    jobs: int,
    show: Callable[[Report], None],
    budget_s: float | None = None,
    submit: carriers.Submission | None = None,
) -> dict[str, Run]:
    """Run every configuration that the store lacks; see `Runner`."""
    with Runner(store if isinstance(store, Store) else Store(store), jobs, submit) as runner:
        return runner.run(configs, show, budget_s)


@dataclass
class _Board:
    """State of the grid, shown at every change."""

    wanted: tuple[str, ...]
    unfinished: set[str]
    store: Store
    left: RemainingTime
    show: Callable[[Report], None]

    def __post_init__(self) -> None:
        self.running: dict[str, Progress] = {}
        self.begun_s: dict[str, float] = {}
        self.compiling = ""
        for name in self.wanted:
            if name not in self.unfinished:
                self._learn(name)
        self._show()

    def hear(self, news: News) -> None:
        """Handle a `News`."""
        if isinstance(news, Progress):
            self.tell(news)
        elif isinstance(news, logging.LogRecord):
            if LOG.isEnabledFor(news.levelno):
                LOG.handle(news)
        else:
            self.compiling = news
            self._show()

    def tell(self, progress: Progress) -> None:
        self.begun_s.setdefault(progress.run, time.monotonic())
        self.running[progress.run] = progress
        if progress.run not in self.wanted and progress.done >= progress.passes:
            # A run that others start from: no job of the grid reports its end.
            del self.running[progress.run]
        self._show()

    def finish(self, name: str) -> None:
        self.running.pop(name, None)
        self.unfinished.discard(name)
        self._learn(name)
        self._show()

    def _learn(self, name: str) -> None:
        """Add the wall time of a finished run to the estimate, if its provenance has it."""
        took = self.store.load(name).provenance.get("wall_s")
        if isinstance(took, int | float):
            self.left.learn(name, float(took))

    def _show(self) -> None:
        now_s, finished = time.monotonic(), len(self.wanted) - len(self.unfinished)
        spent = {name: (p, now_s - self.begun_s[name]) for name, p in self.running.items()}
        left = self.left.estimate([n for n in self.wanted if n in self.unfinished], spent)
        running = dict(self.running)
        self.show(Report(finished, len(self.wanted), running, self.compiling, left))


class _Telling(logging.Handler):
    """Sends lines for the user to the parent process, which logs them."""

    def __init__(self, tell: Hear) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record without objects that another process might not unpack."""
        record.msg, record.args, record.exc_info = record.getMessage(), None, None
        self._tell(record)


def _begin(tell: Hear) -> None:
    """Set up a worker process."""
    torch.set_num_threads(1)
    LOG.handlers = [_Telling(tell)]

    def say(kernel: str, seconds: float | None) -> None:
        tell(kernel if seconds is None else "")

    notice.announce(say)


def _folds_done(store: Store, name: str) -> float:
    """Progress of a run in folds; infinite if it is finished."""
    return math.inf if store.has(name) else loop.folds(store.path / name / CHECKPOINT)


def _execute(
    run: Parcel,
    tell: Hear = lambda news: None,
    waits: bool = True,
    *,
    store: Store,
    keeps_faults: bool,
) -> Later | None:
    """Execute one run in this process.

    Args:
        run: hash and configuration.
        tell: receives progress.
        waits: whether to wait if another process executes the run now.
        store: store of the run.
        keeps_faults: whether an error is stored with the run as failed, and not raised.

    Returns:
        `Later` if another process executes the run now, and ``waits`` is false.

    Raises:
        UserError: bad input, or the configuration has another hash in this process.
    """
    name, config = run.content
    if not waits and store.elsewhere(name):
        return Later()
    if name != identity(config.to_dict()):
        told = "code that reads otherwise in another process; allowed: in a module file, or jobs=1"
        raise UserError(f"run {name[:12]}: {told}")

    def watch(progress: Progress) -> None:
        if forks.is_orphan():
            os._exit(1)  # no process waits for this run any more; its last checkpoint is on disk
        tell(progress)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        config.execute(store, watch)
    except Exception as error:
        if isinstance(error, UserError):
            raise
        if not keeps_faults:
            if told := describe_failure(error):
                raise UserError(told) from error
            raise
        # Errors of this machine are no results: another one may finish the run.
        if isinstance(error, OSError):
            raise machine_error(error) from error
        if told := lacks_memory(error):
            raise told from error
        traceback.print_exc()
        note = f"{type(error).__name__}: {error}"
        with suppress(AlreadyFinished), store.needing().begin(config.to_dict()) as writer:
            writer.finish("failed", {}, note)  # not for a light run: its results stay
    finally:
        torch.set_num_threads(threads)
    return None


Kind = tuple[str, str]
"""Class of a configuration, and its identity without seeds."""

OF_A_SEED = ("seed", "corpus_seed", "fingerprint")
"""Keys of a configuration that depend on its seed."""

ENOUGH = 0.05
"""Share of a run after which its pace is extrapolated."""


OWN, ALIKE, OTHER = 1.25, 2.0, 4.0
"""Factors between a duration and the ends of its range: predicted from runs of the same kind, from
runs of the same class by their effort, and from any runs by their effort. The load of a machine
changes by the first within a grid."""

SHORT_S = 2.0
"""Longest duration that is expected of a run whose effort is 0."""


@dataclass(frozen=True)
class Estimate:
    """Range of the remaining time of a grid, in seconds."""

    least_s: float
    most_s: float

    @classmethod
    def from_middle(cls, seconds: float, factor: float) -> Estimate:
        """The range whose ends differ from a duration by a factor."""
        return cls(seconds / factor, seconds * factor)

    def times(self, share: float) -> Estimate:
        """The range of a share of the work."""
        return Estimate(self.least_s * share, self.most_s * share)


def kind_of(config: Configuration) -> Kind:
    """Key of the runs that are expected to take as long: equal but for their seeds."""
    return type(config).__name__, identity(drop_keys(config.to_dict(), OF_A_SEED))


def drop_keys(table: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """A table without some keys, in itself and in the tables in it."""
    kept = {key: value for key, value in table.items() if key not in keys}
    return {k: drop_keys(v, keys) if isinstance(v, dict) else v for k, v in kept.items()}  # pyright: ignore[reportUnknownArgumentType]


@dataclass
class RemainingTime:
    """Estimates the remaining time of a grid from finished and running runs.

    Args:
        kinds: kind of every run, by its hash.
        efforts: effort of every run (`Configuration.effort`), by its hash.
        processes: number of runs at a time.
    """

    kinds: Mapping[str, Kind]
    efforts: Mapping[str, float]
    processes: int
    _took: dict[str, float] = field(default_factory=dict[str, float])

    def learn(self, name: str, seconds: float) -> None:
        """Add the duration of a finished run."""
        self._took[name] = seconds

    def estimate(
        self, unfinished: Sequence[str], running: Mapping[str, tuple[Progress, float]]
    ) -> Estimate | None:
        """Remaining time; None as long as no run has made progress.

        Args:
            unfinished: hashes in the order in which the runs begin, running ones included.
            running: progress of each running run, and the seconds since it began.
        """
        known = self._took | dict(self._extrapolate_running(running))
        if not known:
            return None
        # Running ones first; the sort is stable, so the others stay in their order.
        in_order = sorted(unfinished, key=lambda name: name not in running)
        rests = [self._rest(name, known, running) for name in in_order]
        return Estimate(
            _schedule([rest.least_s for rest in rests], self.processes),
            _schedule([rest.most_s for rest in rests], self.processes),
        )

    def _rest(
        self,
        name: str,
        known: Mapping[str, float],
        running: Mapping[str, tuple[Progress, float]],
    ) -> Estimate:
        share, spent_s = _share(running, name)
        if share > ENOUGH:
            return Estimate.from_middle(spent_s * (1.0 - share) / share, OWN)
        return self._estimate_run(name, known).times(1.0 - share)

    def _estimate_run(self, name: str, known: Mapping[str, float]) -> Estimate:
        """Duration of a whole run, from those known that are most like it."""
        kind, effort = self.kinds[name], self.efforts[name]
        if own := [took for other, took in known.items() if self.kinds[other] == kind]:
            return Estimate.from_middle(fmean(own), OWN)
        alike = {o: took for o, took in known.items() if self.kinds[o][0] == kind[0]}
        if alike and not effort:
            return Estimate(min(alike.values()) / OWN, max(alike.values()) * OWN)
        if not effort:
            return Estimate(0.0, SHORT_S)
        paces, factor = self._find_paces(alike), ALIKE
        if not paces:
            paces, factor = self._find_paces(known), OTHER
        if not paces:  # only runs of seconds so far: this one takes longer than they
            return Estimate(min(known.values()), OTHER * max(known.values()))
        return Estimate.from_middle(effort * fmean(paces), factor)

    def _find_paces(self, known: Mapping[str, float]) -> list[float]:
        """Seconds by effort of the runs that have one."""
        return [took / self.efforts[o] for o, took in known.items() if self.efforts[o]]

    def _extrapolate_running(
        self, running: Mapping[str, tuple[Progress, float]]
    ) -> Iterator[tuple[str, float]]:
        for name in running:
            share, spent_s = _share(running, name)
            if share > ENOUGH and name in self.kinds:
                yield name, spent_s / share


def _schedule(durations_s: Sequence[float], processes: int) -> float:
    """Time until all runs are done if each begins on the process that is free first."""
    free_s = [0.0] * processes
    for duration_s in durations_s:
        heapq.heapreplace(free_s, free_s[0] + duration_s)
    return max(free_s)


def _share(running: Mapping[str, tuple[Progress, float]], name: str) -> tuple[float, float]:
    """Finished share of a run, and the seconds since it began."""
    if name not in running:
        return 0.0, 0.0
    progress, spent_s = running[name]
    return min(1.0, progress.done / progress.passes), spent_s


Each = TypeVar("Each", bound=Configuration)


def longest_first(configs: Mapping[str, Each]) -> dict[str, Each]:
    """Sort configurations by decreasing `effort`; equal ones stay in their order."""
    names = sorted(configs, key=lambda name: configs[name].effort, reverse=True)
    return {name: configs[name] for name in names}
