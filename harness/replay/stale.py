"""Walk a timeline on one device: real gradients, in simulated order, at stale parameters.

A contribution's inputs are fixed the moment its worker reads. So nothing is computed until
a fold needs it, and then everything that has been read and not computed is computed as one
batch over the replica stack. Folds wait likewise, until somebody has to see the model: those
that follow one another are executed together, with the reads between them.

What a server that fails goes back to: its state at some of its past versions. Versions only grow.
A restart at version v means that the model of v is from then on that of the version it was
restored to; workers that have read v before keep what they read, and the server keeps its `past`:
what they answer to.

Arrays and facts: what a run in progress is written as, and a timeline among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.algorithms.contract import (
    Algorithm,
    LocalWork,
    Memories,
    Memory,
    Server,
    Turn,
    Turns,
    fold_turns,
    is_contiguous,
    rows,
)
from harness.base.errors import UserError
from harness.networks.contract import Minibatch, Network
from harness.simulator import LOST, Restarts, Timeline
from harness.simulator.timeline import Contributions, Decodes, Folds, Pieces, Spans
from harness.simulator.timeline import Restarts as timeline_Restarts
from harness.simulator.timeline import Timeline as timeline_Timeline
from harness.tasks.order import Key

Arrays = dict[str, np.ndarray]

Facts = dict[str, Any]

COUNTS = ("version", "undone", "restarts")
"""Fields of a server that are counts."""

TABLES = {
    "folds": Folds,
    "contributions": Contributions,
    "spans": Spans,
    "restarts": timeline_Restarts,
    "decodes": Decodes,
    "pieces": Pieces,
}


def capture_timeline(timeline: timeline_Timeline) -> tuple[Arrays, Facts]:
    """A timeline's columns, named table.column, and its span kinds."""
    arrays = {
        f"{table}.{name}": column
        for table, rows in timeline.tables().items()
        for name, column in rows.columns().items()
    }
    return arrays, {"kinds": list(timeline.kinds)}


def reinstate_timeline(arrays: Arrays, facts: Facts) -> timeline_Timeline:
    """Undo ``capture_timeline``."""
    tables: dict[str, Any] = {  # by name, each of a class of its own
        name: kind(**part(arrays, f"{name}.")) for name, kind in TABLES.items()
    }
    return timeline_Timeline(kinds=tuple(facts["kinds"]), **tables)


