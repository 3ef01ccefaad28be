# (ray is an extra, of which the environment that checks types knows nothing)
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
"""Runs of a grid on a Ray cluster, or on workers of this machine that Ray starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RayJob:
    """A submitted task, as a `harness.grid.carriers.Job`.

    Args:
        ray: the module.
        reference: Ray's reference to the result.
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
    """Connect to ``RAY_ADDRESS``, or else start ``jobs`` workers that listen on loopback alone.

    Returns:
        The module ``ray``.
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
    """Submit one job per task; a lost job is reported, and repeated by the grid, not by Ray."""
    carried = ray.remote(max_retries=0)(_call)  # Ray accepts functions only, no `partial`
    return [RayJob(ray, carried.remote(work, task)) for task in tasks]


def _call(work: Callable[[Any], str | None], task: Any) -> str | None:
    return work(task)


def task_loss_errors(ray: Any) -> tuple[type[BaseException], ...]:
    """Errors of Ray by which the result of a task shows the loss of its worker or machine."""
    names = ("WorkerCrashedError", "NodeDiedError", "ObjectLostError", "OutOfMemoryError",
             "LocalRayletDiedError", "TaskCancelledError")  # fmt: skip
    return tuple(getattr(ray.exceptions, name) for name in names)
