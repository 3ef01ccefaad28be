"""Replay of a timeline on one device: real gradients, in simulated order, at stale parameters.

A contribution is determined when its worker reads the model. It is computed only when a fold needs
it, as one batch with all contributions that have been read and not computed, over a stack of
replicas.

A server that fails is restored from its state at a past version. Version numbers never decrease:
after a restart at version v, version v has the model of the restored version. Workers that have
read v before keep that model, and the server keeps its `past`, to which their contributions refer.
In rounds all restart from a checkpoint together, so workers go back with the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.contract import (
    Algorithm,
    Fold,
    LocalWork,
    Memories,
    Memory,
    Server,
    check_losses,
    is_contiguous,
    rows,
)
from harness.algorithms.saved import Saved, state_of
from harness.algorithms.schedules import STEADY, Rates
from harness.base.errors import UserError
from harness.networks.contract import Key, Minibatch, Network, State, StatefulNetwork
from harness.simulator.timeline import LOST, Restarts, Timeline

Reverted = Sequence[tuple[Saved, Sequence[str]]]
"""Objects, and the names of their attributes that a restart restores."""

OF_SERVER = ("model", "vectors", "numbers", "tensors")
"""All but its past and its counts."""


class ReplicaStates(Saved):
    """States of all workers' replicas; nothing for a network without any.

    Besides parameters a replica may have a state, such as running statistics of BatchNorm. It
    follows the worker's own steps, in their order, whatever batches they are computed in. With each
    contribution the worker sends the state after it; a fold makes it known at the server.

    Args:
        network: the network that is trained.

    Attributes:
        known: the state of each worker that came with its last folded contribution; every tensor
            is ``[1, ...]``.
    """

    SAVED = ("_live", "_sent", "known")

    def __init__(self, network: Network) -> None:
        self._network = network
        stateful = isinstance(network, StatefulNetwork)
        self._fresh: State = network.fresh_state() if stateful else {}
        self._live = Memories(begin=self._begin)
        self._sent: dict[Key, State] = {}
        self.known: dict[int, State] = {}

    def _begin(self) -> Memory:
        return Memory({name: tensor.clone() for name, tensor in self._fresh.items()})

    def bind(self, workers: Sequence[int]) -> Network:
        """The network for replicas of these workers, whose states its gradients change."""
        if not self._fresh:
            return self._network
        assert isinstance(self._network, StatefulNetwork)
        return self._network.with_state(self._live.join(workers).tensors)

    def send(self, keys: Sequence[Key]) -> None:
        """Copy the states after these contributions, the rows of the last `bind` in its order."""
        if self._fresh:
            joint = self._live.join([worker for worker, _ in keys]).tensors
            for row, key in enumerate(keys):
                # Copies: the next batch changes the joint rows in place.
                self._sent[key] = {n: t[row : row + 1].clone() for n, t in joint.items()}

    def fold(self, keys: Sequence[Key]) -> None:
        """Make the states known that came with these contributions."""
        if self._fresh:
            self.known |= {key[0]: self._sent.pop(key) for key in keys}

    def forget(self, keys: set[Key]) -> None:
        """Drop the states of contributions that are lost."""
        for key in keys & self._sent.keys():
            del self._sent[key]

    def tell(self) -> Mapping[int, State]:
        """The states that are known, of a network that has changed nothing else."""
        if isinstance(self._network, StatefulNetwork):
            self._network.check_constants()
        return self.known


@dataclass
class ServerStates(Saved):
    """States of a simulated server that can fail, by version, and the plan of a segment.

    Args:
        states: by version, the server's number of folds, and copies of what a restart restores.
        restarted: last version at which the server was restored; -1 for none.
    """

    SAVED = ("states", "restarted")

    states: dict[int, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict[int, Any])
    restarted: int = -1
    _keep: set[int] = field(default_factory=set[int])
    _restore: dict[int, int] = field(default_factory=dict[int, int])

    def plan_segment(self, restarts: Restarts, restorable: int | None) -> dict[int, float]:
        """Plan the versions of a segment at which to save and to restore.

        Args:
            restarts: restarts of the server in the segment.
            restorable: version that a failure after the segment may restore; None if the server
                cannot fail.

        Returns:
            Versions at which the server fails, each with the time of its first restart there.
        """
        columns = (restarts.version, restarts.restored_version, restarts.time_s)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        # Reversed, so that of several failures at one version the first one remains.
        self._restore = {version: restored for version, restored, _ in reversed(rows)}
        self._keep = {restored for _, restored, _ in rows}
        if restorable is not None:
            self._keep.add(restorable)
        self._forget(min(self._keep, default=None))
        return {version: time_s for version, _, time_s in reversed(rows)}

    def save_or_restore(self, server: Server, reverted: Reverted) -> None:
        """Restore if the server fails at its present version, and save if that is planned.

        Raises:
            UserError: the state to restore was not saved.
        """
        version = server.version
        restored = self._restore.get(version, version)
        if restored != version:
            if restored not in self.states:
                raise UserError(
                    "cluster: a server that fails can be timed but not trained with here"
                )
            # Copies: a second failure may restore the same state.
            folds, parts = deepcopy(self.states[restored])
            for (owner, _), values in zip(reverted, parts, strict=True):
                owner.restore(values)
            # The version goes on, so folds since that state must not count as made.
            server.undone = version - folds
        if version in self._restore:
            self._forget(restored)
            # A second failure at one version finds the model of the first restart: no change.
            server.restarts += version != self.restarted
            self.restarted = version
        if version in self._keep:  # after the restore: this version now has the restored model
            parts = [{n: state_of(getattr(owner, n)) for n in names} for owner, names in reverted]
            self.states[version] = deepcopy((server.folds, parts))

    def _forget(self, before: int | None) -> None:
        """Drop the states older than a version; None drops all."""
        oldest = math.inf if before is None else before
        self.states = {v: state for v, state in self.states.items() if v >= oldest}


MinibatchOf = Callable[[Sequence[Key]], Minibatch]
"""Function to the rows of several workers' local steps, each named by (worker, step)."""

