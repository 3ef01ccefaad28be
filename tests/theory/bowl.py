"""Quadratic bowls to train on, and timelines of one staleness: what theory speaks of.

A minibatch's frames are where its bowl is lowest: of ``x [W, B, P]`` the loss is the sum over
frames of ``curvature (theta - x)^2 / 2``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm
from harness.experiment.loop import slice_timeline
from harness.networks.contract import Minibatch
from harness.replay.fold_replay import StaleReplay
from harness.simulator.timeline import Contributions, Folds, Timeline

Lowest = Callable[[int, int], Sequence[float]]
"""Where the bowl of a worker's minibatch is lowest."""


@dataclass(frozen=True)
class Bowl:
    """A network whose loss is quadratic: ``curvature [P]``."""

    curvature: Tensor

    def gradient(self, stack: Tensor, x: Tensor, targets: Tensor, out: Tensor) -> Tensor:
        del targets
        apart = stack.unsqueeze(1) - x
        torch.sum(self.curvature * apart, 1, out=out)
        return (self.curvature * apart.square()).sum((1, 2)) / 2


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def at_zero(size: int) -> Lowest:
    return lambda worker, step: [0.0] * size


def stale(folds: int, tau: int, steps: int = 1, one_worker: bool = False) -> Timeline:
    """Every contribution of fold k has read version k - tau, or 0."""
    k = np.arange(folds)
    worker = np.zeros(folds, np.int64) if one_worker else k % (tau + 1)
    return table(k, worker, np.maximum(k - tau, 0), k * steps, np.full(folds, steps))


def in_rounds(rounds: int, workers: int, steps: int, late: int = 0) -> Timeline:
    """Every fold has a contribution of each worker, begun ``late`` versions ago."""
    k = np.repeat(np.arange(rounds), workers)
    worker = np.tile(np.arange(workers), rounds)
    return table(k, worker, np.maximum(k - late, 0), k * steps, np.full(len(k), steps))


def table(fold, worker, read, first_step, steps) -> Timeline:
    """A timeline of contributions, read in their order."""
    numbers = np.unique(fold)
    times = np.arange(len(fold), dtype=np.float64)
    columns = worker.astype(np.int32), read, times, first_step, steps.astype(np.int32)
    return Timeline(Folds(numbers, numbers.astype(np.float64)), Contributions(fold, *columns))


def replayed(
    algorithm: Algorithm,
    timeline: Timeline,
    curvature: Tensor,
    start: Tensor,
    lowest: Lowest | None = None,
) -> StaleReplay:
    """What is about to walk a timeline."""
    lowest = lowest or at_zero(len(start))

    def minibatch(keys):
        x = torch.tensor([[lowest(*key)] for key in keys], dtype=torch.float64)
        return Minibatch(x, torch.zeros(len(keys), 1, dtype=torch.int64))

    slots = 2 * int(np.bincount(timeline.folded().fold).max())
    slots *= 1 + int(timeline.staleness().max())
    return StaleReplay(algorithm, Bowl(curvature), algorithm.start(start), minibatch, slots)


def walked(
    algorithm: Algorithm,
    timeline: Timeline,
    curvature: Tensor,
    start: Tensor,
    rate: float,
    lowest: Lowest | None = None,
) -> Tensor:
    """The models ``[folds + 1, P]`` from the first to the last."""
    made = replayed(algorithm, timeline, curvature, start, lowest)
    seen = [start.clone()]
    for fold in range(len(timeline.folds)):
        made.run(slice_timeline(timeline, fold, fold + 1), rate)
        seen.append(made.server.model.clone())
    return torch.stack(seen)
