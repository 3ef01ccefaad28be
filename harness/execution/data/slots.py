"""From decoded utterances to minibatches: which kept frame is trained on in which step.

Paper 3, section 3.1. With shuffling on the fly, each slot of a replica's minibatch has an
utterance and gives one frame a step; a slot that has run out takes the next decoded one. Without,
a replica's minibatches are cut from one utterance after another. The simulator decides when; this
follows it row by row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.execution.data.minibatches import Key
from harness.networks.contract import Minibatch
from harness.simulator import Contributions, Decodes, Timeline

Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class KeptFrames:
    """What is kept of an utterance.

    Attributes:
        utterance: its number, counted over all replicas in order of decoding.
        x: inputs [F, D] of its frames.
        outer: their outer gradients [F, K].
    """

    utterance: int
    x: Tensor
    outer: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Cursor:
    """The next frame of an utterance that is being trained on."""

    kept: KeptFrames
    at: int = 0


Frame = tuple[KeptFrames, int]


class Entry(NamedTuple):
    """An utterance enters a slot in its replica's step ``first_step``."""

    slot: int
    utterance: int
    first_step: int


@dataclass
class Batcher:
    """Minibatches in the order their replicas read.

    Args:
        slots: frames of a minibatch.
        shuffled: whether each slot has an utterance of its own.
    """

    slots: int
    shuffled: bool
    decoded: dict[int, KeptFrames] = field(default_factory=dict[int, KeptFrames])
    entering: dict[int, deque[Entry]] = field(default_factory=dict[int, deque[Entry]])
    current: dict[int, deque[Cursor] | list[Cursor | None]] = field(
        default_factory=dict[int, deque[Cursor] | list[Cursor | None]]
    )
    steps: dict[int, int] = field(default_factory=dict[int, int])
    chosen: dict[Key, list[Frame]] = field(default_factory=dict[Key, list[Frame]])
    last_step: int = -1

    def add(self, kept: KeptFrames) -> None:
        """An utterance that will enter a minibatch; of one without frames nothing is kept."""
        if len(kept):
            self.decoded[kept.utterance] = kept

    def follow(self, segment: Timeline) -> None:
        """Choose the frames of every minibatch that was read in a segment."""
        self.expect(segment.decodes)
        for step, worker in sorted(_keys(segment.contributions)):
            if step > self.last_step:
                self.read(worker, step)

    def expect(self, decodes: Decodes) -> None:
        """These utterances will enter slots."""
        for worker, *entry in _rows(decodes):
            self.entering.setdefault(worker, deque()).append(Entry(*entry))

    def read(self, worker: int, step: int) -> None:
        """Choose the frames of a worker's next minibatch, which has the number ``step``."""
        own = self.steps.get(worker, 0)
        self.steps[worker] = own + 1
        # A replica may take an utterance well before it has all it needs for a step.
        entering = self.entering.get(worker, deque())
        while entering and entering[0].first_step == own:
            entry = entering.popleft()
            self.enter(worker, entry.slot, self.decoded.pop(entry.utterance))
        self.chosen[worker, step] = self.take(worker)
        self.last_step = step

    def empty(self) -> None:
        """All slots are free: whoever was in them is lost."""
        self.current.clear()

    def minibatch(self, keys: Sequence[Key]) -> Minibatch:
        """The frames of several replicas' steps; where one has fewer, zeros fill it up.

        Returns:
            ``x [W, B, D]`` and, in place of targets, outer gradients ``[W, B, K]``.
        """
        return filled([self.chosen.pop(key) for key in keys])

    def enter(self, worker: int, slot: int, kept: KeptFrames) -> None:
        """An utterance enters a slot that is free; without shuffling, any."""
        place = self._place(worker)
        if isinstance(place, deque):
            place.append(Cursor(kept))
        else:
            place[slot] = Cursor(kept)

    def wanting(self, worker: int) -> int | None:
        """The first slot that lacks a frame for the next minibatch; None if it is full."""
        place = self._place(worker)
        if isinstance(place, deque):
            there = sum(len(cursor.kept) - cursor.at for cursor in place)
            return 0 if there < self.slots else None
        return next((slot for slot, cursor in enumerate(place) if cursor is None), None)

    def take(self, worker: int) -> list[Frame]:
        """The frames of a worker's next minibatch, which leave their slots."""
        return list(self._choose(worker))

    def _place(self, worker: int) -> deque[Cursor] | list[Cursor | None]:
        if worker not in self.current:
            empty: list[Cursor | None] = [None] * self.slots
            self.current[worker] = empty if self.shuffled else deque()
        return self.current[worker]

    def _choose(self, worker: int) -> Iterable[Frame]:
        place = self._place(worker)
        if isinstance(place, deque):
            yield from _consecutive(place, self.slots)
            return
        for slot, cursor in enumerate(place):
            if cursor is not None:
                yield cursor.kept, cursor.at
                cursor.at += 1
                if cursor.at == len(cursor.kept):
                    place[slot] = None

    # -- to go on later -----------------------------------------------------------------

    def capture(self) -> tuple[Arrays, Facts]:
        """Everything above as arrays and facts."""
        every = {kept.utterance: kept for kept in self._referred()}
        arrays = {
            f"{kept.utterance}/{name}": tensor.cpu().numpy()
            for kept in every.values()
            for name, tensor in (("x", kept.x), ("outer", kept.outer))
        }
        facts = {
            "utterances": sorted(every),
            "decoded": list(self.decoded),
            "current": [
                [worker, [c and [c.kept.utterance, c.at] for c in place]]
                for worker, place in self.current.items()
            ],
            "entering": [[worker, list(rows)] for worker, rows in self.entering.items()],
            "steps": list(self.steps.items()),
            "chosen": [
                [*key, [[kept.utterance, at] for kept, at in frames]]
                for key, frames in self.chosen.items()
            ],
            "last_step": self.last_step,
        }
        return arrays, facts

    def reinstate(self, arrays: Arrays, facts: Facts, device: str) -> None:
        """Undo ``capture``."""
        every = {
            u: KeptFrames(
                u, *(torch.as_tensor(arrays[f"{u}/{n}"]).to(device) for n in ("x", "outer"))
            )
            for u in facts["utterances"]
        }
        self.decoded = {u: every[u] for u in facts["decoded"]}
        for worker, place in facts["current"]:
            cursors = [entry and Cursor(every[entry[0]], entry[1]) for entry in place]
            self.current[worker] = cursors if self.shuffled else deque(cursors)
        for worker, rows in facts["entering"]:
            self.entering[worker] = deque(Entry(*row) for row in rows)
        self.steps = dict(facts["steps"])
        self.chosen = {
            (worker, step): [(every[u], at) for u, at in frames]
            for worker, step, frames in facts["chosen"]
        }
        self.last_step = facts["last_step"]

    def _referred(self) -> Iterable[KeptFrames]:
        yield from self.decoded.values()
        for place in self.current.values():
            yield from (cursor.kept for cursor in place if cursor is not None)
        for frames in self.chosen.values():
            yield from (kept for kept, _ in frames)


