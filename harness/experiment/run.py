"""Running experiments: one (`run`), or many (`Runner`), reused if finished, resumed if begun.

The longest runs begin first, so that no long run is alone at the end. A single run, or one at a
time, is executed in this process, others by an executor (`pools.py`). Results travel through the
store. A run whose process or job is lost is submitted again, and resumes from its checkpoint;
others go on.
"""

from __future__ import annotations

import math
import pickle
import re
import time
import traceback
from collections import Counter
from collections.abc import (
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar, cast

import torch

from harness.base import reads
from harness.base.errors import (
    ProcessDied,
    UserError,
    describe_failure,
    is_interrupt,
    lacks_memory,
    machine_error,
)
from harness.base.log import LOG
from harness.base.seeds import SHORT, identity
from harness.base.settings import check_device
from harness.experiment import loop
from harness.experiment.contract import EXECUTED, Configuration, Watch, ignore
from harness.experiment.display import Display, Tally
from harness.experiment.experiment import AnyExperiment, Experiment
from harness.experiment.folds import ExecutedBy, FoldTraining
from harness.experiment.loop import SimulationExecutor
from harness.experiment.pools import (
    Parcel,
    ProcessExecutor,
    Submission,
    SubmititExecutor,
    open_executor,
    tell,
)
from harness.experiment.task import OwnLoop, one_thread
from harness.simulator.cluster import Cluster, load_bundled
from harness.simulator.simulation import describe_doubts
from harness.store import DEFAULT_STORE, AlreadyFinished, Run, Store
from harness.store.schema import CHECKPOINT, UNREAD

Execution = Mapping[str, object] | None
"""The part of an identity that names another executor; None for a simulated cluster."""


def resolve(choice: str, name: str = "--device") -> str:
    """The device, ``"cpu"`` or ``"cuda"``, for ``--device auto|cpu|cuda``.

    Args:
        choice: the device.
        name: option or argument, for the message.

    Raises:
        UserError: an unknown choice, or CUDA where PyTorch sees none.
    """
    check_device(choice, name)
    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        reason = "cuda asked for, but PyTorch sees no CUDA device"
        raise UserError(f"{name}: {reason}; allowed here: cpu")
    return choice if choice != "auto" else ("cuda" if available else "cpu")


def run(
    config: Configuration,
    store: Store,
    watch: Watch = ignore,
    executed_by: ExecutedBy = SimulationExecutor,
    execution: Execution = None,
    *,
    alone: bool = True,
) -> Run:
    """Load the finished run of a configuration from the store, or execute or resume it.

    Args:
        config: an experiment, or another computation that the store keeps.
        store: the store of the run.
        watch: receives progress.
        executed_by: makes an experiment's executor.
        execution: names another executor in the run's identity.
        alone: whether no other thread uses the run's tensors.

    Raises:
        UserError: bad input, or this machine cannot compute as the experiment asks.
    """
    if not isinstance(config, Experiment):
        return cast(Any, config).execute(store, watch)
    experiment = cast(AnyExperiment, config)
    task = experiment.task
    with nullcontext() if execution else _note_unread_keys(experiment):
        try:
            with store.begin(identity_config(experiment, execution)) as writer:
                problem = task.open(experiment, store, watch)
                with problem.computing(alone=alone):
                    if isinstance(task, OwnLoop):
                        task.train(writer, experiment, problem, watch)
                    else:
                        FoldTraining(writer, experiment, problem, watch, executed_by).run()
        except AlreadyFinished as finished:
            return finished.run
        return store.load(writer.hash)


def _note_unread_keys(config: AnyExperiment) -> AbstractContextManager[object]:
    """Within it, keys of a training that nothing reads are written beside its run."""
    watched = reads.Reads(config, load_bundled(config.cluster.name), identity(config.to_dict()))
    work = config.cluster.workload
    if work is not None and work.minibatch_flops == config.workload().minibatch_flops:
        watched.use(work)  # where the run was configured
    return reads.watch(watched)


def identity_config(config: AnyExperiment, execution: Execution = None) -> dict[str, Any]:
    """The values that a run's identity hashes; ``execution`` is None on a simulated cluster."""
    return config.to_dict() | ({EXECUTED: dict(execution)} if execution else {})


NEEDED = (__name__, "pyarrow.parquet")
"""Modules that processes need; the latter is imported by the first write."""

LOOK_S = 1.0
"""Seconds after which a grid looks at its budget."""

ATTEMPTS = 4
"""Lost jobs without progress in between after which runs are given up."""

_ALONE = RLock()
"""Held by the one run of a process; again by its own thread, for runs within that run."""

Hashes = tuple[str, ...]
"""Hashes of the runs of one job."""

Key = TypeVar("Key", bound=Hashable)
AnyConfig = TypeVar("AnyConfig", bound=Configuration)


@dataclass
class Runner:
    """Executes runs, several in parallel; use it in a ``with`` block, which ends its processes.

    Each process uses one thread: results depend on the number of threads in their last bits, and
    two such processes are faster than one with two threads at the sizes that fit a CPU.

    Args:
        store: store of the runs.
        jobs: number of runs at a time.
        submit: where jobs run; None for processes of this machine.
        keeps_faults: whether a run that raises an error is stored as failed, and the others
            continue; otherwise the error is raised.
        executor: executes runs in place of processes or jobs of ours, all at once; it stays open.
    """

    store: Store
    jobs: int
    submit: Submission | None = None
    keeps_faults: bool = True
    executor: Executor | None = None
    _executor: Executor | None = field(default=None, init=False)
    _display: Display = field(default_factory=lambda: Display({}, {}), init=False)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor not in (None, self.executor):
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None

    def run(
        self,
        configs: Mapping[Key, Configuration],
        called: Callable[[Key], str] = str,
        budget_s: float | None = None,
        tally: Tally | None = None,
    ) -> dict[Key, Run]:
        """Run every configuration that the store lacks; returns all runs, finished.

        Equal configurations run once. A run that another process with the same store executes now
        moves to the end.

        Args:
            configs: configurations, by any keys.
            called: gives the title of a key on the display.
            budget_s: seconds after which running ones are stopped, with checkpoints; None for no
                limit.
            tally: counts the trainings of a search of which these are a part.

        Raises:
            UserError: a run met bad input.
            ProcessDied: every job of a run was lost; the same call resumes.
            KeyboardInterrupt: also when the budget is spent; checkpoints are kept.
        """
        end_s = math.inf if budget_s is None else time.monotonic() + budget_s
        hashes = {key: identity(config.to_dict()) for key, config in configs.items()}
        # Titles of equal configurations, in order and each once.
        titles: dict[str, dict[str, None]] = {}
        for key, hash_ in hashes.items():
            titles.setdefault(hash_, {})[called(key)] = None
        ordered = longest_first({hash_: configs[key] for key, hash_ in hashes.items()})
        unfinished = self.store.missing(ordered)
        missing = {hash_: config for hash_, config in ordered.items() if hash_ in unfinished}
        efforts = {hash_: config.effort for hash_, config in missing.items()}
        labels = {hash_: " = ".join(keys) for hash_, keys in titles.items()}
        with Display(labels, efforts, len(ordered) - len(missing), tally) as self._display:
            # A single run begins sooner here than in a process that imports everything.
            is_here = self.submit is None and self.executor is None
            if is_here and min(self.jobs, len(missing)) <= 1:
                waiting = [(hash_,) for hash_ in missing]
                while waiting:
                    _check_budget(end_s)
                    (hash_,) = self._pop_next(waiting)
                    with keep_faults(missing[hash_], self.store, self.keeps_faults):
                        run(missing[hash_], self.store, partial(self._watch, end_s))
                    self._display.finish(hash_)
            else:
                self._run_jobs(missing, end_s)
        if tally is not None:
            tally.done += len(ordered)
            tally.made += len(missing)
        runs = {hash_: self.store.load(hash_) for hash_ in ordered}
        return {key: runs[hash_] for key, hash_ in hashes.items()}

    def _watch(self, end_s: float, progress: Any) -> None:
        self._display.hear(progress)
        _check_budget(end_s)

    def _run_jobs(self, configs: Mapping[str, Configuration], end_s: float) -> None:
        size = self.submit.runs_a_job if self.submit else 1
        waiting, losses = split_into_jobs(list(configs), size), _Losses(self.store)
        at_once = self.jobs
        if self.executor or (self.submit and self.submit.where in ("slurm", "dask", "ray")):
            at_once = len(waiting)  # that itself knows how many it runs at a time
        running: dict[Future[Any], Hashes] = {}
        try:
            while waiting or running:
                _check_budget(end_s)
                free = min(len(waiting), at_once - len(running))
                jobs = [self._pop_next(waiting) for _ in range(free)]
                packed = [_pack({hash_: configs[hash_] for hash_ in hashes}) for hashes in jobs]
                running |= zip(self._submit(packed), jobs, strict=True)
                for future in wait(running, LOOK_S, FIRST_COMPLETED).done:
                    hashes = running.pop(future)
                    try:
                        failure = future.result()
                    except Exception as error:  # the job was lost: a run's own error is returned
                        waiting += [hashes] if losses.is_worth_another(hashes, error) else []
                        continue
                    if failure:
                        raise UserError(failure)
                    for hash_ in hashes:
                        self._display.finish(hash_)
        except BaseException:
            self.__exit__()  # ends what runs
            raise
        if losses.given_up:
            lost = f"{len(losses.given_up)} of {len(configs)} runs lost {ATTEMPTS} jobs each"
            raise ProcessDied(f"{lost}; not submitted again")

    def _pop_next(self, waiting: list[Hashes]) -> Hashes:
        """The first job without a run that another process executes now, or else the first."""
        free = (job for job in waiting if not any(map(self.store.elsewhere, job)))
        job = next(free, waiting[0])
        waiting.remove(job)
        return job

    def _submit(self, packed: Sequence[bytes]) -> Sequence[Future[Any]]:
        """Submit jobs, to a new executor if the present one is broken."""
        # Executors are opened for the first job: a grid that the store has needs none.
        if not packed:
            return []
        # A job may have another working folder.
        options = self.store.with_absolute_path(), self.keeps_faults
        calls = [(data, *options) for data in packed]
        try:
            return self._submit_calls(calls)
        except (BrokenExecutor, ProcessDied):
            self.__exit__()
            return self._submit_calls(calls)

    def _submit_calls(self, calls: Sequence[tuple[Any, ...]]) -> Sequence[Future[Any]]:
        if self._executor is None and self.submit:
            folder = self.store.path.parent / "jobs"
            self._executor = open_executor(self.submit.where, folder, self.jobs)
        executor: Any = self._executor or self.executor
        # The display of the moment hears the news: processes outlive a call of `run`.
        executor = executor or ProcessExecutor(NEEDED, lambda news: self._display.hear(news))
        self._executor = executor
        if isinstance(executor, SubmititExecutor):
            return executor.submit_all(run_job, calls)
        return [executor.submit(run_job, *call) for call in calls]


class _Losses:
    """Counts the jobs that runs have lost since their last progress.

    Attributes:
        given_up: hashes of the runs that are not submitted again.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._folds = store, dict[Hashes, list[float]]()
        self._lost, self.given_up = Counter[Hashes](), list[str]()

    def is_worth_another(self, hashes: Hashes, error: Exception) -> bool:
        """Count a lost job, and say so; False if its runs are given up."""
        store = self._store
        folds = [
            math.inf if store.has(hash_) else loop.folds(store.path / hash_ / CHECKPOINT)
            for hash_ in hashes
        ]
        # Only progress counts: a job may be lost because its time is over, any number of times.
        has_moved = folds != self._folds.get(hashes, [0] * len(hashes))
        self._folds[hashes] = folds
        self._lost[hashes] = 0 if has_moved else self._lost[hashes] + 1
        runs = ", ".join(hash_[:SHORT] for hash_ in hashes)
        if self._lost[hashes] < ATTEMPTS:
            LOG.warning(
                f"run {runs}: its job was lost ({describe_error(error)}); another one resumes it"
            )
            return True
        self.given_up.extend(hashes)
        return False


_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit)(:|$)")


def describe_error(error: Exception) -> str:
    """Class and message of an error, also if its text contains a whole traceback."""
    lines = [line for line in str(error).splitlines() if _ERROR.match(line)]
    return lines[-1] if lines else f"{type(error).__name__}: {error}".splitlines()[0]


def _check_budget(end_s: float) -> None:
    if time.monotonic() > end_s:
        raise KeyboardInterrupt("the budget is spent")


def _pack(configs: Mapping[str, Configuration]) -> bytes:
    try:
        return pickle.dumps(Parcel(dict(configs)))
    except Exception as error:  # whatever their parts raise
        raise UserError(f"a run cannot be sent to another process: {error}") from error


def split_into_jobs(hashes: Sequence[str], size: int) -> list[Hashes]:
    """Split hashes into jobs of at most ``size``, dealt like cards, so that lengths are balanced.

    Example:
        >>> split_into_jobs(["a", "b", "c", "d", "e"], 2)
        [('a', 'd'), ('b', 'e'), ('c',)]
    """
    jobs = -(-len(hashes) // size)
    return [tuple(hashes[at::jobs]) for at in range(jobs)]


def run_job(packed: bytes, store: Store, keeps_faults: bool) -> str:
    """Execute the runs of a job, in the job.

    Args:
        packed: the configurations by hash, pickled.
        store: store of the runs.
        keeps_faults: see `Runner`.

    Returns:
        An error for the user; empty if the runs are finished.
    """
    hash_ = ""
    try:
        for hash_, config in pickle.loads(packed).content.items():
            # A process imports code from files, which may differ from what the asking one has.
            if hash_ != identity(config.to_dict()):
                mistake = "code that another process reads otherwise, or that has been edited since"
                raise UserError(f"{mistake}; allowed: the code of the program that asks, or jobs=1")
            with keep_faults(config, store, keeps_faults):
                run(config, store, tell)
    except UserError as error:
        return str(error)
    except Exception as error:
        traceback.print_exc()
        return f"run {hash_[:SHORT]}: {describe_error(error)}"
    return ""


@contextmanager
def keep_faults(config: Configuration, store: Store, keeps_faults: bool) -> Generator[None]:
    """A context on one thread, in which an error becomes a failed run or a `UserError`.

    Args:
        config: the configuration.
        store: store of the run.
        keeps_faults: whether an error is stored with the run as failed, and not raised.

    Raises:
        UserError: bad input, or an error of the user's code or of this machine.
    """
    # Threads of an executor would share torch's generator of random numbers.
    with _ALONE, one_thread():
        try:
            yield
        except Exception as error:
            if is_interrupt(error):
                raise KeyboardInterrupt from error
            if isinstance(error, UserError):
                raise
            if not keeps_faults and (failure := describe_failure(error)):
                raise UserError(failure) from error
            # Errors of this machine are no results: another one may finish the run.
            if isinstance(error, OSError):
                raise machine_error(error) from error
            if shortage := lacks_memory(error):
                raise shortage from error
            if not keeps_faults:
                raise
            traceback.print_exc()
            note = f"{type(error).__name__}: {error}"
            with suppress(AlreadyFinished), store.needing().begin(config.to_dict()) as writer:
                writer.finish("failed", {}, note)  # not for a light run: its results stay


def longest_first(configs: Mapping[str, AnyConfig]) -> dict[str, AnyConfig]:
    """Sort configurations by decreasing `effort`; equal ones stay in their order."""
    hashes = sorted(configs, key=lambda hash_: configs[hash_].effort, reverse=True)
    return {hash_: configs[hash_] for hash_ in hashes}


def run_all(
    experiments: Sequence[Configuration],
    store: Store | str | Path = DEFAULT_STORE,
    executor: Executor | None = None,
) -> list[Run]:
    """The runs of several experiments, in their order; finished ones are not repeated.

    Args:
        experiments: the experiments.
        store: store of the runs, or its folder.
        executor: any executor of `concurrent.futures`; None to run one after the other, here.

    Raises:
        UserError, ProcessDied, KeyboardInterrupt: as `Runner.run`.
    """
    store = store if isinstance(store, Store) else Store(store)
    with Runner(store, 1, keeps_faults=False, executor=executor) as runner:
        runs = runner.run(dict(enumerate(experiments)), lambda place: f"run {place + 1}")
    return [*runs.values()]


def cluster_remarks(configs: Iterable[AnyExperiment]) -> list[str]:
    """Lines on several runs: what their clusters may lack, and whether workers are equal."""
    configs, lines = sorted(configs, key=lambda config: config.workers), list[str]()
    for config in configs:
        most = max(c.workers for c in configs if c.cluster == config.cluster)
        lines += describe_doubts(config.cluster, config.timed, config.workload(), most)
    stale = [entry for entry in configs if not (isinstance(entry.task, OwnLoop) or entry.rounds)]
    lines += describe_equal(stale[-1].cluster, stale[-1].workers) if stale else ()
    return [*dict.fromkeys(lines)]


def idle_lines(runs: Iterable[Run]) -> list[str]:
    """A line for each key that is not at its default and that none of several runs has read.

    Of a run that was resumed, or on real processes, this is not known; then there is none.
    """
    keys = [run.provenance.get(UNREAD) for run in runs if run.status == "done"]
    lists = [unread for unread in keys if unread is not None]
    if len(lists) < len(keys):
        return []
    # A step's counts are nothing that a user has set.
    return [line for line in reads.describe_idle(lists) if "task.work." not in line]


def describe_equal(machine: Cluster, workers: int) -> Iterator[str]:
    """A line if asynchronous workers are so equal that all of them fold at the same instants."""
    usual = Cluster(machine.name, machine.devices, machine.workers)
    parts = "jitter", "stragglers", "server", "host", "network", "faults", "heterogeneity_cv"
    is_equal = all(getattr(machine, part) == getattr(usual, part) for part in parts)
    if is_equal and len(machine.workers) == 1 < workers and machine.link.sharing == "none":
        text = f"{machine.name}: workers are exactly equal, arrive at one instant and read after"
        effect = f"the last fold: staleness {(workers - 1) / 2:g} instead of {workers - 1}"
        yield f"{text} {effect}; step_cv=0.01 (jitter) lets them differ"
