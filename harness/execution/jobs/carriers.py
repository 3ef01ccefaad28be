"""Who carries the runs of a grid: batch systems through submitit, and any executor of futures.

``slurm`` submits job arrays with sbatch, whose own variables (``SBATCH_PARTITION``,
``SBATCH_ACCOUNT``, …) say what the jobs need; ``local`` starts the same jobs as processes of this
machine. ``dask`` asks the scheduler that ``DASK_SCHEDULER_ADDRESS`` names, or workers of its own;
``ray`` does the same with ``RAY_ADDRESS``.
``MODULE:FUNCTION`` is called with the number of jobs and gives a `concurrent.futures.Executor`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from harness.base.errors import UserError, unknown

if TYPE_CHECKING:
    from submitit import AutoExecutor

WHERE = ("slurm", "local", "dask", "ray")
NEEDS = {
    "slurm": ("submitit", "slurm"),
    "local": ("submitit", "slurm"),
    "dask": ("distributed", "dask"),
    "ray": ("ray", "ray"),
}
"""The package that each needs, and the extra of ours that brings it."""
MINUTES = 24 * 60
"""A job's limit; a longer run goes on in another job."""
EVERYTHING = 10**9
NOT_REQUEUED = "Job not requeued because"
"""What submitit has a job raise when its time is up or somebody else wants its place."""


class Job(Protocol):
    """Work under way elsewhere."""

    def done(self) -> bool:
        """Whether it has ended, however."""
        ...

    def result(self) -> Any:
        """What it gave; raises what it raised, or one of its carrier's `lost`."""
        ...

    def cancel(self) -> object:
        """Have it not done, or ended."""
        ...


@dataclass(frozen=True)
class Carrier:
    """Takes work and does it elsewhere.

    Args:
        start: begins the same work on each of several tasks.
        at_once: how many jobs it is handed at a time.
        lost: what the result of a job that was lost raises.
        close: at the end, whatever the end.
        failed: of what `lost` would count, what means that the job itself raised something.
    """

    start: Callable[[Callable[[Any], str | None], Sequence[Any]], Sequence[Job]]
    at_once: int
    lost: tuple[type[BaseException], ...]
    close: Callable[[], object] = lambda: None
    failed: Callable[[Exception], bool] = lambda error: False


def check(where: str) -> None:
    """Refuse a carrier that is not known or cannot be used here.

    Raises:
        UserError: it is unknown, or its package is not installed.
    """
    if ":" in where:
        _named(where)
        return
    if where not in WHERE:
        raise unknown("--submit", where, (*WHERE, "MODULE:FUNCTION"))
    package, extra = NEEDS[where]
    try:
        import_module(package)
    except ImportError as error:
        told = f"--submit {where}: needs {package}; pip install 'lagbench[{extra}]'"
        raise UserError(told) from error


def carrier(where: str, folder: Path, jobs: int) -> Carrier:
    """What ``--submit`` names.

    Args:
        where: see above.
        folder: for scripts and logs of jobs.
        jobs: at a time.

    Raises:
        UserError: it cannot be used here.
    """
    check(where)
    if where in ("dask", "ray"):
        return _dask(jobs) if where == "dask" else _ray(jobs)
    if ":" in where:
        return of_executor(lambda: _named(where)(jobs), jobs)
    return _submitit(where, folder, jobs)


def of_executor(made: Callable[[], Executor], at_once: int) -> Carrier:
    """Any executor of futures; a broken one has lost its jobs, and another is made."""
    executor = made()

    def begun(work: Callable[[Any], str | None], task: Any) -> Job:
        nonlocal executor
        try:
            return executor.submit(work, task)
        except BrokenExecutor:
            executor = made()
            return executor.submit(work, task)

    def start(work: Callable[[Any], str | None], tasks: Sequence[Any]) -> Sequence[Job]:
        return [begun(work, task) for task in tasks]

    def close() -> None:
        executor.shutdown(wait=False, cancel_futures=True)

    return Carrier(start, at_once, (BrokenExecutor, CancelledError), close)


def _submitit(where: str, folder: Path, jobs: int) -> Carrier:
    import submitit
    from submitit.core.utils import UncompletedJobError

    executor: AutoExecutor
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=where)
    except RuntimeError as error:
        raise UserError(f"--submit {where}: {str(error).splitlines()[0]}") from error
    executor.update_parameters(name="lagbench", cpus_per_task=1, timeout_min=MINUTES)
    if where == "slurm":  # all of them are one array, of which Slurm lets so many run
        executor.update_parameters(slurm_array_parallelism=jobs)
    at_once = EVERYTHING if where == "slurm" else jobs
    return Carrier(executor.map_array, at_once, (UncompletedJobError,), failed=_failed_of_submitit)


def _failed_of_submitit(error: Exception) -> bool:
    """Whether a job raised something; that it ran out of time is raised within it too."""
    from submitit.core.utils import FailedJobError

    return isinstance(error, FailedJobError) and NOT_REQUEUED not in str(error)


def _dask(jobs: int) -> Carrier:
    import distributed

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    cluster: Any = None if address else _local_dask(jobs)
    client: Any = distributed.Client(address or cluster)

    def start(work: Callable[[Any], str | None], tasks: Sequence[Any]) -> Sequence[Job]:
        return [client.submit(work, task, pure=False) for task in tasks]

    def close() -> None:
        client.close()
        if cluster is not None:
            cluster.close()

    return Carrier(start, EVERYTHING, _lost_by_dask(), close)


def _ray(jobs: int) -> Carrier:
    from harness.execution.jobs import on_ray

    ray = on_ray.begin(jobs)
    return Carrier(partial(on_ray.started, ray), EVERYTHING, on_ray.lost(ray), ray.shutdown)


def _local_dask(jobs: int) -> Any:
    """So many workers of this machine, also when Dask has given one up."""
    import distributed

    cluster: Any = distributed.LocalCluster(
        n_workers=jobs, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    )
    cluster.adapt(minimum=jobs, maximum=jobs)
    return cluster


def _lost_by_dask() -> tuple[type[BaseException], ...]:
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    return (KilledWorker, FutureCancelledError, CancelledError)


def _named(where: str) -> Callable[[int], Executor]:
    module, _, name = where.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--submit {where}: {error}; allowed: MODULE:FUNCTION") from error
