"""Reading of users' data as `Arrays`: arrays, map-style data sets, and loaders of these.

All data are read once. A data set that draws from the global generators, such as random
augmentation, is asked anew in each pass (`RandomExamples`).
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as loading
from torch.utils.data import DataLoader

from harness.base.errors import RAISED, UserError, describe_raised
from harness.base.log import LOG
from harness.base.seeds import stream_key
from harness.experiment.digests import digest_of_code
from harness.modules.network import state_of_generators, use_seed
from harness.modules.parts import Arrays
from harness.modules.values import LABELS, Tree, has_arrays, join, leaves, read_value, unwrap
from harness.networks.contract import Minibatch

ALLOWED = (
    "allowed: a pair of arrays (X, y); a map-style dataset of pairs (x, y) or of dicts with labels,"
    " or a DataLoader of one"
)

READING_SEED = 0
"""Seed while data that draw at random are read, so that each reading gives the same."""


def arrays_of(data: object, what: str) -> Arrays:
    """Convert any kind of data to arrays.

    A `DataLoader` gives the examples of its data set in the order of its batches.

    Args:
        data: arrays ``(X, y)`` or ``(X, M, y)``, with the targets last and each of them an array,
            or a tuple or dict of several; a dict of arrays with ``labels``; a map-style dataset of
            pairs, of such tuples or of such dicts; or a `DataLoader` of one.
        what: name of the user's argument, for messages.

    Raises:
        UserError: another kind of data, parts of unequal length, or no examples.
    """
    if isinstance(data, Arrays):
        return data
    with warnings.catch_warnings():
        # of writing to an array that is mapped from a file, which nothing does
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        if _has_columns(data):
            arrays = _pair(data, what)
        elif isinstance(data, DataLoader):
            arrays = _read_loader(cast(Any, data), what)
        else:
            arrays = _read(cast(Any, data), None, what)
    _check(arrays, what)
    return arrays


def is_batched(data: object) -> bool:
    """Whether ``data`` is a `DataLoader` that makes batches, not one of single examples."""
    return isinstance(data, DataLoader) and cast(Any, data).batch_sampler is not None


def _has_columns(data: Any) -> bool:
    """Whether data are arrays of all examples, not a sequence of examples."""
    if isinstance(data, Mapping):
        return True
    if not isinstance(data, tuple | list) or len(cast("Sequence[Any]", data)) < 2:
        return False
    first, last = cast(Any, data[0]), cast(Any, data[-1])
    if hasattr(first, "shape"):
        return True
    parts = cast("Sequence[Any]", data)
    if isinstance(data, tuple) and all(isinstance(each, list) for each in parts):
        return len(cast("list[Any]", first)) > 2  # two pairs (x, y) are examples
    are_named = isinstance(first, Mapping), isinstance(last, Mapping)
    several = are_named[0] or has_arrays(first)
    return several and (hasattr(last, "shape") or are_named[0] != are_named[1])


def _check(arrays: Arrays, what: str) -> None:
    """Reject tensors of unequal length, and remark on numbers that are not finite.

    Raises:
        UserError: there are such tensors, or no examples.
    """
    targets, tensors = leaves(arrays.y), arrays.tensors()
    if not all(tensor.dim() for tensor in tensors):
        raise UserError(f"{what}: a number in place of an array; {ALLOWED}")
    for tensor in tensors:
        if len(tensor) != len(arrays):
            reason = f"{len(arrays)} examples with {len(tensor)} targets"
            if not any(tensor is target for target in targets):
                reason = f"inputs of {len(arrays)} and of {len(tensor)} examples"
            raise UserError(f"{what}: {reason}; allowed: as many")
    if not len(arrays):
        raise UserError(f"{what}: empty; {ALLOWED}")
    # A finite sum is of finite numbers alone, and found in a tenth of the time.
    if not all(bool(t.sum().isfinite() or t.isfinite().all()) for t in tensors):
        LOG.info(f"{what}: holds numbers that are not finite")


def _read_loader(loader: Any, what: str) -> Arrays:
    """The examples of a loader's data set, in the order of its batches."""
    batches, collate = loader.batch_sampler, loader.collate_fn
    sampler = loader.sampler if batches is None else batches
    generators = [loader.generator, getattr(getattr(batches, "sampler", None), "generator", None)]
    states = [(each, each.get_state()) for each in generators if each is not None]
    _check_indexed(loader.dataset, what)
    rows, again = _ask_order(sampler, is_batched=batches is not None)
    if sorted(rows) != sorted(again) and batches is not None and hasattr(batches, "drop_last"):
        # each pass leaves others out: all are read, and shuffled in an order of our own
        rows, again = _ask_order(batches.sampler, is_batched=False)
    for generator, state in states:
        generator.set_state(state)  # so that a second reading gives the same order
    if sorted(rows) != sorted(again):
        reason = "the sampler draws other examples in each pass, and their order is read once"
        raise UserError(f"{what}: {reason}; allowed: each example once a pass, weights in the loss")
    return _read(loader.dataset, None if batches is None else collate, what, rows)