def part(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays under one prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def add_prefix(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays, each name under a prefix."""
    return {prefix + name: array for name, array in arrays.items()}


def memory_to_arrays(prefix: str, memory: Memory) -> Arrays:
    """The arrays of a worker's memory, each name under a prefix."""
    return {prefix + name: tensor.cpu().numpy() for name, tensor in memory.tensors.items()}


def memory_from_arrays(arrays: Arrays, prefix: str, new_pass: bool, device: torch.device) -> Memory:
    """Undo ``memory_to_arrays``."""
    named = part(arrays, prefix)
    return Memory({k: torch.as_tensor(a).to(device) for k, a in named.items()}, new_pass)


def capture_server(server: Server) -> tuple[Arrays, Facts]:
    """A server's vectors, its version and its numbers."""
    arrays = copy_arrays(vectors_of(server))
    counts = {name: getattr(server, name) for name in COUNTS}
    return arrays, {**counts, "numbers": dict(server.numbers)}


def reinstate_server(server: Server, arrays: Arrays, facts: Facts) -> None:
    """Undo ``capture_server``."""
    reinstate_vectors(vectors_of(server), arrays)
    for name in COUNTS:
        setattr(server, name, facts[name])
    server.numbers = facts["numbers"]


def copy_arrays(vectors: dict[str, torch.Tensor]) -> Arrays:
    """Copies of tensors as arrays, by the same names."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in vectors.items()}


def reinstate_vectors(vectors: dict[str, torch.Tensor], arrays: Arrays) -> None:
    """Undo ``copy_arrays``, in place."""
    for name, tensor in vectors.items():
        tensor.copy_(torch.as_tensor(arrays[name]))


def vectors_of(server: Server) -> dict[str, torch.Tensor]:
    """Every ``[P]`` vector of a server, by the name it is kept under."""
    past = {f"past/{name}": vector for name, vector in server.past.items()}
    return state_of(server) | past


def state_of(server: Server) -> dict[str, torch.Tensor]:
    """The vectors that a server's checkpoint holds: all but its past."""
    vectors = {f"vector/{name}": vector for name, vector in server.vectors.items()}
    # Checkpoints have had this prefix since only momenta were kept.
    tensors = {f"momentum/{name}": vector for name, vector in server.tensors.items()}
    return {"model": server.model, **vectors, **tensors}


PREFIX = "checkpoint/"


@dataclass
class Checkpoints:
    """The server's states by version, and at which versions it keeps one or goes back.

    Args:
        kept: copies of the vectors and numbers of the server, and its number of folds.
        restarted: the last version at which the server went back.
    """

    kept: dict[int, tuple[Arrays, Facts]] = field(default_factory=dict[int, tuple[Arrays, Facts]])
    restarted: int = -1
    _keep: set[int] = field(default_factory=set[int])
    _restore: dict[int, int] = field(default_factory=dict[int, int])

    def plan_segment(self, restarts: Restarts, restorable: int | None) -> dict[int, float]:
        """Prepare for a segment.

        Args:
            restarts: in it.
            restorable: what a failure after it may go back to; None if the server cannot fail.

        Returns:
            The versions at which the server fails, and when it is there again for the first time.
        """
        columns = (restarts.version, restarts.restored_version, restarts.time_s)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        self._restore = {version: restored for version, restored, _ in reversed(rows)}
        self._keep = {restored for _, restored, _ in rows}
        if restorable is not None:
            self._keep.add(restorable)
        self._forget(min(self._keep, default=None))
        return {version: time_s for version, _, time_s in reversed(rows)}

    def has_work_at(self, version: int) -> bool:
        """Whether there is something to do at a version."""
        return version in self._keep or version in self._restore

    def save_or_restore(self, server: Server) -> None:
        """Go back if the server fails at its version, and keep it if that is asked for.

        Raises:
            UserError: what it goes back to is not kept.
        """
        version = server.version
        restored = self._restore.get(version, version)
        if restored != version:
            if restored not in self.kept:
                raise UserError(
                    "cluster: a server that fails can be timed but not trained with here"
                )
            _go_back(server, *self.kept[restored])
        if version in self._restore:
            self._forget(restored)
            # A second failure at one version finds the model of the first restart: no change.
            server.restarts += version != self.restarted
            self.restarted = version
        if version in self._keep:
            numbers = {"folds": server.folds, "numbers": dict(server.numbers)}
            self.kept[version] = copy_arrays(state_of(server)), numbers

    def _forget(self, before: int | None) -> None:
        """Nothing goes back beyond a version any more; None is to none at all."""
        oldest = math.inf if before is None else before
        self.kept = {version: state for version, state in self.kept.items() if version >= oldest}

    def arrays(self) -> Arrays:
        """The states' vectors, for `of`."""
        return {
            name: array
            for version, (arrays, _) in self.kept.items()
            for name, array in add_prefix(arrays, f"{PREFIX}{version}/").items()
        }

    def facts(self) -> Facts:
        """The states' other facts, and where the server last went back, for `of`."""
        kept = [[version, facts] for version, (_, facts) in self.kept.items()]
        return {"kept": kept, "restarted": self.restarted}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], facts: Facts) -> Checkpoints:
        """Undo `arrays` and `facts`."""
        named = dict(arrays)
        kept = {v: (part(named, f"{PREFIX}{v}/"), its) for v, its in facts["kept"]}
        return cls(kept, facts["restarted"])


def _go_back(server: Server, arrays: Arrays, facts: Facts) -> None:
    """Put a kept state in the place of a server's, whose version and past stay."""
    reinstate_vectors(state_of(server), arrays)
    server.undone = server.version - facts["folds"]
    server.numbers = dict(facts["numbers"])


