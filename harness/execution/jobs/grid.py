"""Many runs on one machine: reused where finished, resumed where begun, in parallel processes."""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from harness.base import forks
from harness.base.errors import UserError, lacks_memory, refused_by_machine
from harness.base.seeds import identity
from harness.execution.jobs import submitted
from harness.execution.jobs.carriers import carrier
from harness.execution.jobs.left import Estimate, Left, kind_of
from harness.execution.jobs.order import longest_first
from harness.execution.jobs.pool import Ended, Pool
from harness.execution.runs.executed import Configuration, Progress, Watch, executed
from harness.execution.training import checkpoint
from harness.execution.training import run as _registered  # noqa: F401  # pyright: ignore[reportUnusedImport]
from harness.kernels import notice
from harness.store import AlreadyFinished, Run, Store
from harness.store.schema import CHECKPOINT

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
    submit: submitted.Submission | None = None,
) -> dict[str, Run]:
    """Run every configuration the store does not have yet; returns the runs by hash.

    Equal configurations run once. Each process uses one thread: results depend on the number
    of threads in their last bits, and two such processes beat one of two threads at the sizes
    that fit a CPU. With ``submit``, somebody else
    carries them (see `submitted`). The longest run begins first. One that somebody else makes now,
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
        submitted.submit(
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
    return math.inf if store.has(name) else checkpoint.folds(store.path / name / CHECKPOINT)


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
