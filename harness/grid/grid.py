"""Many runs on one machine: reused, resumed, in parallel, the longest first.

Many runs on one machine: reused where finished, resumed where begun, in parallel processes.

How long the rest of a grid takes, from what runs of each kind took. A grid holds runs of a tenth
of a second beside runs of minutes, so their number says little of the time. Seeds of one setting
take about as long; where none has finished yet, runs of the same class.

In which order the runs of a grid begin: the longest first, so that none is left for the end.
"""

from __future__ import annotations

import heapq
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch

from harness.base import forks
from harness.base.errors import UserError, lacks_memory, refused_by_machine
from harness.base.seeds import identity
from harness.grid import carriers
from harness.grid.carriers import carrier
from harness.grid.pool import Ended, Pool
from harness.kernels import notice
from harness.runs.executed import Configuration, Progress, Watch, executed
from harness.store import AlreadyFinished, Run, Store
from harness.store.schema import CHECKPOINT
from harness.training import loop

__all__ = [
    "Elsewhere",
    "Estimate",
    "Left",
    "Report",
    "effort",
    "execute",
    "kind_of",
    "longest_first",
]

POLL_S = 0.2

News = Progress | str
"""Where a run is, or which kernel is compiled now: none has no name."""

_channel: Any = None  # the pipe by which news go, once a worker process has been given it


@dataclass(frozen=True)
class Elsewhere:
    """A run that somebody else makes now."""

    name: str


@dataclass(frozen=True)
class Report:
    """Progress of the grid: ``finished`` of ``total`` runs, and where each running one is.

    ``compiling`` is the kernel that a process compiles, if one does, ``left`` what the rest takes,
    as far as it is known. A search does not know its ``total``.
    """

    finished: int
    total: int | None
    running: dict[str, Progress]
    compiling: str = ""
    left: Estimate | None = None


def execute(
    configs: Sequence[Configuration],
    store: Store | Path,
    jobs: int,
    show: Callable[[Report], None],
    budget_s: float | None = None,
    submit: carriers.Submission | None = None,
) -> dict[str, Run]:
    """Run every configuration the store does not have yet; returns the runs by hash.

    Equal configurations run once. Each process uses one thread: results depend on the number
    of threads in their last bits, and two such processes beat one of two threads at the sizes
    that fit a CPU. With ``submit``, somebody else
    carries them (see `carriers`). The longest run begins first. One that somebody else makes now,
    who shares the store, is left to the end.

    Raises:
        UserError: a run met bad input.
        ProcessDied: a process was killed, or every job of a run; the same call goes on.
        KeyboardInterrupt: also when the budget is spent; what is checkpointed is kept.
    """
    end_s = math.inf if budget_s is None else time.monotonic() + budget_s
    wanted = longest_first({identity(config.to_dict()): config for config in configs})
    there = store if isinstance(store, Store) else Store(store)
    unfinished = there.missing(wanted)
    missing = {name: config for name, config in wanted.items() if name in unfinished}
    kinds = {name: kind_of(config) for name, config in wanted.items()}
    left = Left(kinds, min(jobs, max(1, len(missing))))
    board = _Board(tuple(wanted), set(missing), there, left, show)
    if missing and submit:
        work = partial(_execute_alone, store=there.resolved())
        carried = carrier(submit.where, there.path.parent / "jobs", jobs)
        carriers.submit(
            missing,
            work,
            carried,
            board.finish,
            end_s,
            submit.runs_a_job,
            partial(_reached, there),
        )
    elif missing:
        with (
            forks.kill_stopped(),
            Pool(min(jobs, len(missing)), _enter, __name__) as pool,
        ):
            for config in missing.values():
                pool.submit(partial(_execute_free, config, there))

            def again(name: str) -> None:
                pool.submit(partial(_execute_one, missing[name], there))

            _watch(pool, again, board, end_s)
    return {name: there.load(name) for name in wanted}


