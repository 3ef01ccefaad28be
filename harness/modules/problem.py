"""A user's problem: module, loss, data and metrics, with the digests that identify a run.

`Arrays` holds the examples as inputs and targets, each a tensor or a `Tree` of tensors, read from
arrays, a dataset or any iterable of pairs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from harness.base.errors import RAISED, UserError, describe_raised
from harness.base.seeds import stream, stream_key
from harness.judge.direction import BETTER, MORE
from harness.modules.buffers import Rule
from harness.modules.digests import (
    digest_of_code,
    digest_of_part,
    digest_of_state,
    digest_of_tensor,
)
from harness.modules.gradient_rules import NO_RULES, GradientRules
from harness.modules.network import (
    OWN_LOSS,
    AskedLoss,
    Drawing,
    Inspection,
    Loss,
    Metric,
    ModuleNetwork,
    Parameters,
    copy_module,
    flat,
    inspect_module,
    is_batchable,
    own_loss,
    preserve_generators,
    seed_generators,
    trainable_parameters,
    try_metrics,
)
from harness.modules.partition import Partitioning, describe_partition, split_rows
from harness.modules.trees import (
    LABELS,
    Call,
    Tree,
    Value,
    describe_structure,
    has_arrays,
    join,
    leaves,
    map_tensors,
    read_value,
    unwrap,
)
from harness.networks.contract import Minibatch, upload
from harness.runs.config import HasIdentity
from harness.tasks.contract import Place
from harness.tasks.order import Key, Minibatches


class Problem(HasIdentity):
    """A module, its loss, its data and its metrics.

    Args:
        model: a module, from whose parameters every run starts; or a function that makes one,
            called for each seed with random generators of that seed.
        loss: function of outputs and targets, one number a minibatch; ``"model"`` for the model's
            own, the ``loss`` of its outputs.
        train: training data.
        dev: development data: they decide on learning rates and on reaching a target.
        test: test data, reported only; None for none.
        metrics: metrics by name; the first one decides, without any the loss.
        source: plain JSON values to make the problem again, if a run file names it; not part of
            a run's identity.
        place: the run file that names it, for messages.
        maximise: whether more of the first metric is better.
        partition: data that differ by worker; None for equal shares of the same data.
        buffers: buffers of trained models, if training changes any; see `Rule`.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: AskedLoss,
        train: Arrays,
        dev: Arrays,
        test: Arrays | None,
        metrics: Mapping[str, Metric],
        source: Mapping[str, Any] | None = None,
        place: Place | None = None,
        *,
        maximise: bool = False,
        partition: Partitioning | None = None,
        buffers: Rule = "mean",
    ) -> None:
        self.maximise, self.partition = maximise, partition
        self.buffers: Rule = buffers
        self.source, self.place = source, place
        self.model, self.metrics = model, metrics
        self.loss: Loss = own_loss if loss == OWN_LOSS else loss
        self.train, self.dev, self.test = train, dev, test
        self._inspected: dict[tuple[int, str], Inspection] = {}  # pickled with the problem
        self._batchable: dict[tuple[int, str], bool] = {}

    def __hash__(self) -> int:
        return id(self)

    @lru_cache(maxsize=4)  # noqa: B019 (a problem lives as long as its runs)
    def module(self, seed: int) -> nn.Module:
        """The module of a seed's runs, before training.

        Raises:
            UserError: the user's function raises an error, or makes something that cannot be
                trained.
        """
        with self.name_keys():
            made = self.model if isinstance(self.model, nn.Module) else self._make(self.model, seed)
            Parameters.from_module(made)
        return made

    def _make(self, model: Callable[[], Any], seed: int) -> nn.Module:
        with preserve_generators():
            seed_generators(stream_key(seed, "initialise") >> 65)
            try:
                made = model()
            except RAISED as error:
                name = getattr(model, "__qualname__", type(model).__qualname__)
                called = name if self.source is None else self.source["task"]["model"]
                raise UserError(f"model: {called} raised {describe_raised(error)}") from error
        if not isinstance(made, nn.Module):
            told = f"gives a {type(made).__name__}"
            raise UserError(f"model: {told}; allowed: a torch.nn.Module, or what makes one")
        return made

    def name_keys(self) -> AbstractContextManager[None]:
        """A context in which errors name the run file, if the problem is from one."""
        return nullcontext() if self.place is None else self.place.name_keys()

    def initial(self, seed: int) -> Tensor:
        """The initial parameters ``[P]`` of a seed's runs."""
        return flat(list(trainable_parameters(self.module(seed)).values()))

    @cached_property
    def size(self) -> int:
        """Number of trained parameters."""
        return self.initial(0).numel()

    def parameters(self, seed: int = 0) -> Parameters:
        """The layout of the module's trained parameters in a vector ``[P]``."""
        return Parameters.from_module(self.module(seed))

    @lru_cache(maxsize=16)  # noqa: B019 (a problem lives as long as its runs)
    def shares(self, workers: int, seed: int) -> Sequence[np.ndarray]:
        """The rows of each worker, with a `partition`.

        Raises:
            UserError: see `split_rows`.
        """
        assert self.partition is not None
        with self.name_keys():
            targets = unwrap(self.train.y)
            return split_rows(self.partition, targets, len(self.train), workers, seed)

    def inspect(self, minibatch: int, device: str) -> Inspection:
        """Inspect the module by running it, once for each size and device; see `inspect_module`."""
        if (minibatch, device) not in self._inspected:
            self._inspected[minibatch, device] = self._inspect(minibatch, device)
        return self._inspected[minibatch, device]

    def _inspect(self, minibatch: int, device: str) -> Inspection:
        module = self.module(0)
        floats = next(iter(trainable_parameters(module).values())).dtype
        some = self.train[:minibatch].to(device, floats)
        with self.name_keys():
            found = inspect_module(_to_device(module, device), self.loss, some.x, some.y)
            call = Call.of(module, needs_labels=self.loss is own_loss)
            try_metrics(_to_device(module, device), self.metrics, some.x, some.y, call)
        return found

    def _is_batchable(self, minibatch: int, device: str) -> bool:
        """Whether replicas can be computed at once, found out once for each size and device."""
        if (minibatch, device) not in self._batchable:
            module = _to_device(self.module(0), device)
            floats = next(iter(trainable_parameters(module).values())).dtype
            some = self.train[:minibatch].to(device, floats)
            found = is_batchable(module, self.loss, some.x, some.y)
            self._batchable[minibatch, device] = found
        return self._batchable[minibatch, device]

    def network(
        self, seed: int, minibatch: int, device: str, rules: GradientRules = NO_RULES
    ) -> ModuleNetwork:
        """The network that algorithms compute gradients with."""
        found = self.inspect(minibatch, device)
        module = _to_device(self.module(seed), device)
        return ModuleNetwork(
            module,
            self.loss,
            together=found.together,
            is_batchable=lambda: self._is_batchable(minibatch, device),
            reduction=found.reduction,
            changing=found.changing,
            rules=rules,
        )

    @cached_property
    def _plain(self) -> dict[str, Any]:
        with self.name_keys():
            return self._digest()

    def _digest(self) -> dict[str, Any]:
        model: dict[str, str] = {"code": digest_of_code(self.model, "model")}
        if isinstance(self.model, nn.Module):
            model["state"] = digest_of_state(self.model)
        data = {"train": self.train, "dev": self.dev, "test": self.test}
        partition = {} if self.partition is None else {"partition": self.partition}
        return {
            "model": model,
            "loss": digest_of_part(self.loss, "loss"),
            "metrics": [
                [name, digest_of_part(metric, "metric")] for name, metric in self.metrics.items()
            ],
            "data": {name: part and part.sha256 for name, part in data.items()},
            **({BETTER: MORE} if self.maximise else {}),
            **{name: describe_partition(part) for name, part in partition.items()},
        }

    def to_identity(self) -> dict[str, Any]:
        """Digests of code, state and data."""
        return self._plain


