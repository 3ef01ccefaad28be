# (submitit, Dask and Ray are extras, without types)
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
"""Executors of the runs of a grid: `concurrent.futures.Executor` for each place where jobs run.

Without ``--submit`` the runs are executed by processes of this machine. Values of ``--submit``:

- ``slurm`` submits job arrays with sbatch; its variables (``SBATCH_PARTITION``,
  ``SBATCH_ACCOUNT``, …) specify resources. ``local`` starts the same jobs as local processes. Both
  use submitit.
- ``dask`` uses the scheduler at ``DASK_SCHEDULER_ADDRESS``, or starts workers; ``ray`` does the
  same with ``RAY_ADDRESS``.
- ``MODULE:FUNCTION`` is called with the number of jobs and returns an executor.

A job returns the message of an error that it raised. So an exception of its future means that the
job was lost: its process was killed, its node failed, its time was over.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import SubprocessError
from threading import Event, Lock, Thread
from types import ModuleType, SimpleNamespace
from typing import Any

from harness.base import forks
from harness.base.errors import UserError, name_error
from harness.base.log import LOG
from harness.experiment.digests import is_installed
from harness.kernels import notice

PACKAGES = {
    "slurm": ("submitit", "slurm"),
    "local": ("submitit", "slurm"),
    "dask": ("distributed", "dask"),
    "ray": ("ray", "ray"),
}
"""The package that each place needs, and the extra of this project that installs it."""

MINUTES = 24 * 60
"""Time limit of a job of Slurm; a longer run resumes in another job."""

POLL_S = 1.0
"""Seconds between two looks at the jobs of submitit."""

Hear = Callable[[Any], object]
"""Function that receives news of running work: a `Progress`, the name of a kernel that is being
compiled (empty once done), or a record of the log."""


@dataclass(frozen=True)
class Submission:
    """Values of ``--submit`` and ``--runs-per-job``.

    Args:
        where: name of the place, see the module.
        runs_a_job: number of runs that each job executes, one after the other.
    """

    where: str
    runs_a_job: int = 1


@dataclass(frozen=True)
class Parcel:
    """An object that is packed with cloudpickle when it leaves this process.

    The user's functions and classes are sent by value, as their files may be edited before another
    process reads them, together with this process's ``sys.path``.

    Args:
        content: any object.
    """

    content: Any

    def __reduce__(self) -> tuple[Callable[..., Parcel], tuple[list[str], bytes]]:
        # Imported here: a command may send nothing to another process.
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

        modules: dict[str, object] = dict(sys.modules)
        registered = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
        sent = [
            module
            for name, module in modules.items()
            if isinstance(module, ModuleType) and module.__name__ == name
            if name not in registered and not is_installed(name)
        ]
        for module in sent:
            cloudpickle.register_pickle_by_value(module)
        try:
            data: bytes = cloudpickle.dumps(self.content)
        finally:
            for module in sent:
                cloudpickle.unregister_pickle_by_value(module)
        return _unpack, (sys.path, data)


def _unpack(folders: Sequence[str], data: bytes) -> Parcel:
    # Modules beside the program are then found as in the process that sent them.
    sys.path.extend(folder for folder in folders if folder not in sys.path)
    return Parcel(pickle.loads(data))


def check(place: str, called: str = "--submit") -> None:
    """Reject a place that is unknown or not usable here.

    Args:
        place: see above.
        called: the option or argument that names it.

    Raises:
        UserError: it is unknown, or its package is not installed.
    """
    if ":" in place:
        _import_function(place, called)
        return
    if place not in PACKAGES:
        raise name_error(called, place, (*PACKAGES, "MODULE:FUNCTION"))
    package, extra = PACKAGES[place]
    try:
        import_module(package)
    except ImportError as error:
        needed = f"needs {package}; pip install 'lagbench[{extra}]'"
        raise UserError(f"{called} {place}: {needed}") from error


def open_executor(place: str, folder: Path, jobs: int) -> Executor:
    """The executor that ``--submit`` names.

    Args:
        place: value of ``--submit``, see the module.
        folder: folder for scripts and logs of jobs.
        jobs: largest number of jobs at a time.

    Raises:
        UserError: Slurm is not installed here.
    """
    if ":" in place:
        return _import_function(place)(jobs)
    clusters = {"dask": DaskExecutor, "ray": RayExecutor}
    return clusters[place](jobs) if place in clusters else SubmititExecutor(place, folder, jobs)


def _import_function(place: str, called: str = "--submit") -> Callable[[int], Executor]:
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{called} {place}: {error}; allowed: MODULE:FUNCTION") from error


class ProcessExecutor(Executor):
    """Processes of this machine, forks of one that has all modules imported.

    Each process is a pool of its own, so one that is killed loses its call alone. A call begins at
    once, in a further process if all are busy: the caller limits the number of calls.

    Args:
        modules: modules that are imported before the first fork.
        hear: receives news of the processes, on other threads.
    """

    def __init__(self, modules: Sequence[str], hear: Hear) -> None:
        self._context, self._hear = forks.context(*modules), hear
        self._pools, self._idle = list[ProcessPoolExecutor](), list[ProcessPoolExecutor]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        while self._idle:
            with suppress(BrokenExecutor):  # an idle process was killed
                return self._submit_to(self._idle.pop(), fn, *args, **kwargs)
        return self._submit_to(self._new_pool(), fn, *args, **kwargs)

    def _new_pool(self) -> ProcessPoolExecutor:
        ours, theirs = self._context.Pipe(duplex=False)
        pool = ProcessPoolExecutor(1, self._context, _begin_process, (theirs,))
        self._pools.append(pool)
        Thread(target=_listen, args=(ours, self._hear), daemon=True).start()
        return pool

    def _submit_to(
        self, pool: ProcessPoolExecutor, fn: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Future[Any]:
        def take_back(ended: Future[Any]) -> None:
            # A pool whose process was killed takes no further call.
            if not (ended.cancelled() or isinstance(ended.exception(), BrokenExecutor)):
                self._idle.append(pool)

        with forks.guard_start(), forks.hide_main():
            future = pool.submit(fn, *args, **kwargs)  # starts the process, the first time
        future.add_done_callback(take_back)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill the processes: what busy ones have done until their checkpoints is on disk."""
        for pool in self._pools:
            for process in list((pool._processes or {}).values()):  # pyright: ignore[reportPrivateUsage]
                process.kill()
            pool.shutdown(wait, cancel_futures=cancel_futures)


