"""Iterables larger than memory: read anew in each pass, and shuffled within a buffer.

The first reading counts and identifies the examples, and keeps a few of them. In training, each
pass reads the iterable from its beginning; its minibatches are handed out in their order, in rounds
to one worker after the other.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import UserError
from harness.base.seeds import stream, stream_key
from harness.modules.problem import Arrays
from harness.modules.redrawn import preserve_generators, seed_all
from harness.modules.trees import Value
from harness.networks.contract import Minibatch
from harness.tasks.order import ContinuousOrder

BLOCK = 256
"""Examples that are read at once."""

KEPT = 1024
"""Minibatches that are kept until their workers ask for them."""

Items = Callable[[int], Iterator[Arrays]]
"""Begins a reading of an iterable, in blocks of so many examples."""


@dataclass(frozen=True, eq=False)
class ExampleStream(Arrays):
    """Examples of an iterable, of which only a buffer is in memory.

    Args:
        x, y: the first examples, for shapes.
        items: begins a reading.
        count: examples in a pass.
        skipped: examples at the beginning that are held out.
        buffer: examples among which the next one is drawn.
        content: digest of all examples as first read.
        what: name of the user's argument, for messages.
        floats: precision of floating-point tensors; None as they are.
        place: device of the minibatches.
    """

    items: Items
    count: int
    skipped: int
    buffer: int
    content: str
    what: str
    floats: torch.dtype | None = None
    place: str = "cpu"

    @classmethod
    def read(
        cls, first: Iterator[Arrays], items: Items, examples: int | None, buffer: int, what: str
    ) -> ExampleStream:
        """Count and identify the examples of an iterable, and keep as many as the buffer has.

        Args:
            first: blocks of the first reading, which end.
            items: begins a reading.
            examples: number of examples in a pass; None for all.
            buffer: examples among which the next one is drawn.
            what: name of the user's argument, for messages.

        Raises:
            UserError: there are no examples.
        """
        sha, count, head = hashlib.sha256(), 0, list[Arrays]()
        for each in first:
            block = each if examples is None else each[: examples - count]
            sha.update(block.sha256.encode())
            if count < buffer:
                head.append(block)
            count += len(block)
        if not head:
            raise UserError(f"{what}: empty; allowed: at least one example")
        kept = _join(head)
        return cls(kept.x, kept.y, items, count, 0, buffer, sha.hexdigest(), what)

    def __len__(self) -> int:
        return self.count

    @property
    def frames(self) -> np.ndarray:
        """Rows of each example: one."""
        return np.broadcast_to(np.int64(1), self.count)

    @property
    def targets(self) -> Value:
        """Not there: they are not in memory.

        Raises:
            UserError: always; a partition would need them.
        """
        told = "not with buffer=, as it needs the targets of all examples, which are not in memory"
        raise UserError(f"partition: {told}; allowed: 'iid', or no buffer=")

    @cached_property
    def sha256(self) -> str:
        """Digest of all examples as first read, and of buffer and held out examples."""
        told = f"streamed {self.content} {self.count} {self.skipped} {self.buffer}"
        return hashlib.sha256(told.encode()).hexdigest()

    def to(self, device: str, floats: torch.dtype) -> ExampleStream:
        """The same on a device, with floating-point tensors in one precision; reads anew."""
        first = super().to(device, floats)
        return replace(self, x=first.x, y=first.y, floats=floats, place=device)

    def split(self, share: float, seed: int = 0) -> tuple[Arrays, Arrays]:
        """Hold out the first examples: about ``share`` of all, at most as many as the buffer."""
        held = max(1, min(round(share * self.count), self.buffer, len(self.x)))
        dev = Arrays(self.x, self.y)[:held]
        return replace(self, count=self.count - held, skipped=self.skipped + held), dev

    def fetch(self, positions: np.ndarray, seed: int) -> Minibatch:
        """Minibatches ``[W, 1, B, ...]`` at positions ``[W, B]`` of the order of training.

        Args:
            positions: each row is that of one minibatch of `StreamOrder`.
            seed: the run's seed.

        Raises:
            UserError: the iterable ends earlier than when it was first read.
        """
        reader = self._reader(seed, positions.shape[1])
        found = _join([reader.fetch(int(row[0]) // len(row)) for row in positions])
        shape = (*positions.shape[:1], 1, *positions.shape[1:])

        def place(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point() and self.floats is not None:
                tensor = tensor.to(self.floats)
            return tensor.to(self.place).view(*shape, *tensor.shape[1:])

        found = found.map(place)
        return Minibatch(cast(Tensor, found.x), cast(Tensor, found.y))

    def _reader(self, seed: int, minibatch: int) -> Reader:
        """The reader of a run; made when the first minibatch is asked for."""
        known = vars(self).get("_known")
        if known is None or known[0] != (seed, minibatch):
            known = (seed, minibatch), Reader(self, seed, minibatch)
            vars(self)["_known"] = known
        return cast(Reader, known[1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_known"}


class Reader:
    """Minibatches of a run in their order, each kept until it is asked for.

    Args:
        source: the examples.
        seed: the run's seed.
        minibatch: examples in a minibatch.
    """

    def __init__(self, source: ExampleStream, seed: int, minibatch: int) -> None:
        self._source, self._seed, self._size = source, seed, minibatch
        self._begin(0)

    def fetch(self, number: int) -> Arrays:
        """Minibatch ``number`` of the run."""
        if number < self._next and number not in self._kept:
            self._begin(number)
        while number not in self._kept:
            self._kept[self._next] = next(self._minibatches)
            self._next += 1
            self._kept.pop(self._next - KEPT, None)
        return self._kept.pop(number)

    def _begin(self, number: int) -> None:
        """Read again from the beginning of the pass in which a minibatch begins."""
        first, count = number * self._size, self._source.count
        self._kept: dict[int, Arrays] = {}
        self._next = number
        self._minibatches = self._from(first // count, first % count)

    def _from(self, number: int, skipped: int) -> Iterator[Arrays]:
        """Minibatches from a place in pass ``number`` on, without end."""
        rest: list[Arrays] = []
        there = 0
        while True:
            for block in self._shuffle(number):
                some = block[min(skipped, len(block)) :]
                skipped -= len(block) - len(some)
                rest.append(some)
                there += len(some)
                while there >= self._size:
                    joined = _join(rest)
                    yield joined[: self._size]
                    rest, there = [joined[self._size :]], there - self._size
            number += 1

    def _shuffle(self, number: int) -> Iterator[Arrays]:
        """The examples of a pass in blocks: each is drawn from the buffer, which the next fills."""
        draw, size = stream(self._seed, "buffer", number), self._source.buffer
        held: Arrays | None = None
        for block in self._blocks(number):
            held = block if held is None else _join([held, block])
            if len(held) > size:
                out = draw.permutation(len(held))
                yield held.take(out[size:])
                held = held.take(np.sort(out[:size]))
        if held is not None:
            yield held.take(draw.permutation(len(held)))

    def _blocks(self, number: int) -> Iterator[Arrays]:
        """The examples of a pass as the iterable gives them, with generators of the pass's own."""
        source = self._source
        count, end = 0, source.skipped + source.count
        with preserve_generators():
            seed_all(stream_key(self._seed, "iterable", number) >> 65)
            blocks = source.items(max(BLOCK, source.buffer // 4))
            states = _states()
        while count < end:
            with preserve_generators():
                _restore(states)
                block = next(blocks, None)
                states = _states()
            if block is None:
                told = f"ends after {count:,} examples in pass {number}, {end:,} when first read"
                raise UserError(f"{source.what}: {told}; allowed: as many in every pass")
            first = max(0, source.skipped - count)
            some = block[first : end - count]
            count += len(block)
            if len(some):
                yield some


def _states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _restore(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def _join(blocks: list[Arrays]) -> Arrays:
    """Concatenate examples."""
    if len(blocks) == 1:
        return blocks[0]
    columns = zip(*(block.tensors() for block in blocks), strict=True)
    joined = iter([torch.cat(list(column)) for column in columns])
    return blocks[0].map(lambda _: next(joined))


@dataclass(frozen=True, eq=False)
class Whole:
    """The size of a pass, for `StreamOrder`."""

    size: int
    minibatch: int

    @property
    def frames(self) -> np.ndarray:
        """Rows of each example: one."""
        return np.broadcast_to(np.int64(1), self.size)


@dataclass(frozen=True, eq=False)
class StreamOrder(ContinuousOrder):
    """Minibatches of an order that exists only as it is read.

    Its rows are positions since the run began. In rounds, workers take minibatches in turn.
    """

    def rows_of(self, keys: Any) -> np.ndarray:
        """The positions ``[W, B]`` of minibatches named by (worker, step) of this stage."""
        before, size = self._rounds(self.stage) * self._each, self.minibatch
        steps = [(worker, before + step) for worker, step in keys]
        numbers = [s * self.workers + w if self.own else s for w, s in steps]
        return np.array(numbers)[:, None] * size + np.arange(size)