def _to_device(module: nn.Module, device: str) -> nn.Module:
    if device == "cpu":
        return module
    return copy_module(module).to(device)


ALLOWED = (
    "allowed: a pair of arrays (X, y), a dataset of pairs (x, y) or of dicts with labels, or an"
    " iterable of them"
)

READING_SEED = 0
"""Seed while a `DataLoader` is read, so that one that shuffles gives the same order each time."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Examples and their targets, row by row.

    Args:
        x: ``[N, ...]``, or several inputs as one; they are passed to the module as `Call` says.
        y: ``[N, ...]``, or several.
    """

    x: Value
    y: Value

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, some: slice) -> Arrays:
        """Some of the examples, without a copy."""
        return Arrays(self.x[some], self.y[some])

    @property
    def start(self) -> np.ndarray:
        """The first row of each example: itself."""
        return np.arange(len(self))

    @property
    def frames(self) -> np.ndarray:
        """Rows of each example: one."""
        return np.ones(len(self), np.int64)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.x.device

    @cached_property
    def sha256(self) -> str:
        """Digest of types, shapes and content of all tensors, and of their names if several."""
        return f"{_digest_of(self.x)[:32]}{_digest_of(self.y)[:32]}"

    def map(self, function: Callable[[Tensor], Tensor]) -> Arrays:
        """Inputs and targets of the function's results."""
        return Arrays(map_tensors(function, self.x), map_tensors(function, self.y))

    def to(self, device: str, floats: torch.dtype) -> Arrays:
        """A copy on a device, with floating-point tensors in one precision."""
        return self.map(lambda t: (t.to(floats) if t.is_floating_point() else t).to(device))

    def take(self, rows: np.ndarray) -> Arrays:
        """The examples of ``rows``, in that order."""
        index = torch.as_tensor(rows).to(self.device)
        return self.map(lambda tensor: tensor[index])

    def gather(self, rows: Tensor) -> Minibatch:
        """Minibatches ``[W, 1, B, ...]`` of ``rows [W, B]``; a minibatch counts as one frame."""
        index, shape = upload(rows.flatten(), self.device), (len(rows), 1, rows.shape[1])

        def gather(part: Tensor) -> Tensor:
            return part.index_select(0, index).view(*shape, *part.shape[1:])

        found = self.map(gather)
        return Minibatch(cast(Tensor, found.x), cast(Tensor, found.y))

    def split(self, share: float, seed: int = 0) -> tuple[Arrays, Arrays]:
        """Split at random; the second part has about ``share``, and at least one example."""
        drawn = stream(seed, "development").permutation(len(self))
        held = max(1, round(share * len(self)))
        return self.take(np.sort(drawn[held:])), self.take(np.sort(drawn[:held]))


