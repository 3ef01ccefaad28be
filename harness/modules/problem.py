"""A user's problem: module, loss, data and metrics, with the digests that identify a run.

`Arrays` holds the examples as two tensors, read from arrays, a dataset or any iterable of pairs.
"""

from __future__ import annotations

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
from harness.modules.digests import (
    digest_of_code,
    digest_of_part,
    digest_of_state,
    digest_of_tensor,
)
from harness.modules.network import (
    Drawing,
    Inspection,
    Loss,
    Metric,
    ModuleNetwork,
    Parameters,
    copy_module,
    flat,
    inspect_module,
    preserve_generators,
    seed_generators,
    trainable_parameters,
    try_metrics,
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
        loss: function of outputs and targets, one number a minibatch.
        train: training data.
        dev: development data: they decide on learning rates and on reaching a target.
        test: test data, reported only; None for none.
        metrics: metrics by name; the first one decides, without any the loss.
        source: plain JSON values to make the problem again, if a run file names it; not part of
            a run's identity.
        place: the run file that names it, for messages.
        maximise: whether more of the first metric is better.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        train: Arrays,
        dev: Arrays,
        test: Arrays | None,
        metrics: Mapping[str, Metric],
        source: Mapping[str, Any] | None = None,
        place: Place | None = None,
        *,
        maximise: bool = False,
    ) -> None:
        self.maximise = maximise
        self.source, self.place = source, place
        self.model, self.loss, self.metrics = model, loss, metrics
        self.train, self.dev, self.test = train, dev, test
        self._inspected: dict[tuple[int, str], Inspection] = {}  # pickled with the problem

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

    def inspect(self, minibatch: int, device: str) -> Inspection:
        """Inspect the module by running it, once for each size and device; see `inspect_module`."""
        if (minibatch, device) not in self._inspected:
            self._inspected[minibatch, device] = self._inspect(minibatch, device)
        return self._inspected[minibatch, device]

    def _inspect(self, minibatch: int, device: str) -> Inspection:
        module = self.module(0)
        floats = next(iter(trainable_parameters(module).values())).dtype
        some = Arrays(self.train.x[:minibatch], self.train.y[:minibatch]).to(device, floats)
        with self.name_keys():
            found = inspect_module(_to_device(module, device), self.loss, some.x, some.y)
            try_metrics(_to_device(module, device), self.metrics, some.x, some.y)
        return found

    def network(self, seed: int, minibatch: int, device: str) -> ModuleNetwork:
        """The network that algorithms compute gradients with."""
        found = self.inspect(minibatch, device)
        module = _to_device(self.module(seed), device)
        return ModuleNetwork(module, self.loss, together=found.together, reduction=found.reduction)

    @cached_property
    def _plain(self) -> dict[str, Any]:
        with self.name_keys():
            return self._digest()

    def _digest(self) -> dict[str, Any]:
        model: dict[str, str] = {"code": digest_of_code(self.model, "model")}
        if isinstance(self.model, nn.Module):
            model["state"] = digest_of_state(self.model)
        data = {"train": self.train, "dev": self.dev, "test": self.test}
        return {
            "model": model,
            "loss": digest_of_part(self.loss, "loss"),
            "metrics": [
                [name, digest_of_part(metric, "metric")] for name, metric in self.metrics.items()
            ],
            "data": {name: part and part.sha256 for name, part in data.items()},
            **({BETTER: MORE} if self.maximise else {}),
        }

    def to_identity(self) -> dict[str, Any]:
        """Digests of code, state and data."""
        return self._plain


def _to_device(module: nn.Module, device: str) -> nn.Module:
    if device == "cpu":
        return module
    return copy_module(module).to(device)


ALLOWED = "allowed: a pair of arrays (X, y), a dataset of pairs (x, y), or an iterable of them"

