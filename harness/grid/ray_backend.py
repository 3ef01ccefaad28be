# (ray is an extra, of which the environment that checks types knows nothing)
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
"""Runs of a grid on a cluster of Ray's, or on workers of this machine that Ray starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RayJob:
    """A task under way (`harness.grid.carriers.Job`).

    Args:
        ray: the module.
        reference: what it knows the task by.
    """

    ray: Any
    reference: Any

    def done(self) -> bool:
        """See `Job`."""
        return bool(self.ray.wait([self.reference], timeout=0)[0])

    def result(self) -> Any:
        """See `Job`."""
        return self.ray.get(self.reference)

    def cancel(self) -> None:
        """See `Job`."""
        self.ray.cancel(self.reference, force=True)


def begin(jobs: int) -> Any:
    """Be a client of ``RAY_ADDRESS``, or else have so many workers here, which listen here alone.

    Returns:
        The module.
    """
    import ray

    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False)
    else:
        here = {"_node_ip_address": "127.0.0.1", "include_dashboard": False}
        ray.init(num_cpus=jobs, log_to_driver=False, **here)
    return ray


def submit_tasks(
    ray: Any, work: Callable[[Any], str | None], tasks: Sequence[Any]
) -> Sequence[RayJob]:
    """Begin a task each; what is lost is told, and begun again by us alone."""
    carried = ray.remote(max_retries=0)(_call)  # of partial functions Ray makes no tasks
    return [RayJob(ray, carried.remote(work, task)) for task in tasks]


def _call(work: Callable[[Any], str | None], task: Any) -> str | None:
    return work(task)


def task_loss_errors(ray: Any) -> tuple[type[BaseException], ...]:
    """What the result of a task raises whose worker or machine is gone."""
    names = ("WorkerCrashedError", "NodeDiedError", "ObjectLostError", "OutOfMemoryError",
             "LocalRayletDiedError", "TaskCancelledError")  # fmt: skip
    return tuple(getattr(ray.exceptions, name) for name in names)