_tell: Hear | None = None


def tell(news: Any) -> None:
    """Send news to the process that has submitted the work of this one, if it listens."""
    if _tell is not None:
        _tell(news)


def _begin_process(connection: Connection) -> None:
    """Set up a process of a `ProcessExecutor`: it ends with its parent, which gets its news."""
    global _tell
    forks.die_with_parent()
    lock = Lock()  # threads of a run log lines, too

    def send(news: Any) -> None:
        with lock:
            connection.send(news)

    _tell = send
    queue: Any = SimpleNamespace(put_nowait=send)
    LOG.handlers[:] = [QueueHandler(queue)]
    notice.announce(lambda kernel, seconds: send(kernel if seconds is None else ""))


def _listen(connection: Connection, hear: Hear) -> None:
    with suppress(EOFError, OSError):
        while True:
            hear(connection.recv())


class SubmititExecutor(Executor):
    """Jobs of Slurm, or processes of this machine that are started like them.

    Args:
        place: ``slurm`` or ``local``.
        folder: folder for scripts and logs of jobs.
        jobs: largest number of jobs of an array that Slurm runs at a time.
    """

    def __init__(self, place: str, folder: Path, jobs: int) -> None:
        import submitit

        try:
            self._executor: Any = submitit.AutoExecutor(folder=folder, cluster=place)
        except RuntimeError as error:
            raise UserError(f"--submit {place}: {str(error).splitlines()[0]}") from error
        self._executor.update_parameters(name="lagbench", cpus_per_task=1, timeout_min=MINUTES)
        if place == "slurm":
            self._executor.update_parameters(slurm_array_parallelism=jobs)
        self._jobs, self._ended = dict[Future[Any], Any](), Event()
        Thread(target=self._poll, daemon=True).start()

    def submit_all(
        self, fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
    ) -> Sequence[Future[Any]]:
        """Submit a function for each tuple of arguments, as one job array."""
        jobs = self._executor.map_array(partial(_call_in_job, fn), calls)
        futures = [Future[Any]() for _ in jobs]
        for future, job in zip(futures, jobs, strict=True):
            # A future that is cancelled would leave its job behind.
            future.set_running_or_notify_cancel()
            self._jobs[future] = job
        return futures

    def _poll(self) -> None:
        while not self._ended.wait(POLL_S):
            for future, job in list(self._jobs.items()):
                if job.done():
                    del self._jobs[future]
                    try:
                        future.set_result(job.result())
                    except Exception as error:
                        future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel all jobs."""
        self._ended.set()
        for job in self._jobs.values():
            with suppress(OSError, SubprocessError):  # e.g. scancel of a job that has ended
                job.cancel()


class DaskExecutor(Executor):
    """Workers of a Dask cluster; Dask itself repeats the call of a lost worker a few times.

    Args:
        jobs: number of workers, where none are there yet.
    """

    def __init__(self, jobs: int) -> None:
        import distributed

        address = os.environ.get("DASK_SCHEDULER_ADDRESS")
        self._cluster: Any = None
        if not address:
            self._cluster = distributed.LocalCluster(
                n_workers=jobs, threads_per_worker=1, dashboard_address="127.0.0.1:0"
            )
            self._cluster.adapt(minimum=jobs, maximum=jobs)  # without it, no lost one is replaced
        self._client: Any = distributed.Client(address or self._cluster)
        self._executor: Executor = self._client.get_executor(pure=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`."""
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel all calls, and end workers that were started here."""
        self._executor.shutdown(wait=False)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


class RayExecutor(Executor):
    """Workers of a Ray cluster.

    Args:
        jobs: number of workers, where none are there yet; these listen on loopback alone.
    """

    def __init__(self, jobs: int) -> None:
        import ray

        self._ray: Any = ray
        local = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": jobs}
        self._ray.init(log_to_driver=False, **({} if "RAY_ADDRESS" in os.environ else local))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `Executor`; a lost call is submitted again by the grid, and not by Ray."""
        remote = self._ray.remote(max_retries=0)(_call)  # Ray accepts functions only
        return remote.remote(partial(fn, **kwargs), args).future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End what this process has submitted, and workers that were started here."""
        self._ray.shutdown()


def _call(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return fn(*arguments)


def _call_in_job(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    # Batch systems send these shortly before they end a job, which then is lost at once. Submitit's
    # handler would raise an error amid a run, which would count as the run's.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    return fn(*arguments)
