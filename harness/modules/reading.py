"""Reading of users' data as `Arrays`: arrays, data sets, iterables and loaders.

A map-style data set that draws at random is kept and asked anew in each pass (`RandomExamples`);
all other data are read once, to their end.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    default_collate,  # pyright: ignore[reportUnknownVariableType]
)

from harness.base.errors import UserError
from harness.base.log import LOG
from harness.modules.mapped import MemmapRows
from harness.modules.problem import Arrays
from harness.modules.redrawn import RandomExamples, has_own_draws, state_of_generators, use_seed
from harness.modules.streaming import ExampleStream
from harness.modules.trees import (
    LABELS,
    Tree,
    has_arrays,
    join,
    leaves,
    read_value,
    unwrap,
)

ALLOWED = (
    "allowed: a pair of arrays (X, y), a dataset of pairs (x, y) or of dicts with labels, or an"
    " iterable of them"
)

READING_SEED = 0
"""Seed while data that draw at random are read, so that each reading gives the same."""

UNENDING = 1_000_000
"""Examples after which an iterable counts as endless, unless its number of examples is given."""

BLOCK = 4096
"""Examples that are stacked at once, so that few small tensors are held."""

SAID_EVERY_S = 5.0


def arrays_of(
    data: object,
    what: str,
    *,
    examples: int | None = None,
    redraw: bool = True,
    buffer: int | None = None,
) -> Arrays:
    """Convert any kind of data to arrays; a dataset or an iterable is read once, to its end.

    The batches of a `DataLoader` are split into examples, in their order.

    Args:
        data: arrays ``(X, y)`` or ``(X, M, y)``, with the targets last and each of them an array,
            or a tuple or dict of several; a dict of arrays with ``labels``; a map-style dataset or
            an iterable of pairs, of such tuples or of such dicts; or a `DataLoader` of either.
        what: name of the user's argument, for messages.
        examples: number of examples that are read, from the first; None for all.
        redraw: whether a map-style dataset that draws at random is kept, see `RandomExamples`.
        buffer: examples of an iterable that are in memory at a time, see `ExampleStream`; None for
            all.

    Raises:
        UserError: another kind of data, parts of unequal length, no examples, or fewer than asked.
    """
    if isinstance(data, Arrays):
        return data
    given = drop_text(cast(Any, data), what)
    if buffer is not None:
        return _read_stream(given, what, examples, buffer)
    if is_batched(given):
        return _read_loader(given, what, examples, redraw)
    if _has_columns(given):
        found = _pair(given, what)
        found = MemmapRows.from_arrays(found) if _is_mapped(given) else found
        _check_lengths(found, what)
        if examples is not None:
            found = found.take(_first_rows(len(found), what, examples))
    else:
        found = _read(given, what, examples, redraw)
        _check_lengths(found, what)
    if not len(found):
        raise UserError(f"{what}: empty; {ALLOWED}")
    return found


def is_batched(data: object) -> bool:
    """Whether ``data`` is a `DataLoader` that makes batches, not one of single examples."""
    return isinstance(data, DataLoader) and cast(Any, data).batch_sampler is not None


# -- arrays --------------------------------------------------------------------------------------


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


def _is_mapped(given: Any) -> bool:
    """Whether an array in nested tuples, lists or dicts is mapped from a file."""
    if isinstance(given, Mapping):
        return any(map(_is_mapped, cast("Mapping[Any, Any]", given).values()))
    if isinstance(given, tuple | list):
        return any(map(_is_mapped, cast("Sequence[Any]", given)))
    return isinstance(given, np.memmap)


def _check_lengths(arrays: Arrays, what: str) -> None:
    """Reject tensors of unequal length.

    Raises:
        UserError: there are such.
    """
    inputs, targets = leaves(arrays.x), leaves(arrays.y)
    if not all(tensor.dim() for tensor in inputs + targets):
        raise UserError(f"{what}: a number in place of an array; {ALLOWED}")
    for tensor in inputs + targets:
        if len(tensor) != len(arrays):
            told = f"{len(arrays)} examples with {len(tensor)} targets"
            if not any(tensor is each for each in targets):
                told = f"inputs of {len(arrays)} and of {len(tensor)} examples"
            raise UserError(f"{what}: {told}; allowed: as many")


# -- data sets and iterables ---------------------------------------------------------------------


def _read(data: Any, what: str, examples: int | None, redraw: bool) -> Arrays:
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _read_dataset(data, _first_rows(len(data), what, examples), what, redraw)
    if isinstance(data, Iterable):
        items = (_pair(item, what) for item in cast(Iterable[Any], data))
        return _stack_blocks(_limit_examples(items, what, examples, lambda _: 1), what)
    raise UserError(f"{what}: {type(data).__name__} is not allowed; {ALLOWED}")


def _first_rows(count: int, what: str, examples: int | None) -> np.ndarray:
    """Numbers of the first examples.

    Raises:
        UserError: there are fewer than ``examples``.
    """
    if examples is not None and examples > count:
        _refuse_few(what, examples, count)
    return np.arange(count if examples is None else examples)


def _refuse_few(what: str, examples: int, count: int) -> None:
    told = f"examples: {examples:,}, but {what} ends after {count:,}"
    raise UserError(f"{told}; allowed: at most as many")


def _read_dataset(data: Any, rows: np.ndarray, what: str, redraw: bool) -> Arrays:
    """Examples of a map-style dataset, in the order of ``rows``.

    The generators' states tell whether an item draws; a generator of the data set's own is found
    by asking a few items twice.
    """
    items = (_pair(data[k], what) for k in rows.tolist())
    if isinstance(data, tuple | list):  # whose items are there already
        return _stack_blocks(items, what)
    code = RandomExamples.describe(data, what) if redraw else ""
    with use_seed(READING_SEED):
        before = state_of_generators()
        found = _stack_blocks(items, what)
        draws = state_of_generators() != before
    if draws and redraw:
        told = "draws at random: each example is asked anew in each pass, with a seed of its own"
        LOG.info(f"{what}: {told} (redraw=False reads it once)")
        return RandomExamples(found.x, found.y, data, rows, code, what, _pair)
    if not draws and has_own_draws(lambda k: _pair(data[int(rows[k])], what), found):
        told = "draws from a generator of its own, which cannot be seeded; read once,"
        LOG.info(f"{what}: {told} each example stays as drawn")
    return found


def _read_loader(loader: Any, what: str, examples: int | None, redraw: bool) -> Arrays:
    """The examples of a loader's batches.

    Raises:
        UserError: a batch is no pair with as many examples as targets, there are no batches, or
            examples are of unequal shape.
    """
    sampler = getattr(loader.batch_sampler, "sampler", None)
    own = [g for g in (loader.generator, getattr(sampler, "generator", None)) if g is not None]
    before = [generator.get_state() for generator in own]
    with use_seed(READING_SEED):  # of a loader that shuffles
        is_map = hasattr(loader.dataset, "__getitem__") and hasattr(loader.dataset, "__len__")
        if redraw and is_map and loader.collate_fn is default_collate and _draws(loader.dataset):
            rows = np.array(list(chain.from_iterable(loader.batch_sampler)), np.int64)
            rows = rows[_first_rows(len(rows), what, examples)]
            found = _read_dataset(loader.dataset, rows, what, redraw)
        else:
            batches = (_batch(item, what) for item in loader)
            found = _join_blocks(list(_limit_examples(batches, what, examples, len)), what)[
                :examples
            ]
    for generator, state in zip(own, before, strict=True):
        generator.set_state(state)  # so that a second reading gives the same order
    return found


def _read_stream(data: Any, what: str, examples: int | None, buffer: int) -> ExampleStream:
    """An iterable, or a loader of one, that stays where it is.

    Raises:
        UserError: it is no iterable, or can be read only once.
    """
    is_map = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if is_map or not isinstance(data, Iterable) or isinstance(data, Iterator):
        once = "can be read only once" if isinstance(data, Iterator) else "is no iterable"
        told = "allowed with buffer=: an object that is iterated anew, e.g. an IterableDataset"
        raise UserError(f"{what}: {type(cast(Any, data)).__name__} {once}; {told}")
    items = partial(_iterate_blocks, data, what)
    with use_seed(READING_SEED):
        first = _limit_examples(items(BLOCK), what, examples, len)
        return ExampleStream.read(first, items, examples, buffer, what)


def _iterate_blocks(data: Any, what: str, size: int) -> Iterator[Arrays]:
    """Blocks of an iterable's examples, or the batches of a loader."""
    if is_batched(data):
        yield from (_batch(item, what) for item in data)
        return
    rest = (_pair(item, what) for item in data)
    while part := list(islice(rest, size)):
        yield _stack_blocks(part, what)