MinibatchOf = Callable[[Sequence[Key]], Minibatch]
"""The frames of several workers' local steps, each named by (worker, step)."""

Reads = dict[tuple[int, bool], list[tuple[Key, int]]]
"""Contributions and how many local steps each takes, by the version read, and whether the server
had failed at it."""


class Pending(NamedTuple):
    """A contribution that was read and is not computed yet."""

    steps: int
    slot: int
    key: Key


@dataclass
class StaleReplay:
    """An algorithm, its server and the replicas in flight, moved along by timeline segments.

    Args:
        algorithm: contributes and folds.
        network: what is trained.
        server: changed in place.
        minibatch_of: gives the frames of local steps.
        slots: how many contributions can be in flight at once.
        alone: compute each contribution by itself, in memory of its own, as a real worker does:
            a product's last bits depend on what is computed with it.

    Attributes:
        memories: of each worker.
        restarts: of the server until a contribution in flight was read.
        checkpoints: the server at versions that it may go back to, if it can fail.
    """

    algorithm: Algorithm
    network: Network
    server: Server
    minibatch_of: MinibatchOf
    slots: int
    alone: bool = False
    replicas: Tensor = field(init=False)
    contributions: Tensor = field(init=False)
    in_flight: dict[Key, int] = field(default_factory=dict[Key, int])
    restarts: dict[Key, int] = field(default_factory=dict[Key, int])
    pending: list[Pending] = field(default_factory=list[Pending])
    memories: Memories = field(default_factory=Memories)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    loss: Tensor = field(init=False)
    batches: int = 0

    def __post_init__(self) -> None:
        self.algorithm = self.algorithm.on(self.network)
        model = self.server.model
        self.replicas, self.contributions = _stack(model, self.slots), _stack(model, self.slots)
        self.loss = model.new_zeros((), dtype=torch.float64)

    @torch.no_grad()
    def run(self, segment: Timeline, rate: float, restorable: int | None = None) -> None:
        """Execute every read and fold of a segment, in its order, at one rate.

        Args:
            segment: what happened.
            rate: of folds and local steps.
            restorable: the version that a failure after the segment may go back to.

        Raises:
            ValueError: the segment does not begin at the server's version.
            UserError: the server failed in it, and what it went back to is not kept; or it is in
                shards, and a read finds no one version of the model.
        """
        if len(segment.pieces):
            raise UserError("timeline: of a server in shards; allowed: a run with as many shards")
        self._forget(segment)
        failed = self.checkpoints.plan_segment(segment.restarts, restorable)
        reads = _reads_by_version(segment, self.in_flight, failed)
        self._read(reads.pop((self.server.version, False), ()))
        self._come_back(failed, reads)
        self._show()
        waiting: list[Turn] = []
        for fold, entering in _folds(segment):
            version = self.server.version + len(waiting)
            if fold != version:
                raise ValueError(f"fold {fold} meets version {version}")
            slots = [self.in_flight[key] for key, *_ in entering]
            # A worker's later contribution may come first, where messages are lost: the earlier
            # one is computed, and then this one.
            while any(read.slot in slots for read in self.pending):
                self._fold(waiting, rate)
                self._compute(slots, rate)
            for key, *_ in entering:
                del self.in_flight[key]
            waiting.append(
                Turn(
                    slots,
                    staleness=[
                        fold - version + self.server.restarts - self.restarts.pop(key)
                        for key, version, _ in entering
                    ],
                    readers=self._admit(reads.pop((fold + 1, False), ())),
                    workers=[worker for (worker, _), *_ in entering],
                    weights=[float(steps) for *_, steps in entering],
                )
            )
            if self._is_shown(fold + 1) or self.checkpoints.has_work_at(fold + 1):
                self._fold(waiting, rate)
                self._come_back(failed, reads)
                self._show()
        self._fold(waiting, rate)

    def _read(self, readers: Iterable[tuple[Key, int]]) -> None:
        """Contributions begin with the present model."""
        for slot in self._admit(readers):
            self.replicas[slot].copy_(self.server.model)

    def _come_back(self, failed: Mapping[int, float], reads: Reads) -> None:
        """If the server failed at its present version: go back, and let those read who then do."""
        version = self.server.version
        self.checkpoints.save_or_restore(self.server)
        if version in failed:
            self._read(reads.pop((version, True), ()))

    def begin_pass(self) -> None:
        """The next contributions are the first of a pass over the data."""
        self.memories.begin_pass()

    def capture(self) -> tuple[Arrays, Facts]:
        """The server, the replicas in flight, what is computed ahead of its fold, and memories."""
        arrays, facts = capture_server(self.server)
        arrays |= {name: tensor.cpu().numpy() for name, tensor in self._stacks().items()}
        arrays |= self.checkpoints.arrays()
        memories = self.memories.split()
        for worker, memory in memories.items():
            arrays |= memory_to_arrays(f"memories/{worker}/", memory)
        facts |= {
            "in_flight": [[*key, slot] for key, slot in self.in_flight.items()],
            "in_flight_restarts": list(self.restarts.values()),
            "pending": list(self.pending),
            "batches": self.batches,
            "checkpoints": self.checkpoints.facts(),
            "new_passes": [[worker, m.new_pass] for worker, m in memories.items()],
        }
        return arrays, facts

    def reinstate(self, arrays: Arrays, facts: Facts) -> None:
        """Undo `capture`."""
        reinstate_server(self.server, arrays, facts)
        for name, tensor in self._stacks().items():
            tensor.copy_(torch.as_tensor(arrays[name]))
        self.in_flight = {(worker, step): slot for worker, step, slot in facts["in_flight"]}
        self.restarts = dict(zip(self.in_flight, facts["in_flight_restarts"], strict=True))
        self.pending = [Pending(steps, slot, (w, s)) for steps, slot, (w, s) in facts["pending"]]
        self.batches = facts["batches"]
        self.checkpoints = Checkpoints.from_arrays(arrays, facts["checkpoints"])
        device = self.server.model.device
        self.memories = Memories(
            {
                worker: memory_from_arrays(arrays, f"memories/{worker}/", new_pass, device)
                for worker, new_pass in facts["new_passes"]
            }
        )

    def _stacks(self) -> dict[str, Tensor]:
        return {
            "replicas": self.replicas,
            "contributions": self.contributions,
            "loss": self.loss,
        }

    def _is_shown(self, version: int) -> bool:
        """Whether somebody besides the workers looks at a version of the model."""
        del version
        return False

    def _show(self) -> None:
        """Let others look at the present version of the model."""

    def _forget(self, segment: Timeline) -> None:
        """Free the slots of contributions that were read before the segment and lost in it."""
        lost = segment.lost()
        keys = set(zip(lost.worker.tolist(), lost.first_step.tolist(), strict=True))
        self.pending = [waiting for waiting in self.pending if waiting.key not in keys]
        for key in keys & self.in_flight.keys():
            del self.in_flight[key], self.restarts[key]

    def _admit(self, readers: Iterable[tuple[Key, int]]) -> list[int]:
        """A slot for every contribution that now begins with a read."""
        readers = list(readers)
        if self.algorithm.rounds:  # slots in the order of workers, in which they are computed
            readers.sort()
        slots: list[int] = []
        free = iter(sorted(set(range(self.slots)).difference(self.in_flight.values())))
        for key, steps in readers:
            slot = next(free)
            self.in_flight[key], self.restarts[key] = slot, self.server.restarts
            self.pending.append(Pending(steps, slot, key))
            slots.append(slot)
        return slots

    def _fold(self, waiting: list[Turn], rate: float) -> None:
        """Execute the folds that waited and the reads after them.

        If everybody in flight has read between them, nothing else in the stacks is needed again:
        models are written where contributions stood, which is a third less to move, and the
        stacks change places.
        """
        if not waiting:
            return
        read = {slot for turn in waiting for slot in turn.readers}
        change_places = read.issuperset(self.in_flight.values())
        replicas = self.contributions if change_places else self.replicas
        fold_turns(self.algorithm, self.server, Turns(self.contributions, replicas, waiting), rate)
        if change_places:
            self.replicas, self.contributions = self.contributions, self.replicas
        waiting.clear()

    def _compute(self, entering: Sequence[int], rate: float) -> None:
        """Compute what has been read and not computed: one batch for each number of steps.

        Of a worker that has gone on to its next contribution, that one waits: the worker may
        remember something from this one to the next. Alone, all wait but those in the slots
        ``entering`` this fold: what is lost later may not have changed a worker's memory, or it
        would count how far the segment goes.
        """
        if self.alone:
            due = [waiting for waiting in self.pending if waiting.slot in entering]
            for waiting in due:
                self._compute_batch(waiting.steps, [waiting], rate)
            self.pending = [waiting for waiting in self.pending if waiting not in due]
            return
        if len(self.pending) == 1:  # nobody to be computed together with, nobody to wait
            only, self.pending = self.pending, []
            self._compute_batch(only[0].steps, only, rate)
            return
        due, self.pending = _next_of_each(self.pending)
        # Rounds in the order of their workers, so that one round's joint memory is the next one's.
        due.sort(key=lambda each: each.key if self.algorithm.rounds else (each.slot,))
        kinds = self.memories.kinds([waiting.key[0] for waiting in due])
        alike = sorted(
            (
                (waiting.steps, kind, place)
                for place, (waiting, kind) in enumerate(zip(due, kinds, strict=True))
            )
        )
        for (steps, _), group in groupby(alike, lambda each: each[:2]):
            self._compute_batch(steps, [due[place] for *_, place in group], rate)

    def _compute_batch(self, steps: int, batch: list[Pending], rate: float) -> None:
        slots = [waiting.slot for waiting in batch]
        minibatches = [
            self.minibatch_of([(worker, first + k) for _, _, (worker, first) in batch])
            for k in range(steps)
        ]
        replicas, out = rows(self.replicas, slots), rows(self.contributions, slots)
        if self.alone:
            replicas, out = replicas.clone(), torch.empty_like(replicas)
        memory = self.memories.join([worker for _, _, (worker, _) in batch])
        losses = self.algorithm.contribute(
            LocalWork(self.network, replicas, minibatches, out, rate, memory)
        )
        memory.new_pass = False
        if self.alone or not is_contiguous(slots):
            self.contributions[torch.tensor(slots, device=out.device)] = out
        self.loss += losses.sum(dtype=torch.float64)
        self.batches += 1