def _ask_order(sampler: Any, *, is_batched: bool) -> tuple[list[int], list[int]]:
    """The examples of two passes of a sampler, with a seed for each if it shuffles."""
    passes: list[list[int]] = []
    for number in range(2):
        with use_seed(READING_SEED + number):
            passes.append([*chain.from_iterable(sampler)] if is_batched else [*sampler])
    return passes[0], passes[1]


def _read(
    data: Any, collate: Collate | None, what: str, rows: Sequence[int] | None = None
) -> Arrays:
    """The examples of ``rows`` of a map-style data set; of all without rows.

    Raises:
        UserError: it is no such data set, or has no examples.
    """
    _check_indexed(data, what)
    index = np.arange(len(data)) if rows is None else np.array(rows, np.int64)
    if not len(index):
        raise UserError(f"{what}: empty; {ALLOWED}")
    check = _Check(data, index, collate, what)
    with use_seed(READING_SEED):
        before = state_of_generators()
        examples = [_example(data[row], collate, what) for row in index.tolist()]
        draws = state_of_generators() != before
        if longest := _find_longest(examples, collate):
            beside = [data[row] for row in index[longest].tolist()]
            padding = PaddingCollate(cast(Collate, collate), beside)
            try:
                padding([data[index[0]]])
            except RuntimeError:  # it stacks and does not pad: refused below
                pass
            else:
                LOG.info(f"{what}: collate_fn pads to the longest of all, not of a minibatch")
                return _read(data, padding, what, rows)
    arrays = _stack(examples, what)
    check.finish()
    if not draws:
        return arrays
    reason = "draws at random: each example is asked anew in each pass of training, with a seed"
    LOG.info(f"{what}: {reason} of its own")
    return RandomExamples(arrays.x, arrays.y, data, index, collate)


TORCHS_OWN = cast(Any, loading).default_collate, cast(Any, loading).default_convert
"""What makes batches of a loader without a ``collate_fn``."""

ASKED = 32
"""Examples that are asked a second time."""


