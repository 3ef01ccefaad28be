"""Walk a timeline on one device: real gradients, in simulated order, at stale parameters.

A contribution's inputs are fixed the moment its worker reads. So nothing is computed until
a fold needs it, and then everything that has been read and not computed is computed as one
batch over the replica stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Gradient, Minibatch, Server
from harness.simulator import Timeline

Key = tuple[int, int]
"""A contribution's name: (worker, first_step)."""


@dataclass
class StaleReplay:
    """An algorithm, its server and the replicas in flight, moved along by timeline segments.

    Args:
        algorithm: contributes and folds.
        gradient: the model's gradient.
        server: changed in place.
        minibatches: gives the frames of W global steps, in order.
        slots: how many contributions can be in flight at once.
    """

    algorithm: Algorithm
    gradient: Gradient
    server: Server
    minibatches: Callable[[list[int]], Minibatch]
    slots: int
    replicas: Tensor = field(init=False)
    contributions: Tensor = field(init=False)
    in_flight: dict[Key, int] = field(default_factory=dict[Key, int])
    waiting: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    loss: Tensor = field(init=False)
    batches: int = 0

    def __post_init__(self) -> None:
        model = self.server.model
        self.replicas = model.new_zeros(self.slots, model.numel())
        self.contributions = torch.zeros_like(self.replicas)
        self.loss = model.new_zeros((), dtype=torch.float64)

    @torch.no_grad()
    def run(self, segment: Timeline, rate: float) -> None:
        """Execute every read and fold of a segment, in its order, at one rate.

        Raises:
            ValueError: the segment does not begin at the server's version.
        """
        reads = _reads_by_version(segment, self.in_flight)
        self._read(reads)
        for fold, key, read_version in _folds(segment):
            if fold != self.server.version:
                raise ValueError(f"fold {fold} meets version {self.server.version}")
            slot = self.in_flight.pop(key)
            if any(slot == waiting for waiting, _ in self.waiting):
                self._compute()
            self.algorithm.fold(
                self.server, self.contributions[slot], staleness=fold - read_version, rate=rate
            )
            self._read(reads)

    def _read(self, reads: dict[int, list[Key]]) -> None:
        """Copy the model to every worker that reads the present version."""
        for key in reads.pop(self.server.version, ()):
            taken = self.in_flight.values()
            slot = next(i for i in range(self.slots) if i not in taken)
            self.replicas[slot].copy_(self.server.model)
            self.in_flight[key] = slot
            self.waiting.append((slot, key[1]))

    def _compute(self) -> None:
        """Compute all contributions that have been read and not computed, as one batch."""
        self.waiting.sort()
        slots = [slot for slot, _ in self.waiting]
        minibatch = self.minibatches([step for _, step in self.waiting])
        low, high = slots[0], slots[-1] + 1
        if high - low == len(slots):
            losses = self.algorithm.contribute(
                self.gradient, self.replicas[low:high], minibatch, self.contributions[low:high]
            )
        else:
            index = torch.tensor(slots, device=self.replicas.device)
            replicas = self.replicas[index]
            out = torch.empty_like(replicas)
            losses = self.algorithm.contribute(self.gradient, replicas, minibatch, out)
            self.contributions[index] = out
        self.loss += losses.sum(dtype=torch.float64)
        self.batches += 1
        self.waiting.clear()


def _reads_by_version(segment: Timeline, known: dict[Key, int]) -> dict[int, list[Key]]:
    """The contributions first read in this segment, by the version they read, in read order."""
    rows = segment.contributions
    reads: dict[int, list[tuple[float, Key]]] = {}
    for worker, step, version, time in zip(
        rows.worker.tolist(),
        rows.first_step.tolist(),
        rows.read_version.tolist(),
        rows.read_time_s.tolist(),
        strict=True,
    ):
        if (worker, step) not in known:
            reads.setdefault(version, []).append((time, (worker, step)))
    return {version: [key for _, key in sorted(keys)] for version, keys in reads.items()}


def _folds(segment: Timeline) -> Iterator[tuple[int, Key, int]]:
    """``(fold, key, read_version)`` of every contribution that is folded, in fold order."""
    rows = segment.contributions
    folded = zip(
        rows.fold.tolist(),
        rows.worker.tolist(),
        rows.first_step.tolist(),
        rows.read_version.tolist(),
        strict=True,
    )
    for fold, worker, step, version in sorted(row for row in folded if row[0] >= 0):
        yield fold, (worker, step), version
