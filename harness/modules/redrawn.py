"""Data sets that draw at random: each example is asked anew in each pass, with a seed of its own.

So random augmentation differs from pass to pass, as a `torch.utils.data.DataLoader` would have it,
and yet depends on the run's seed, the pass and the example alone: a run that is resumed, another
process or another algorithm sees the same.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from harness.base.errors import RAISED, UserError, describe_raised
from harness.base.seeds import stream_key
from harness.modules.problem import Arrays
from harness.modules.trees import join, map_tensors
from harness.networks.contract import Minibatch
from harness.runs.digests import digest_of_code

ASKED_TWICE = 16
"""Examples that are asked twice to find a generator of the data set's own."""


@dataclass(frozen=True, eq=False)
class RandomExamples(Arrays):
    """Examples of a map-style data set that draws at random.

    Args:
        x, y: the examples as they were first read: for shapes and targets, not for training.
        data: the data set.
        rows: index in the data set of each example.
        code: digest of the data set's code and attributes.
        what: name of the user's argument, for messages.
        read: converts an item to an example.
        floats: precision of floating-point tensors; None as they are.
        place: device of the minibatches.
    """

    data: Any
    rows: np.ndarray
    code: str
    what: str
    read: Callable[[Any, str], Arrays]
    floats: torch.dtype | None = None
    place: str = "cpu"

    @staticmethod
    def describe(data: Any, what: str) -> str:
        """Digest of a data set's code and attributes.

        Raises:
            UserError: it holds something that cannot be identified.
        """
        return digest_of_code(data, f"{what} (redraw=False reads it once)")

    @cached_property
    def sha256(self) -> str:
        """Digest of the data set's code and attributes, and of the examples as first read."""
        first = Arrays(self.x, self.y).sha256
        return hashlib.sha256(f"redrawn {self.code} {first}".encode()).hexdigest()

    def to(self, device: str, floats: torch.dtype) -> RandomExamples:
        """The same on a device, with floating-point tensors in one precision."""
        first = super().to(device, floats)
        return replace(self, x=first.x, y=first.y, floats=floats, place=device)

    def take(self, rows: np.ndarray) -> RandomExamples:
        """The examples of ``rows``, in that order."""
        first = super().take(rows)
        return replace(self, x=first.x, y=first.y, rows=self.rows[rows])

    def split(self, share: float, seed: int = 0) -> tuple[Arrays, Arrays]:
        """Split at random; the second part stays as it was first read."""
        train, dev = super().split(share, seed)
        return train, Arrays(dev.x, dev.y)

    def ask(self, rows: np.ndarray, passes: np.ndarray, seed: int) -> Minibatch:
        """Minibatches ``[W, 1, B, ...]`` of ``rows [W, B]``, each asked in its pass.

        Args:
            rows: numbers of the examples.
            passes: ``[W, B]`` number of the pass of each.
            seed: the run's seed.

        Raises:
            UserError: the data set raises an error, or gives an example of another shape.
        """
        with preserve_generators():
            pairs = zip(self.rows[rows.ravel()].tolist(), passes.ravel().tolist(), strict=True)
            found = [self._ask_one(row, times, seed) for row, times in pairs]
        shape = (len(rows), 1, rows.shape[1])

        def place(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point() and self.floats is not None:
                tensor = tensor.to(self.floats)
            return tensor.to(self.place).view(*shape, *tensor.shape[1:])

        try:
            parts = [join(torch.stack, [getattr(each, name) for each in found]) for name in "xy"]
        except RuntimeError as error:
            told = "examples of unequal shape when asked anew; allowed: all of one shape"
            raise UserError(f"{self.what}: {told}") from error
        x, y = (map_tensors(place, part) for part in parts)
        return Minibatch(cast(Tensor, x), cast(Tensor, y))

    def _ask_one(self, row: int, times: int, seed: int) -> Arrays:
        seed_all(seed_of_example(seed, times, row))
        try:
            item = self.data[row]
        except RAISED as error:
            told = f"{self.what}: example {row} in pass {times} raised {describe_raised(error)}"
            raise UserError(told) from error
        return self.read(item, self.what)


def seed_of_example(seed: int, passes: int, row: int) -> int:
    """Seed, of 63 bits, with which a data set is asked for an example.

    Args:
        seed: the run's seed.
        passes: number of passes before this one.
        row: index of the example in the data set.
    """
    return stream_key(seed, "example", passes, row) >> 65


def seed_all(seed: int) -> None:
    """Seed the global generators of `torch`, `numpy.random` and `random` with 63 bits."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


State = tuple[bytes, object, object]


def state_of_generators() -> State:
    """The states of the three generators, comparable."""
    kind, keys, *rest = cast("tuple[Any, ...]", np.random.get_state())
    return bytes(torch.get_rng_state().numpy()), (kind, keys.tobytes(), *rest), random.getstate()


@contextmanager
def preserve_generators() -> Generator[None]:
    """Restore the states of the three generators at the end of the block."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@contextmanager
def use_seed(seed: int) -> Generator[None]:
    """Seed the three generators for a block, and restore them afterwards."""
    with preserve_generators():
        seed_all(seed)
        yield


def has_own_draws(ask: Callable[[int], Arrays], found: Arrays) -> bool:
    """Whether some examples differ when they are asked a second time.

    Args:
        ask: from the number of an example to the example.
        found: the examples as first read.
    """
    some = np.unique(np.linspace(0, len(found) - 1, ASKED_TWICE).astype(np.int64))
    first = found.take(some)
    with preserve_generators():
        again: Sequence[Arrays] = [ask(int(k)) for k in some]
    x, y = (join(torch.stack, [getattr(each, name) for each in again]) for name in "xy")
    return Arrays(x, y).sha256 != first.sha256