def _consecutive(queue: deque[Cursor], most: int) -> Iterable[Frame]:
    """The next frames of a queue of utterances, which shrinks as they run out."""
    for _ in range(most):
        if not queue:
            return
        cursor = queue[0]
        yield cursor.kept, cursor.at
        cursor.at += 1
        if cursor.at == len(cursor.kept):
            queue.popleft()


def filled(minibatches: Sequence[Sequence[Frame]]) -> Minibatch:
    """Several minibatches of frames; where one has fewer, zeros fill it up.

    Returns:
        ``x [W, B, D]`` and, in place of targets, outer gradients ``[W, B, K]``.
    """
    most = max(map(len, minibatches))
    x = torch.stack([_filled([kept.x[at] for kept, at in each], most) for each in minibatches])
    outer = [_filled([kept.outer[at] for kept, at in each], most) for each in minibatches]
    return Minibatch(x, torch.stack(outer))


def _filled(rows: list[Tensor], size: int) -> Tensor:
    """Rows as one tensor, with rows of zeros below them."""
    return torch.stack(rows + [torch.zeros_like(rows[0])] * (size - len(rows)))


def _keys(rows: Contributions) -> Iterable[tuple[int, int]]:
    """(first_step, worker) of contributions."""
    return zip(rows.first_step.tolist(), rows.worker.tolist(), strict=True)


def _rows(rows: Decodes) -> Iterable[tuple[int, int, int, int]]:
    columns = (rows.worker, rows.slot, rows.utterance, rows.first_step)
    return zip(*(column.tolist() for column in columns), strict=True)