READING_SEED = 0
"""Seed while a `DataLoader` is read, so that one that shuffles gives the same order each time."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Examples and their targets, row by row.

    Args:
        x: ``[N, ...]``.
        y: ``[N, ...]``.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

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
        """Digest of types, shapes and content of both tensors."""
        return f"{digest_of_tensor(self.x)[:32]}{digest_of_tensor(self.y)[:32]}"

    def to(self, device: str, floats: torch.dtype) -> Arrays:
        """A copy on a device, with floating-point tensors in one precision."""
        x, y = (t.to(floats) if t.is_floating_point() else t for t in (self.x, self.y))
        return Arrays(x.to(device), y.to(device))

    def take(self, rows: np.ndarray) -> Arrays:
        """The examples of ``rows``, in that order."""
        index = torch.as_tensor(rows).to(self.device)
        return Arrays(self.x[index], self.y[index])

    def gather(self, rows: Tensor) -> Minibatch:
        """Minibatches ``[W, 1, B, ...]`` of ``rows [W, B]``; a minibatch counts as one frame."""
        index, shape = upload(rows.flatten(), self.x.device), (len(rows), 1, rows.shape[1])
        x, y = (part.index_select(0, index) for part in (self.x, self.y))
        return Minibatch(x.view(*shape, *x.shape[1:]), y.view(*shape, *y.shape[1:]))

    def split(self, share: float, seed: int = 0) -> tuple[Arrays, Arrays]:
        """Split at random; the second part has about ``share``, and at least one example."""
        drawn = stream(seed, "development").permutation(len(self))
        held = max(1, round(share * len(self)))
        return self.take(np.sort(drawn[held:])), self.take(np.sort(drawn[:held]))


def arrays_of(data: object, what: str) -> Arrays:
    """Convert any kind of data to arrays; a dataset or an iterable is read once, to its end.

    The batches of a `DataLoader` are split into examples, in their order.

    Args:
        data: a pair of arrays, a map-style dataset of pairs, an iterable of pairs, or a
            `DataLoader` of either.
        what: name of the user's argument, for messages.

    Raises:
        UserError: another kind of data, parts of unequal length, or no examples.
    """
    if isinstance(data, Arrays):
        return data
    given = cast(Any, data)
    if is_batched(given):
        return _read_batches(given, what)
    is_pair = isinstance(data, tuple | list) and len(given) == 2 and hasattr(given[0], "shape")
    x, y = (_tensor(each, what) for each in given) if is_pair else _read(given, what)
    if len(x) != len(y):
        raise UserError(f"{what}: {len(x)} examples with {len(y)} targets; allowed: as many")
    if not len(x):
        raise UserError(f"{what}: empty; {ALLOWED}")
    return Arrays(x, y)


def is_batched(data: object) -> bool:
    """Whether ``data`` is a `DataLoader` that makes batches, not one of single examples."""
    return isinstance(data, DataLoader) and cast(Any, data).batch_sampler is not None


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
    for x, y in batches:
        if not (x.dim() and y.dim() and len(x) == len(y)):
            told = f"a batch of shapes {list(x.shape)} and {list(y.shape)}"
            raise UserError(f"{what}: {told}; allowed: as many examples as targets in each")
    if not batches:
        raise UserError(f"{what}: empty; {ALLOWED}")
    try:
        return Arrays(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    except RuntimeError as error:
        raise UserError(f"{what}: examples of unequal shape; allowed: all of one shape") from error


def _read(data: Any, what: str) -> tuple[Tensor, Tensor]:
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        items: Iterable[Any] = (data[i] for i in range(len(data)))
    elif isinstance(data, Iterable):
        items = cast(Iterable[Any], data)
    else:
        raise UserError(f"{what}: {type(data).__name__} is not allowed; {ALLOWED}")
    pairs = [_pair(item, what) for item in items]
    if not pairs:
        raise UserError(f"{what}: empty; {ALLOWED}")
    try:
        return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
    except RuntimeError as error:
        raise UserError(f"{what}: examples of unequal shape; allowed: all of one shape") from error


def _pair(item: Any, what: str) -> tuple[Tensor, Tensor]:
    if not isinstance(item, tuple | list) or len(cast(Sequence[Any], item)) != 2:
        raise UserError(f"{what}: an item that is no pair (x, y); {ALLOWED}")
    return _tensor(item[0], what), _tensor(item[1], what)


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