def _digest_of(value: Value) -> str:
    """Digest of a tensor, or of the structure of several and of each."""
    if isinstance(value, Tensor):
        return digest_of_tensor(value)
    sha = hashlib.sha256(json.dumps(describe_structure(value, "")).encode())
    for tensor in leaves(value):
        sha.update(digest_of_tensor(tensor).encode())
    return sha.hexdigest()


def arrays_of(data: object, what: str) -> Arrays:
    """Convert any kind of data to arrays; a dataset or an iterable is read once, to its end.

    The batches of a `DataLoader` are split into examples, in their order.

    Args:
        data: arrays ``(X, y)`` or ``(X, M, y)``, with the targets last and each of them an array,
            or a tuple or dict of several; a dict of arrays with ``labels``; a map-style dataset or
            an iterable of pairs, of such tuples or of such dicts; or a `DataLoader` of either.
        what: name of the user's argument, for messages.

    Raises:
        UserError: another kind of data, parts of unequal length, or no examples.
    """
    if isinstance(data, Arrays):
        return data
    given = cast(Any, data)
    if is_batched(given):
        return _read_batches(given, what)
    found = _pair(given, what) if _has_columns(given) else _read(given, what)
    _check_lengths(found, what)
    if not len(found):
        raise UserError(f"{what}: empty; {ALLOWED}")
    return found


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
    are_named = isinstance(first, Mapping), isinstance(last, Mapping)
    several = are_named[0] or has_arrays(first)
    return several and (hasattr(last, "shape") or are_named[0] != are_named[1])