def _next_of_each(pending: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """The first contribution of each worker, and the others."""
    first = {waiting.key[0]: waiting for waiting in sorted(pending, key=_newest_first)}
    due = [waiting for waiting in pending if first[waiting.key[0]] is waiting]
    return due, [waiting for waiting in pending if first[waiting.key[0]] is not waiting]


def _newest_first(waiting: Pending) -> int:
    return -waiting.key[1]


def _stack(model: Tensor, slots: int) -> Tensor:
    """Zeros ``[slots, P]``; NumPy asks for pages of 2 MiB, which a processor finds faster."""
    if model.device.type != "cpu":
        return model.new_zeros(slots, model.numel())
    return torch.as_tensor(np.zeros((slots, model.numel()), model.numpy().dtype))


def _reads_by_version(
    segment: Timeline, known: Mapping[Key, int], failed: Mapping[int, float]
) -> Reads:
    """What is first read in this segment and not lost, by the version read, in reading order.

    Args:
        segment: what happened.
        known: contributions that were read before.
        failed: the versions at which the server failed, and when it was there again.
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
        if fold != LOST and (worker, step) not in known:
            again = time >= failed.get(version, np.inf)
            reads.setdefault((version, again), []).append((time, (worker, step), steps))
    return {v: [(key, steps) for _, key, steps in sorted(keys)] for v, keys in reads.items()}


def _folds(segment: Timeline) -> Iterator[tuple[int, list[tuple[Key, int, int]]]]:
    """Each fold with ``(key, read_version, steps)`` of what enters it, by worker."""
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
        yield fold, [((worker, step), read, steps) for _, worker, step, read, steps in entering]