Reads = dict[tuple[int, bool], list[tuple[Key, int]]]
"""Contributions with their numbers of local steps, by the version read and whether the read came
after a restart at that version."""

Entering = tuple[int, list[Key], Sequence[int], Sequence[int]]
"""A fold, and its contributions with the versions that they have read and their local steps."""


class Pending(NamedTuple):
    """A contribution that was read and is not computed yet.

    Attributes:
        steps: number of local steps.
        slot: place in the stacks of replicas and contributions.
        key: worker and first local step.
        version: version that was read.
        rate: learning rate of local steps at the read, before the factors of the run's `Rates`.
        passes: passes begun before the read.
        in_flight: whether an earlier contribution of its worker was in flight at the read.
    """

    steps: int
    slot: int
    key: Key
    version: int
    rate: float
    passes: int
    in_flight: bool


@dataclass
class StaleReplay(Saved):
    """Trains by replaying timeline segments: algorithm, server and the replicas in flight.

    Args:
        algorithm: computes and folds contributions.
        network: the network to train.
        server: changed in place.
        minibatch_of: gives the rows of local steps.
        slots: most contributions in flight at once.
        alone: compute each contribution by itself, in memory of its own, as a real worker does:
            the last bits of a matrix product depend on the size of the batch.
        rates: learning rates of folds and local steps, from the rate of a segment.

    Attributes:
        replicas, contributions: models read and contributions computed, ``[slots, P]`` each.
        in_flight: slot of each contribution in flight, by worker and first step.
        restarts: number of server restarts before each contribution in flight was read.
        pending: contributions that were read and are not computed.
        memories: memory of each worker.
        passes: number of passes that have begun.
        latest: the pass of each worker's last computed contribution.
        states: state of each worker's replica besides its parameters.
        checkpoints: states that a failing server may restore.
        batches: number of batches computed.
        losses: of each contribution, summed over rows, ``[slots]``.
        loss: of all folded contributions.
    """

    SAVED = (
        *("server", "replicas", "contributions", "losses", "loss", "in_flight", "restarts"),
        *("pending", "memories", "passes", "latest", "checkpoints", "states", "batches", "_free"),
    )

    algorithm: Algorithm
    network: Network
    server: Server
    minibatch_of: MinibatchOf
    slots: int
    alone: bool = False
    rates: Rates = STEADY
    replicas: Tensor = field(init=False)
    contributions: Tensor = field(init=False)
    in_flight: dict[Key, int] = field(default_factory=dict[Key, int])
    restarts: dict[Key, int] = field(default_factory=dict[Key, int])
    pending: list[Pending] = field(default_factory=list[Pending])
    memories: Memories = field(default_factory=Memories)
    passes: int = 0
    latest: dict[int, int] = field(default_factory=dict[int, int])
    checkpoints: ServerStates = field(default_factory=ServerStates)
    states: ReplicaStates = field(init=False)
    batches: int = 0
    losses: Tensor = field(init=False)
    loss: Tensor = field(init=False)
    _free: list[int] = field(init=False)
    _rate: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.algorithm = self.algorithm.on(self.network)
        self.states = ReplicaStates(self.network)
        model = self.server.model
        self.replicas = model.new_zeros(self.slots, model.numel())
        self.contributions = torch.zeros_like(self.replicas)
        self.losses = model.new_zeros(self.slots, dtype=torch.float64)
        self.loss = self.losses.new_zeros(())
        self._free = list(range(self.slots))

    @torch.no_grad()
    def run(self, segment: Timeline, rate: float, restorable: int | None = None) -> None:
        """Execute every read and fold of a segment, in its order.

        Args:
            segment: part of a timeline.
            rate: learning rate of folds and local steps, before the factors of ``rates``.
            restorable: version that a failure after the segment may restore; None if none.

        Raises:
            ValueError: the segment does not begin at the server's version.
            UserError: the server fails in it, and the state to restore was not saved; or the
                server is in shards, so that a read finds no single version of the model.
        """
        if len(segment.pieces):
            raise UserError("timeline: of a server in shards; allowed: a run with as many shards")
        self._forget(segment)
        self._rate = rate
        failed = self.checkpoints.plan_segment(segment.restarts, restorable)
        reads = _reads_by_version(segment, self.in_flight, failed)
        # Reads of the version at which the segment begins; the others follow their folds.
        self._read(reads.pop((self.server.version, False), ()))
        self._come_back(failed, reads)
        self._show()
        for fold, keys, versions, steps in _folds(segment):
            if fold != self.server.version:
                raise ValueError(f"fold {fold} meets version {self.server.version}")
            slots = [self.in_flight[key] for key in keys]
            # Once more where messages are lost: a worker's later contribution may come first, after
            # which the earlier one is computed.
            while any(waiting.slot in slots for waiting in self.pending):
                self._compute(dict(keys))
            self.states.fold(keys)
            self.loss += rows(self.losses, slots).sum()
            for key in keys:
                heappush(self._free, self.in_flight.pop(key))
            # Versions since the read, and restarts: each restores an older model.
            staleness = [
                fold - version + self.server.restarts - self.restarts.pop(key)
                for key, version in zip(keys, versions, strict=True)
            ]
            self._fold(
                Fold(
                    rows(self.contributions, slots),
                    staleness,
                    self.rates.fold_rate(rate, fold),
                    workers=[worker for worker, _ in keys],
                    weights=[float(number) for number in steps],
                )
            )
            self._read(reads.pop((fold + 1, False), ()))
            self._come_back(failed, reads)
            self._show()

    def _read(self, readers: Iterable[tuple[Key, int]]) -> None:
        """Assign a slot to every contribution that begins with the present model, and copy it."""
        readers = list(readers)
        if self.algorithm.rounds:  # slots in the order of workers: a round is computed in it
            readers.sort()
        busy = {worker for worker, _ in self.in_flight}
        for key, steps in readers:
            # Slots never run out: there are as many as contributions can be in flight.
            slot = heappop(self._free)
            self.in_flight[key], self.restarts[key] = slot, self.server.restarts
            origin = self.server.version, self._rate, self.passes, key[0] in busy
            self.pending.append(Pending(steps, slot, key, *origin))
            busy.add(key[0])
            self.replicas[slot].copy_(self.server.model)

    def _come_back(self, failed: Mapping[int, float], reads: Reads) -> None:
        """Save or restore at the present version, and execute the reads that follow a restart."""
        version = self.server.version
        reverted = [(self.server, OF_SERVER), (self.states, ("known",))]
        if self.algorithm.rounds:
            reverted += [(self.states, ("_live",)), (self, ("memories", "latest"))]
        self.checkpoints.save_or_restore(self.server, reverted)
        if version in failed:
            # Reads before the failure found the other model of this version, and are done.
            self._read(reads.pop((version, True), ()))

    def begin_pass(self) -> None:
        """Mark the next read of each worker as the first of a pass over the data."""
        self.passes += 1

    def _show(self) -> None:
        """Use the present version of the model; for subclasses."""

    def _forget(self, segment: Timeline) -> None:
        """Free the slots of contributions that were read before the segment and lost in it."""
        lost = segment.lost()
        keys = set(zip(lost.worker.tolist(), lost.first_step.tolist(), strict=True))
        self.pending = [waiting for waiting in self.pending if waiting.key not in keys]
        self.states.forget(keys)
        for key in keys & self.in_flight.keys():
            heappush(self._free, self.in_flight.pop(key))
            del self.restarts[key]

    def _fold(self, fold: Fold) -> None:
        """Fold contributions into the server.

        Raises:
            UserError: the algorithm does not add one version.
        """
        version = self.server.version + 1
        self.algorithm.fold(self.server, fold)
        if self.server.version != version:
            name, end = type(self.algorithm).__name__, self.server.version
            reason = f"fold of {name} leaves version {end}, not {version}"
            raise UserError(f"algorithm: {reason}; allowed: server.version += 1 in it")

    def _compute(self, entering: Mapping[int, int]) -> None:
        """Compute pending contributions: one batch for each number of local steps, and each rate.

        A worker's second pending contribution waits, as the first may change the worker's memory.
        With ``alone`` only those ``entering`` this fold (by worker, the first step) are computed,
        after earlier ones of their workers: a contribution that is lost later must not change a
        memory, or the result would depend on where segments end.
        """
        if self.alone:
            due = [task for task in self.pending if task.key[1] <= entering.get(task.key[0], -1)]
            for waiting in sorted(due, key=lambda waiting: waiting.key[1]):
                self._compute_batch([waiting])
            self.pending = [waiting for waiting in self.pending if waiting not in due]
            return
        if len(self.pending) == 1:  # a single one needs no grouping
            only, self.pending = self.pending, []
            self._compute_batch(only)
            return
        due, self.pending = _next_of_each(self.pending)
        # Rounds in the order of their workers, so that one round's joint memory is the next one's.
        due.sort(key=lambda entry: entry.key if self.algorithm.rounds else (entry.slot,))
        # Memories are joined into one batch only where their numbers and passes agree.
        kinds = self.memories.kinds([waiting.key[0] for waiting in due])
        alike = sorted(
            (waiting.steps, kind, self._when(waiting), place)
            for place, (waiting, kind) in enumerate(zip(due, kinds, strict=True))
        )
        for _, group in groupby(alike, lambda row: row[:3]):
            self._compute_batch([due[place] for *_, place in group])

    def _when(self, waiting: Pending) -> tuple[int, float, bool]:
        """What a batch has in common: version if rates vary, rate, and whether its pass is new."""
        is_new = self.latest.get(waiting.key[0]) != waiting.passes
        return waiting.version * self.rates.vary, waiting.rate, is_new

    def _compute_batch(self, batch: list[Pending]) -> None:
        slots, steps = [waiting.slot for waiting in batch], batch[0].steps
        minibatches = [
            self.minibatch_of([(waiting.key[0], waiting.key[1] + k) for waiting in batch])
            for k in range(steps)
        ]
        # Views where slots are adjacent, else copies; written back below in the latter case.
        replicas, out = rows(self.replicas, slots), rows(self.contributions, slots)
        if self.alone:  # in tensors of its own, as a real worker computes it
            replicas, out = replicas.clone(), torch.empty_like(replicas)
        workers = [waiting.key[0] for waiting in batch]
        network, memory = self.states.bind(workers), self.memories.join(workers)
        _, rate, memory.new_pass = self._when(batch[0])
        memory.in_flight = [waiting.in_flight for waiting in batch]
        local = self.rates.step_rates(rate, batch[0].version, steps)
        losses = self.algorithm.contribute(
            LocalWork(network, replicas, minibatches, out, local, memory)
        )
        check_losses(self.algorithm, losses, len(batch))
        # A pass begins with a contribution computed in it: a read may still be lost.
        self.latest |= dict.fromkeys(workers, batch[0].passes)
        self.states.send([waiting.key for waiting in batch])
        if not is_contiguous(slots):
            places = torch.tensor(slots, device=out.device)
            self.contributions[places], self.losses[places] = out, losses.to(self.losses)
        else:
            rows(self.losses, slots).copy_(losses)
            if self.alone:
                rows(self.contributions, slots).copy_(out)
        self.batches += 1