class _Check:
    """Asks for some examples before all are read, to compare them with the same ones afterwards.

    Args:
        data: a data set that is asked for examples.
        index: of the examples that are read.
        collate: see `_example`.
        what: name of the user's argument, for messages.
    """

    def __init__(self, data: Any, index: np.ndarray, collate: Collate | None, what: str) -> None:
        self._data, self._index, self._collate, self._what = data, index, collate, what
        self._some = index[:: -(-len(index) // ASKED)]
        self._before = self._ask(self._some)

    def _ask(self, rows: np.ndarray, seed: int = READING_SEED) -> str:
        with use_seed(seed):
            items = [self._data[row] for row in rows.tolist()]
        with use_seed(seed):
            return "".join(_example(item, self._collate, self._what).sha256 for item in items)

    def _ask_batch(self, rows: np.ndarray, seed: int) -> tuple[str, bool]:
        """The first example of a batch, and whether ``collate_fn`` drew."""
        assert self._collate is not None
        with use_seed(seed):
            items = [self._data[row] for row in rows.tolist()]
        with use_seed(seed):
            before = state_of_generators()
            first = _pair(self._collate(items), self._what).map(lambda tensor: tensor[0])
            return first.sha256, before != state_of_generators()

    def finish(self) -> None:
        """Reject examples that a seed does not determine, or that depend on the rest of a batch.

        Raises:
            UserError: there are such examples.
        """
        if self._before != self._ask(self._some):
            reason = "an example differs when it is asked again with an equal seed"
            allowed = "draws by torch, numpy.random or random, not by a generator of its own"
            raise UserError(f"{self._what}: {reason}; allowed: {allowed}")
        index = self._index
        if self._collate in (None, *TORCHS_OWN) or len(index) < 3:
            return
        half = min(3, (len(index) - 1) // 2)  # of two batches that have the first in common
        one, other = index[: 1 + half], np.concatenate([index[:1], index[-half:]])
        for seed in range(8):
            (first, draws), (again, _) = self._ask_batch(one, seed), self._ask_batch(other, seed)
            # What is drawn for a batch of another size differs by that alone.
            if first != again or (not draws and first != self._ask(index[:1], seed)):
                reason = "collate_fn mixes examples, and is called with one at a time"
                raise UserError(f"{self._what}: {reason}; allowed: what makes each by itself")


def _check_indexed(data: object, what: str) -> None:
    if hasattr(data, "__array__"):
        raise UserError(f"{what}: {type(data).__name__} without targets; {ALLOWED}")
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        reason = f"{type(data).__name__} has no items by number, or no length; {ALLOWED}"
        raise UserError(f"{what}: {reason}; of an iterable, a list of its examples")


def _stack(examples: Sequence[Arrays], what: str) -> Arrays:
    """Stack examples.

    Raises:
        UserError: they are of unequal shape.
    """
    try:
        x, y = (join(torch.stack, [getattr(each, name) for each in examples]) for name in "xy")
    except RuntimeError as error:
        allowed = "all of one shape, e.g. padded to the longest"
        raise UserError(f"{what}: examples of unequal shape; allowed: {allowed}") from error
    return Arrays(x, y)


Collate = Callable[[list[Any]], Any]
"""The ``collate_fn`` of a loader, which is called with one item at a time."""


@dataclass(frozen=True)
class PaddingCollate:
    """A ``collate_fn`` that pads each item like the longest ones, which follow it."""

    collate: Collate
    longest: list[Any]

    def __call__(self, items: list[Any]) -> Any:
        """A batch of the items, and of the longest ones after them."""
        return self.collate([*items, *self.longest])


def _find_longest(examples: Sequence[Arrays], collate: Collate | None) -> list[int]:
    """Examples that are the longest in some direction; none if all are alike or nothing pads."""
    sizes = [[size for t in example.tensors() for size in t.shape] for example in examples]
    alike = all(row == sizes[0] for row in sizes)
    if alike or collate in (None, *TORCHS_OWN) or isinstance(collate, PaddingCollate):
        return []
    if len({len(row) for row in sizes}) > 1:
        return []
    return np.unique(np.argmax(sizes, axis=0)).tolist()


def _example(item: Any, collate: Collate | None, what: str) -> Arrays:
    """One example of a data set's item.

    Raises:
        UserError: it is no pair, or its batch is not of one example.
    """
    if collate is None:
        return _pair(item, what)
    batch = _pair(collate([item]), what)
    count = 1 + len(collate.longest) if isinstance(collate, PaddingCollate) else 1
    if not all(tensor.shape[:1] == (count,) for tensor in batch.tensors()):
        shapes = " and ".join(str(list(tensor.shape)) for tensor in batch.tensors())
        raise UserError(f"{what}: a batch of one item has shapes {shapes}; allowed: [1, ...]")
    return batch.map(lambda tensor: tensor[0])


def _pair(item: Any, what: str) -> Arrays:
    """Inputs and targets of an example, of a batch, or of all examples.

    Raises:
        UserError: it is neither a pair, nor a tuple of several inputs and the targets, nor a dict,
            which without labels is the inputs and the targets too.
    """

    def tensor_of(value: Any) -> Tensor:
        return _tensor(value, what)

    if isinstance(item, Mapping):
        named = cast("Mapping[Any, Any]", item)
        x = dict(named)
        y = x.pop(LABELS, x.pop(LABEL, x))
        if not x:
            reason = f"a dict of {', '.join(map(repr, named)) or 'nothing'}"
            raise UserError(f"{what}: {reason}; allowed: inputs by name, and {LABELS!r}")
        return Arrays(read_value(x, tensor_of), read_value(y, tensor_of))
    if not isinstance(item, tuple | list) or len(cast("Sequence[Any]", item)) < 2:
        raise UserError(f"{what}: an item that is no pair (x, y); {ALLOWED}")
    *inputs, y = [read_value(each, tensor_of) for each in cast("Sequence[Any]", item)]
    return Arrays(inputs[0] if len(inputs) == 1 else Tree(tuple(map(unwrap, inputs))), y)


LABEL = "label"
"""Another name of targets in data sets, which their models call ``labels``."""


def _tensor(value: Any, what: str) -> Tensor:
    """The numbers of an array or of anything that converts to one, in a tensor of its own kind.

    Raises:
        UserError: it holds no numbers, masks some, or is no dense array in memory.
    """
    kind = type(value).__name__
    if np.ma.is_masked(value) or hasattr(value, "get_mask"):
        reason = f"{kind} with masked values, which are no data"
        raise UserError(f"{what}: {reason}; allowed: none masked, e.g. after .filled(value)")
    try:
        if hasattr(value, "__array__") and not isinstance(value, Tensor):
            value = np.asarray(value)
            kind = f"{kind} of {value.dtype}"
            # neither reversed nor in the other order of bytes, which torch does not read
            value = value.astype(value.dtype.newbyteorder("="), order="C", copy=False)
        tensor = torch.as_tensor(value).detach()
        if tensor.dtype in (torch.uint16, torch.uint32):  # not all of torch's operations know these
            tensor = tensor.long()
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"{kind} holds no numbers of torch; {ALLOWED}, without columns of text"
        raise UserError(f"{what}: {reason}") from error
    is_dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
    if not is_dense or tensor.is_meta or tensor.dtype is torch.uint64:
        reason = f"a tensor of {tensor.dtype} on {tensor.device.type}, layout {tensor.layout}"
        raise UserError(f"{what}: {reason}; allowed: dense ones, as of .to_dense(), without uint64")
    return tensor.as_subclass(Tensor)


# -- data sets that draw at random ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RandomExamples(Arrays):
    """Examples of a data set that draws at random, each asked anew in each pass.

    An example depends on the run's seed, the pass and the example alone: a run that is resumed,
    another process or another algorithm sees the same.

    Args:
        x, y: the examples as first read: for shapes, targets and evaluation, not for training.
        data: the data set.
        rows: index in the data set of each example.
        collate: makes a batch of an item; None if an item is an example.
    """

    data: Any
    rows: np.ndarray
    collate: Collate | None = None

    @cached_property
    def sha256(self) -> str:
        """Digest of the code and attributes of what gives examples, and of those first read."""
        is_torchs = self.collate in (None, *TORCHS_OWN)
        code = digest_of_code(self.data if is_torchs else [self.data, self.collate], "data")
        first = Arrays(self.x, self.y).sha256
        return hashlib.sha256(f"redrawn {code} {first}".encode()).hexdigest()

    def to(self, device: str, floats: torch.dtype) -> RandomExamples:
        """See `Arrays`; so are the examples that are asked later."""
        first = super().to(device, floats)
        return replace(self, x=first.x, y=first.y)

    def take(self, rows: np.ndarray) -> RandomExamples:
        """See `Arrays`."""
        first = super().take(rows)
        return replace(self, x=first.x, y=first.y, rows=self.rows[rows])

    def ask(self, rows: np.ndarray, passes: np.ndarray, seed: int) -> Minibatch:
        """Minibatches ``[W, 1, B, ...]`` of ``rows [W, B]``, each asked in its pass.

        Args:
            rows: numbers of the examples.
            passes: ``[W, B]`` number of the pass of each.
            seed: the run's seed.

        Raises:
            UserError: the data set raises an error, or gives an example of another shape.
        """
        pairs = zip(self.rows[rows.ravel()].tolist(), passes.ravel().tolist(), strict=True)
        examples = [self._ask(row, number, seed) for row, number in pairs]
        like = iter(self.tensors())
        drawn = _stack(examples, "data").map(lambda tensor: tensor.to(next(like)))
        return drawn.gather(torch.arange(rows.size).view(rows.shape))

    def _ask(self, row: int, number: int, seed: int) -> Arrays:
        with use_seed(stream_key(seed, "example", number, row) >> 65):
            try:
                return _example(self.data[row], self.collate, "data")
            except UserError:
                raise
            except RAISED as error:
                reason = f"example {row} in pass {number} raised {describe_raised(error)}"
                raise UserError(f"data: {reason}") from error