def _draws(data: Any) -> bool:
    """Whether the first items of a map-style dataset draw from the generators."""
    before = state_of_generators()
    for k in range(min(8, len(data))):
        data[k]
    return state_of_generators() != before


def _batch(item: Any, what: str) -> Arrays:
    """A batch of a loader.

    Raises:
        UserError: it has no examples, or unequal numbers of inputs and targets.
    """
    batch = _pair(item, what)
    tensors = batch.tensors()
    if not all(t.dim() and len(t) == len(tensors[0]) for t in tensors):
        told = f"a batch of shapes {' and '.join(str(list(t.shape)) for t in tensors)}"
        raise UserError(f"{what}: {told}; allowed: as many examples as targets in each")
    return batch


def _limit_examples(
    parts: Iterable[Arrays], what: str, examples: int | None, size: Callable[[Arrays], int]
) -> Iterator[Arrays]:
    """Parts of an iterable until there are enough examples; progress is told.

    Raises:
        UserError: there are fewer than ``examples``; or without a number no end after `UNENDING`.
    """
    count, began = 0, time.monotonic()
    said = began
    for part in parts:
        yield part
        count += size(part)
        if examples is not None and count >= examples:
            return
        if examples is None and count >= UNENDING:
            told = f"no end after {count:,} examples; allowed: examples=, how many make a pass"
            raise UserError(f"{what}: {told}")
        if (now := time.monotonic()) - said > SAID_EVERY_S:
            said = now
            ends = "" if examples is not None else "; examples= is needed if it has no end"
            LOG.info(f"{what}: {count:,} examples read in {now - began:.0f} s{ends}")
    if examples is not None:
        _refuse_few(what, examples, count)


