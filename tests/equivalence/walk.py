"""A naive walk of a timeline: every version is kept, and every worker's memory under its name.

Contributions are computed one at a time, at a copy of the model that was read, and those of one
worker in the order in which it computed them, whenever they are folded. A server that fails
is put back to a deep copy of what it was. Algorithms whose papers need the model that was read, or
that count what waits in a buffer, are written out here with those at hand.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from harness.algorithms.catalogue import (
    Algorithm,
    DelayCompensated,
    DelayedNesterov,
    FedBuff,
    Ringmaster,
)
from harness.algorithms.contract import Fold, LocalWork, Memory
from harness.networks.contract import Minibatch, Network
from harness.simulator.timeline import LOST, SERVER, Timeline

MinibatchOf = Callable[[Sequence[tuple[int, int]]], Minibatch]


@dataclass
class Arrival:
    """A contribution at its fold.

    Args:
        tensor: ``[P]``.
        read: the model it was computed from.
        staleness: changes of the model since then: folds, and restarts of the server.
        worker: whose.
        steps: its minibatches.
        read_at: changes of the model before it was read.
    """

    tensor: Tensor
    read: Tensor
    staleness: int
    worker: int
    steps: int
    read_at: int


@dataclass
class Written:
    """The server of an algorithm that is written out below.

    Args:
        model: ``[P]``.
        waiting: contributions of a buffer, or when gradients were used.
        speed: an outer momentum ``[P]``.
    """

    model: Tensor
    waiting: list[Any] = field(default_factory=list)
    speed: Tensor | float = 0.0


def compensated(rule: DelayCompensated, server: Written, arrival: Arrival, rate: float) -> None:
    g = arrival.tensor
    server.model -= rate * (g + rule.strength * g * g * (server.model - arrival.read))


def with_few_used(rule: Ringmaster, server: Written, arrival: Arrival, rate: float) -> None:
    if sum(used >= arrival.read_at for used in server.waiting) < rule.most:
        server.model -= rate * arrival.tensor
        server.waiting.append(arrival.read_at + arrival.staleness)


def buffered(rule: FedBuff, server: Written, arrival: Arrival, rate: float) -> None:
    del rate
    steps = max(0, math.ceil((arrival.staleness - len(server.waiting)) / rule.buffer))
    server.waiting.append(arrival.tensor * (1.0 + steps) ** -rule.discount)
    if len(server.waiting) == rule.buffer:
        server.model -= rule.outer_rate * torch.stack(server.waiting).mean(0)
        server.waiting = []


def delayed(rule: DelayedNesterov, server: Written, arrival: Arrival, rate: float) -> None:
    del rate
    n, share = rule.every, rule.spread
    server.waiting.append(arrival.tensor)
    if len(server.waiting) == n:
        server.speed = rule.momentum * server.speed + torch.stack(server.waiting).mean(0)
        server.waiting, share = [], 1.0 - rule.spread * n + rule.spread
    step = share * rule.momentum * server.speed + arrival.tensor / n
    server.model -= rule.outer_rate * step


WRITTEN: dict[type[Algorithm], Callable[[Any, Written, Arrival, float], None]] = {
    DelayCompensated: compensated,
    Ringmaster: with_few_used,
    FedBuff: buffered,
    DelayedNesterov: delayed,
}


class Walk:
    """One algorithm along one timeline.

    Args:
        algorithm: its contribution of one worker, and its fold unless it is written out here.
        network: what is trained.
        minibatch_of: the data of (worker, step).
        model: initial parameters ``[P]``.
        rate: of all folds.
        passes: folds before which a pass begins; it begins for a worker with its next read.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        network: Network,
        minibatch_of: MinibatchOf,
        model: Tensor,
        rate: float,
        passes: Sequence[int] = (),
    ) -> None:
        self.algorithm, self.network, self.minibatch_of = algorithm, network, minibatch_of
        self.start, self.rate, self.passes = model, rate, set(passes)
        self.memories: dict[int, Memory] = {}
        self.begun: dict[int, int] = {}

    def contribution(
        self, read: Tensor, worker: int, first: int, steps: int, version: int, busy: bool
    ) -> Tensor:
        """``[P]``, with the worker's own memory; ``busy`` if it had another one in flight."""
        out = torch.empty_like(read).unsqueeze(0)
        minibatches = [self.minibatch_of([(worker, first + k)]) for k in range(steps)]
        memory = self.memories.setdefault(worker, Memory())
        replica = read.clone().unsqueeze(0)
        passes = sum(begins <= version for begins in self.passes)
        memory.new_pass = self.begun.get(worker) != passes
        memory.in_flight, self.begun[worker] = [busy], passes
        with torch.no_grad():
            work = LocalWork(self.network, replica, minibatches, out, self.rate, memory)
            self.algorithm.contribute(work)
        return out[0]

    def around_a_server(self, timeline: Timeline) -> Tensor:
        """The last model of one server, or of rounds."""
        written = WRITTEN.get(type(self.algorithm))
        algorithm = self.algorithm.on(self.network)
        state: Any = Written(self.start.clone()) if written else algorithm.start(self.start)
        failures, rows = _failures(timeline), _rows(timeline)
        # Of each worker: its contributions in the order of its computing, with their folds.
        queues: dict[int, list[tuple[int, Row]]] = {}
        for _, enters, row in sorted((row[1], k, row) for k in rows for row in rows[k]):
            queues.setdefault(row[0], []).append((enters, row))
        done: dict[tuple[int, int], tuple[Tensor, Tensor, bool]] = {}
        wanted = {restored for restored, _ in failures.values()}
        # Models by version, before and after the server failed at it; and states to go back to.
        before, after = [state.model.clone()], [state.model.clone()]
        kept = {0: copy.deepcopy((state, self.memories, self.begun))}
        for fold in range(len(timeline.folds)):
            arrivals = list[Arrival]()
            for worker, first, steps, read, _ in rows[fold]:
                for _, (_, own, count, version, time_s) in queues[worker]:
                    if own > first or (worker, own) in done:
                        continue
                    fresh = version in failures and time_s >= failures[version][1]
                    seen = (after if fresh else before)[version]
                    busy = any(f >= version and row[1] < own for f, row in queues[worker])
                    made = self.contribution(seen, worker, own, count, version, busy)
                    done[worker, own] = made, seen, fresh
                made, seen, fresh = done[worker, first]
                crossed = sum(read < v <= fold or (v == read and not fresh) for v in failures)
                past = sum(v < read or (v == read and fresh) for v in failures)
                stale = fold - read + crossed
                arrivals.append(Arrival(made, seen, stale, worker, steps, read + past))
            if written:
                for arrival in arrivals:
                    written(self.algorithm, state, arrival, self.rate)
            else:
                told = Fold(
                    torch.stack([a.tensor for a in arrivals]), [a.staleness for a in arrivals],
                    self.rate, [a.worker for a in arrivals], [float(a.steps) for a in arrivals],
                )  # fmt: skip
                algorithm.fold(state, told)
            before.append(state.model.clone())
            restored = failures.get(fold + 1, (fold + 1, 0.0))[0]
            if restored <= fold:
                state, memories, begun = copy.deepcopy(kept[restored])
                if algorithm.rounds:  # all restart together
                    self.memories, self.begun = memories, begun
                if not written:
                    state.version = fold + 1
            after.append(state.model.clone())
            if fold + 1 in wanted:
                kept[fold + 1] = copy.deepcopy((state, self.memories, self.begun))
        return state.model

    def around_shards(self, timeline: Timeline, shards: int) -> Tensor:
        """The last model of a server in shards, each with versions of its own."""
        size = len(self.start)
        cuts = list(pairwise(size * shard // shards for shard in range(shards + 1)))
        servers = [self.algorithm.start(self.start[a:b]) for a, b in cuts]
        versions = [[server.model.clone()] for server in servers]
        keys = {fold: row[0][:3] for fold, row in _rows(timeline).items()}
        pieces, todo = timeline.pieces, [dict[int, tuple[int, int]]() for _ in servers]
        reads: dict[int, dict[int, int]] = {}
        for fold, who, read, version in zip(
            *(getattr(pieces, c).tolist() for c in ("fold", "worker", "read_version", "version")),
            strict=True,
        ):
            assert version != LOST
            todo[SERVER - who][version] = (fold, read)
            reads.setdefault(fold, {})[SERVER - who] = read
        made: dict[int, Tensor] = {}
        moved = True
        while moved:
            moved = False
            for shard, server in enumerate(servers):
                fold, read = todo[shard].get(server.version, (-1, 0))
                there = all(len(versions[s]) > r for s, r in reads.get(fold, {}).items())
                if fold < 0 or not there:
                    continue
                if fold not in made:
                    seen = torch.cat([versions[s][reads[fold][s]] for s in range(shards)])
                    made[fold] = self.contribution(seen, *keys[fold], fold, False)
                piece, (worker, _, steps) = made[fold][slice(*cuts[shard])], keys[fold]
                whose = [server.version - read], self.rate, [worker], [float(steps)]
                self.algorithm.fold(server, Fold(piece.unsqueeze(0), *whose))
                versions[shard].append(server.model.clone())
                moved = True
        assert all(server.version == len(timeline.folds) for server in servers)
        return torch.cat([server.model for server in servers])


Row = tuple[int, int, int, int, float]


def _rows(timeline: Timeline) -> dict[int, list[Row]]:
    """(worker, first step, steps, version read, when) of what enters each fold, by worker."""
    table = timeline.folded()
    names = ("fold", "worker", "first_step", "steps", "read_version", "read_time_s")
    found: dict[int, list[Row]] = {}
    for fold, *row in zip(*(getattr(table, name).tolist() for name in names), strict=True):
        found.setdefault(fold, []).append(tuple(row))
    return {fold: sorted(rows) for fold, rows in found.items()}


def _failures(timeline: Timeline) -> dict[int, tuple[int, float]]:
    """By version at which the server failed, the one it went back to and when, of the first."""
    names = ("version", "restored_version", "time_s")
    rows = zip(*(getattr(timeline.restarts, name).tolist() for name in names), strict=True)
    found: dict[int, tuple[int, float]] = {}
    for version, restored, time_s in rows:
        found.setdefault(version, (restored, time_s))
    return found