@dataclass
class _Board:
    """What is known of the grid, shown whenever it changes."""

    wanted: tuple[str, ...]
    unfinished: set[str]
    store: Store
    left: Left
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
        """Of a run, or of the kernel that is compiled: none any more if it has no name."""
        if isinstance(news, Progress):
            self.tell(news)
        else:
            self.compiling = news
            self._show()

    def tell(self, progress: Progress) -> None:
        self.begun_s.setdefault(progress.run, time.monotonic())
        self.running[progress.run] = progress
        if progress.run not in self.wanted and progress.done >= progress.passes:
            # What another run starts from: nobody reports its end.
            del self.running[progress.run]
        self._show()

    def finish(self, name: str) -> None:
        self.running.pop(name, None)
        self.unfinished.discard(name)
        self._learn(name)
        self._show()

    def _learn(self, name: str) -> None:
        """How long a finished run took, if it says so."""
        took = self.store.load(name).provenance.get("wall_s")
        if isinstance(took, int | float):
            self.left.learn(name, float(took))

    def _show(self) -> None:
        now_s, finished = time.monotonic(), len(self.wanted) - len(self.unfinished)
        spent = {name: (p, now_s - self.begun_s[name]) for name, p in self.running.items()}
        left = self.left.estimate([n for n in self.wanted if n in self.unfinished], spent)
        running = dict(self.running)
        self.show(Report(finished, len(self.wanted), running, self.compiling, left))


def _watch(pool: Pool, again: Callable[[str], None], board: _Board, end_s: float) -> None:
    """Pass progress on until every run is finished; the first error stops the grid.

    Args:
        pool: each of its tasks ends with the name of a run, finished or made by another process.
        again: has the latter waited for, and made if it comes to that.
        board: where news go.
        end_s: `time.monotonic` at which to stop.
    """
    while pool.is_busy:
        if time.monotonic() > end_s:
            raise KeyboardInterrupt("the budget is spent")
        for news in pool.hear(POLL_S):
            if not isinstance(news, Ended):
                board.hear(news)
            elif news.error is not None:
                raise news.error
            elif isinstance(news.result, Elsewhere):
                again(news.result.name)
            else:
                board.finish(news.result)


def _enter(channel: Connection) -> None:
    """Set up a worker process."""
    global _channel  # what a worker process is given once, at its start
    _channel = channel
    torch.set_num_threads(1)
    notice.announce(_compiles)


def _compiles(kernel: str, seconds: float | None) -> None:
    _channel.send(kernel if seconds is None else "")


def _tell(progress: Progress) -> None:
    if forks.orphaned():
        # Nobody waits for this run any more; its last checkpoint is on disk.
        os._exit(1)
    _channel.send(progress)


def _reached(store: Store, name: str) -> float:
    """How far a run is, in folds."""
    return math.inf if store.has(name) else loop.folds(store.path / name / CHECKPOINT)


def _execute_free(config: Configuration, store: Store) -> str | Elsewhere:
    """One run in a worker process, unless somebody makes it now."""
    name = identity(config.to_dict())
    return Elsewhere(name) if store.elsewhere(name) else _execute_one(config, store)


def _execute_alone(config: Configuration, store: Store) -> str:
    """One run in a job that nobody listens to."""
    torch.set_num_threads(1)
    return _execute_one(config, store, lambda progress: None)


def _execute_one(config: Configuration, store: Store, watch: Watch = _tell) -> str:
    """One run in a worker process; a fault of ours is recorded with the run, not raised."""
    try:
        return executed(config, store, watch).hash
    except UserError:
        raise
    except OSError as error:  # a full disk is no result
        raise refused_by_machine(error) from error
    except Exception as error:
        if told := lacks_memory(error):  # nor is a machine that is too small
            raise told from error
        traceback.print_exc()
        note = f"{type(error).__name__}: {error}"
        with suppress(AlreadyFinished), store.needing().begin(config.to_dict()) as writer:
            writer.finish("failed", {}, note)  # a light run, made again in vain, stays as it is
        return identity(config.to_dict())


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


Each = TypeVar("Each", bound=Configuration)


def longest_first(configs: Mapping[str, Each]) -> dict[str, Each]:
    """Configurations by name, those with most to do first; equals stay in their order."""
    names = sorted(configs, key=lambda name: effort(configs[name]), reverse=True)
    return {name: configs[name] for name in names}


def effort(config: Configuration) -> float:
    """How much a run has to do, beside other runs of its grid: passes times weights.

    A sequence run has the network of the training that it starts from. What a configuration does
    not say counts as one, so timing, which takes seconds, comes last.
    """
    sized = getattr(config, "start", config)
    hidden = getattr(sized, "hidden", None) or (1,)
    weights = sum(above * below for above, below in pairwise((hidden[0], *hidden)))
    return float(getattr(config, "passes", 0) * weights)