def _stack_blocks(items: Iterable[Arrays], what: str) -> Arrays:
    """Stack examples, a block at a time.

    Raises:
        UserError: there are none, or they are of unequal shape.
    """
    rest, blocks = iter(items), list[Arrays]()
    while part := list(islice(rest, BLOCK)):
        try:
            x, y = ([each.x for each in part], [each.y for each in part])
            blocks.append(Arrays(join(torch.stack, x), join(torch.stack, y)))
        except RuntimeError as error:
            raise UserError(f"{what}: {UNEQUAL}") from error
    return _join_blocks(blocks, what)


UNEQUAL = "examples of unequal shape; allowed: all of one shape"


def _join_blocks(blocks: list[Arrays], what: str) -> Arrays:
    """Concatenate blocks of examples; each is freed when it is copied.

    Raises:
        UserError: there are none, or their examples are of unequal shape.
    """
    if not blocks:
        raise UserError(f"{what}: empty; {ALLOWED}")
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if any(block.structure != first.structure for block in blocks):
        raise UserError(f"{what}: {UNEQUAL}")
    columns = [list(c) for c in zip(*(each.tensors() for each in blocks), strict=True)]
    blocks.clear()
    try:
        joined = iter([_concatenate(column) for column in columns])
    except RuntimeError as error:
        raise UserError(f"{what}: {UNEQUAL}") from error
    return first.map(lambda _: next(joined))


def _concatenate(column: list[Tensor]) -> Tensor:
    """Concatenate tensors, and remove each from the list as it is copied."""
    first = column[0]
    if any((t.dtype, t.shape[1:]) != (first.dtype, first.shape[1:]) for t in column):
        return torch.cat(column)
    found, end = first.new_empty(sum(map(len, column)), *first.shape[1:]), 0
    column.reverse()
    while column:
        piece = column.pop()
        found[end : end + len(piece)] = piece
        end += len(piece)
    return found


def _pair(item: Any, what: str) -> Arrays:
    """Inputs and targets of an example, of a batch, or of all examples.

    Raises:
        UserError: it is neither a pair, nor a tuple of several inputs and the targets, nor a dict
            with labels.
    """

    def tensor_of(value: Any) -> Tensor:
        return _tensor(value, what)

    if isinstance(item, Mapping):
        named = cast("Mapping[Any, Any]", item)
        x = dict(named)
        y = x.pop(LABELS, x.pop(LABEL, None))
        if y is None or not x:
            told = f"a dict of {', '.join(map(repr, named)) or 'nothing'}"
            raise UserError(f"{what}: {told}; allowed: inputs by name, and {LABELS!r}")
        return Arrays(read_value(x, tensor_of), read_value(y, tensor_of))
    if not isinstance(item, tuple | list) or len(cast("Sequence[Any]", item)) < 2:
        raise UserError(f"{what}: an item that is no pair (x, y); {ALLOWED}")
    *inputs, y = [read_value(each, tensor_of) for each in cast("Sequence[Any]", item)]
    return Arrays(inputs[0] if len(inputs) == 1 else Tree(tuple(map(unwrap, inputs))), y)


LABEL = "label"
"""Another name of targets in data sets, which their models call ``labels``."""


def _tensor(value: Any, what: str) -> Tensor:
    try:
        if getattr(getattr(value, "flags", None), "writeable", True) is False:  # a NumPy array
            with warnings.catch_warnings():  # of writing to it, which nothing does
                warnings.simplefilter("ignore", UserWarning)
                return torch.as_tensor(value)
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what}: {type(value).__name__} holds no numbers; {ALLOWED}") from error


# -- data sets of Hugging Face -------------------------------------------------------------------


def drop_text(data: Any, what: str) -> Any:
    """A data set of Hugging Face's `datasets`, with tensors and without columns of text.

    It is known by its methods; other data are returned as they are.

    Raises:
        UserError: it is a dict of several splits.
    """
    if not (hasattr(data, "with_format") and hasattr(data, "column_names")):
        return data
    if isinstance(data, Mapping):
        splits = ", ".join(map(repr, cast("Mapping[Any, Any]", data)))
        raise UserError(f"{what}: a dict of the splits {splits}; allowed: one of them")
    given: Any = getattr(data, "format", None)
    data = data if given and given.get("type") else data.with_format("torch")
    first = cast("dict[str, Any]", next(iter(data), dict[str, Any]()))
    text = [name for name, value in first.items() if _is_text(value)]
    if text:
        several = "s" if len(text) > 1 else ""
        LOG.info(f"{what}: left out the column{several} of text {', '.join(map(repr, text))}")
        data = data.remove_columns(text)
    return data


def _is_text(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_text, cast("list[Any]", value)))
    return isinstance(value, str | bytes)