def _next_of_each(pending: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Split pending contributions into the first of each worker, and the others."""
    earliest = {waiting.key[0]: waiting for waiting in sorted(pending, key=_newest_first)}
    due = [waiting for waiting in pending if earliest[waiting.key[0]] is waiting]
    return due, [waiting for waiting in pending if earliest[waiting.key[0]] is not waiting]


def _newest_first(waiting: Pending) -> int:
    return -waiting.key[1]


def _reads_by_version(
    segment: Timeline, in_flight: Mapping[Key, int], failed: Mapping[int, float]
) -> Reads:
    """Contributions first read in a segment and not lost in it, in the order of their reads.

    Args:
        segment: part of a timeline.
        in_flight: contributions that were read in earlier segments.
        failed: versions at which the server failed, with the time of the first restart at each.
    """
    table = segment.contributions
    reads: dict[tuple[int, bool], list[tuple[float, Key, int]]] = {}
    for fold, worker, step, version, time, steps in zip(
        table.fold.tolist(),
        table.worker.tolist(),
        table.first_step.tolist(),
        table.read_version.tolist(),
        table.read_time_s.tolist(),
        table.steps.tolist(),
        strict=True,
    ):
        if fold != LOST and (worker, step) not in in_flight:
            # A version that failed has two models: the one before, and the restored one.
            again = time >= failed.get(version, np.inf)
            reads.setdefault((version, again), []).append((time, (worker, step), steps))
    return {v: [(key, steps) for _, key, steps in sorted(keys)] for v, keys in reads.items()}


def _folds(segment: Timeline) -> Iterator[Entering]:
    """Yield each fold with its contributions, by worker."""
    table = segment.contributions
    every = zip(
        table.fold.tolist(),
        table.worker.tolist(),
        table.first_step.tolist(),
        table.read_version.tolist(),
        table.steps.tolist(),
        strict=True,
    )
    folded = sorted(row for row in every if row[0] >= 0)
    for fold, entering in groupby(folded, lambda row: row[0]):
        _, workers, firsts, versions, steps = zip(*entering, strict=True)
        yield fold, list(zip(workers, firsts, strict=True)), versions, steps