def _check_lengths(arrays: Arrays, what: str) -> None:
    """Reject tensors of unequal length.

    Raises:
        UserError: there are such.
    """
    tensors = leaves(arrays.x) + leaves(arrays.y)
    if not all(tensor.dim() for tensor in tensors):
        raise UserError(f"{what}: a number in place of an array; {ALLOWED}")
    for tensor in tensors:
        if len(tensor) != len(arrays):
            told = f"{len(arrays)} examples with {len(tensor)} targets"
            if not any(tensor is each for each in leaves(arrays.y)):
                told = f"inputs of {len(arrays)} and of {len(tensor)} examples"
            raise UserError(f"{what}: {told}; allowed: as many")


def _read_batches(loader: Any, what: str) -> Arrays:
    """The examples of a loader's batches.

    Raises:
        UserError: a batch is no pair with as many examples as targets, there are no batches, or
            examples are of unequal shape.
    """
    sampler = getattr(loader.batch_sampler, "sampler", None)
    own = [g for g in (loader.generator, getattr(sampler, "generator", None)) if g is not None]
    before = [generator.get_state() for generator in own]
    with preserve_generators():
        seed_generators(READING_SEED)
        batches = [_pair(item, what) for item in loader]
    for generator, state in zip(own, before, strict=True):
        generator.set_state(state)  # so that a second reading gives the same order
    for batch in batches:
        tensors = leaves(batch.x) + leaves(batch.y)
        if not all(t.dim() and len(t) == len(tensors[0]) for t in tensors):
            told = f"a batch of shapes {' and '.join(str(list(t.shape)) for t in tensors)}"
            raise UserError(f"{what}: {told}; allowed: as many examples as targets in each")
    return _join(torch.cat, batches, what)


def _read(data: Any, what: str) -> Arrays:
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        items: Iterable[Any] = (data[i] for i in range(len(data)))
    elif isinstance(data, Iterable):
        items = cast(Iterable[Any], data)
    else:
        raise UserError(f"{what}: {type(data).__name__} is not allowed; {ALLOWED}")
    return _join(torch.stack, [_pair(item, what) for item in items], what)


def _join(function: Any, parts: Sequence[Arrays], what: str) -> Arrays:
    """Stack examples, or concatenate batches.

    Raises:
        UserError: there are none, or they are of unequal shape.
    """
    if not parts:
        raise UserError(f"{what}: empty; {ALLOWED}")
    try:
        return Arrays(join(function, [p.x for p in parts]), join(function, [p.y for p in parts]))
    except RuntimeError as error:
        raise UserError(f"{what}: examples of unequal shape; allowed: all of one shape") from error


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
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what}: {type(value).__name__} holds no numbers; {ALLOWED}") from error


class DrawingMinibatches(Minibatches):
    """Minibatches for a module that draws random numbers in training: each has a seed for them.

    So the random numbers depend on the run's seed, the worker and the step alone.
    """

    seed = 0

    def fetch(self, keys: Sequence[Key]) -> Minibatch:
        """See `Minibatches`."""
        x, y = super().fetch(keys)
        drawn = [stream_key(self.seed, "layers", *key) >> 65 for key in keys]
        return Minibatch(cast(Tensor, Drawing(x, drawn)), y)
