"""A user's problem: module, loss, data and metrics, with the digests that identify a run.

`Arrays` holds the examples as inputs and targets, each a tensor or a `Tree` of tensors. Data may
differ by worker: a partition is a function of targets, a number of workers and a random generator,
to the rows of each worker. `by_label` and `Dirichlet` are two; users add their own.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UserError
from harness.base.log import LOG
from harness.base.seeds import stream, stream_key
from harness.base.settings import name_keys
from harness.experiment.digests import (
    OWN,
    VARYING,
    digest_of_code,
    digest_of_part,
    digest_of_state,
    digest_of_tensor,
)
from harness.experiment.experiment import HasIdentity, plain
from harness.experiment.pools import Parcel
from harness.judge.direction import BETTER, MORE
from harness.modules.buffers import Rule
from harness.modules.inspection import (
    Inspection,
    inspect_module,
    is_batchable,
    refuse_hidden_state,
    try_metrics,
)
from harness.modules.network import (
    NO_RULES,
    OWN_LOSS,
    AskedLoss,
    GradientRules,
    Loss,
    Metric,
    ModuleNetwork,
    Parameters,
    copy_module,
    flat,
    own_loss,
    preserve_generators,
    seed_generators,
    trainable_parameters,
    use_seed,
)
from harness.modules.settings import call_function, is_finite, name_function, takes
from harness.modules.values import Call, Value, describe_structure, leaves, map_tensors, unwrap
from harness.networks.contract import Minibatch, upload
from harness.tasks.order import Rows

Partitioning = Callable[[Any, int, np.random.Generator], Sequence[Any]]
"""Function of targets ``[N, ...]``, the number of workers and a generator, to each one's rows."""

IID = "iid"

A_PARTITION = (
    "'iid', 'by_label', lagbench.dirichlet(alpha), or a function (targets, workers, random)"
)

DRAWS = 1000
"""Most draws of a Dirichlet partition that leave a worker too few examples."""


def by_label(targets: Any, workers: int, random: np.random.Generator) -> list[np.ndarray]:
    """Equal shares of the examples in the order of their classes: few classes for each worker.

    McMahan et al. (2017) do the same, with two such parts for each worker.

    Args:
        targets: ``[N]`` class numbers.
        workers: number of workers.
        random: draws which examples of a class go where a share ends in it.

    Raises:
        UserError: the targets are no class numbers.
    """
    labels = _labels(targets, "'by_label'")
    mixed = random.permutation(len(labels))
    return np.array_split(mixed[np.argsort(labels[mixed], kind="stable")], workers)


@dataclass(frozen=True)
class Dirichlet:
    """Shares whose sizes and classes are drawn (Yurochkin et al. 2019; Li et al. 2022).

    Of each class, the workers get parts drawn from a symmetric Dirichlet distribution. A draw that
    leaves a worker less than a tenth of an equal share, at most ten examples, is repeated.

    Args:
        alpha: concentration: small for workers with few classes each, large for equal shares.
    """

    alpha: float

    def __call__(self, targets: Any, workers: int, random: np.random.Generator) -> list[np.ndarray]:
        """The rows of each worker.

        Raises:
            UserError: the targets are no class numbers, or all draws leave a worker too few.
        """
        labels = _labels(targets, "a Dirichlet partition")
        least = max(1, min(10, len(labels) // (10 * workers)))
        for _ in range(DRAWS):
            shares = self._draw(labels, workers, random)
            if min(map(len, shares)) >= least:
                return shares
        draws = f"{DRAWS} draws with alpha {self.alpha:g} each leave one of {workers} workers"
        raise UserError(f"partition: {draws} fewer than {least} examples; allowed: a larger alpha")

    def _draw(
        self, labels: np.ndarray, workers: int, random: np.random.Generator
    ) -> list[np.ndarray]:
        parts: list[list[np.ndarray]] = [[] for _ in range(workers)]
        for label in np.unique(labels):
            rows = random.permutation(np.flatnonzero(labels == label))
            share = random.dirichlet(np.full(workers, self.alpha))
            ends = np.rint(np.cumsum(share)[:-1] * len(rows)).astype(np.int64)
            for part, piece in zip(parts, np.split(rows, ends), strict=True):
                part.append(piece)
        return [np.concatenate(part) for part in parts]


def dirichlet(alpha: Any) -> Dirichlet:
    """Data that differ by worker: the setting ``partition=lagbench.dirichlet(alpha)``.

    Args:
        alpha: concentration: 0.1 gives workers few classes each, 100 nearly equal shares.

    Raises:
        UserError: ``alpha`` is no number above 0.

    Examples:
        >>> shares = dirichlet(0.5)(np.arange(1000) % 10, 4, np.random.default_rng(0))
        >>> [len(rows) for rows in shares], sum(len(set(rows)) for rows in shares)
        ([215, 231, 250, 304], 1000)
    """
    if not (is_finite(alpha) and 0.0 < alpha <= 1e9):
        raise UserError(f"partition: dirichlet({alpha!r}); allowed: a number above 0, up to 1e9")
    return Dirichlet(float(alpha))


def partition_of(choice: Any) -> Partitioning | None:
    """The partition of the setting ``partition``; None for ``"iid"``.

    Args:
        choice: ``"iid"``, ``"by_label"``, ``"dirichlet:ALPHA"``, or a function.

    Raises:
        UserError: another value.
    """
    if isinstance(choice, str):
        name, _, alpha = choice.partition(":")
        if choice in (IID, "by_label"):
            return None if choice == IID else by_label
        if name == "dirichlet" and not alpha:
            mistake = "without a concentration; allowed: with one, e.g. 'dirichlet:0.5'"
            raise UserError(f"partition: {choice!r} {mistake}")
        if name == "dirichlet":
            return dirichlet(_number(alpha))
    elif choice is dirichlet or choice is Dirichlet:
        mistake = "without a concentration; allowed: with one, e.g. lagbench.dirichlet(0.5)"
        raise UserError(f"partition: lagbench.dirichlet {mistake}")
    elif callable(choice) and not isinstance(choice, type):
        return cast(Partitioning, choice)
    raise UserError(f"partition: {choice!r}; allowed: {A_PARTITION}")


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def describe_partition(partition: Partitioning) -> Any:
    """JSON values that identify a partition: a name, settings, or a digest of the user's code."""
    if partition is by_label:
        return "by_label"
    is_ours = type(partition) is Dirichlet
    return plain(partition) if is_ours else digest_of_code(partition, "partition")


def split_rows(
    partition: Partitioning, targets: Any, examples: int, workers: int, seed: int
) -> list[np.ndarray]:
    """The rows of each worker in a run of ``seed``.

    Args:
        partition: the partition.
        targets: targets of the training data.
        examples: number of examples.
        workers: number of workers.
        seed: the run's seed; the partition draws from a stream of its own.

    Raises:
        UserError: a function of the user's raises an error, or is no partition: an example that no
            worker has, or several, or a worker without examples.
    """
    name = name_function(partition)

    def draw() -> list[np.ndarray]:
        shares = partition(targets, workers, stream(seed, "partition", workers))
        arrays = [np.asarray(rows) for rows in shares]
        return [a.astype(np.int64, casting="same_kind") if a.size else a for a in arrays]

    shares = call_function("partition", draw, name=name)
    allowed = f"allowed: the rows of each of {workers} workers, of {examples} each in one"
    if len(shares) != workers:
        raise UserError(f"partition: {name} gives {len(shares)} shares; {allowed}")
    for worker, rows in enumerate(shares):
        if rows.ndim != 1 or not len(rows):
            mistake = f"worker {worker} a share of shape {list(rows.shape)}"
            raise UserError(f"partition: {name} gives {mistake}; {allowed}")
    every = np.concatenate(shares)
    if every.min() < 0 or every.max() >= examples:
        wrong = int(every[(every < 0) | (every >= examples)][0])
        raise UserError(f"partition: {name} gives row {wrong}; {allowed}")
    counts = np.bincount(every, minlength=examples)
    if (counts != 1).any():
        row = int(np.argmax(counts != 1))
        raise UserError(f"partition: {name} gives row {row} {counts[row]} times; {allowed}")
    return shares


def measure_skew(shares: Sequence[np.ndarray], targets: Any) -> Mapping[str, float]:
    """Difference of the workers' shares, for a run's summary.

    Args:
        shares: rows of each worker.
        targets: targets of the training data.

    Returns:
        ``smallest_share`` and ``largest_share``, in examples; for class numbers also
        ``label_skew``: the mean over workers of the total variation distance
        ``1/2 sum_c |p_w(c) - p(c)|`` between the class frequencies of its share and of all data.
    """
    sizes = [len(rows) for rows in shares]
    figures = {"smallest_share": float(min(sizes)), "largest_share": float(max(sizes))}
    labels = _class_numbers(targets)
    if labels is None:
        return figures
    _, label = np.unique(labels, return_inverse=True)
    classes = int(label.max()) + 1
    overall = np.bincount(label, minlength=classes) / len(label)
    frequencies = [np.bincount(label[rows], minlength=classes) / len(rows) for rows in shares]
    distances = [0.5 * float(np.abs(frequency - overall).sum()) for frequency in frequencies]
    return {**figures, "label_skew": sum(distances) / len(distances)}


def _labels(targets: Any, user: str) -> np.ndarray:
    labels = _class_numbers(targets)
    if labels is None:
        tensor = isinstance(targets, torch.Tensor)
        kind = f"{targets.dtype} {list(targets.shape)}" if tensor else type(targets).__name__
        mistake = f"{user} needs targets that are class numbers, [N]; found {kind}"
        raise UserError(f"partition: {mistake}; allowed: 'iid', or a function")
    return labels


def _class_numbers(targets: Any) -> np.ndarray | None:
    """Targets as class numbers ``[N]``; None where they are something else."""
    if not isinstance(targets, torch.Tensor | np.ndarray):
        return None
    array = cast(Any, targets.cpu().numpy() if isinstance(targets, torch.Tensor) else targets)
    return array if array.ndim == 1 and array.dtype.kind in "iub" else None


FEW, TRIED = 32, 256
"""About this many examples, evenly spaced, try our metrics or a user's before training."""

METRIC = "metric: "
"""What precedes the name of a metric in messages."""


class ModuleParts(HasIdentity):
    """A module, its loss, its data and its metrics.

    Args:
        model: a module, from whose parameters every run starts; or a function that makes one,
            called for each seed with random generators of that seed, and with ``seed`` if it needs
            that argument.
        loss: function of outputs and targets, one number a minibatch; ``"model"`` for the model's
            own, the ``loss`` of its outputs.
        train: training data.
        dev: development data: they decide on learning rates and on reaching a target.
        test: test data, reported only; None for none.
        metrics: metrics by name; the first one decides, without any the loss.
        called: name of the model in a run file.
        place: what precedes keys in messages, of a run file.
        maximise: whether more of the first metric is better.
        is_share: whether the first metric is a share, from 0 to 1.
        partition: data that differ by worker; None for equal shares of the same data.
        buffers: buffers of trained models, if training changes any; see `Rule`.
        autocast: ``"bfloat16"``: PyTorch casts to it in the forward passes of training.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: AskedLoss,
        train: Arrays,
        dev: Arrays,
        test: Arrays | None,
        metrics: Mapping[str, Metric],
        called: str = "",
        place: str = "",
        *,
        maximise: bool = False,
        is_share: bool = False,
        partition: Partitioning | None = None,
        buffers: Rule = "mean",
        autocast: object = None,
    ) -> None:
        self.autocast = read_autocast(autocast)
        self.maximise, self.is_share, self.partition = maximise, is_share, partition
        self.buffers: Rule = buffers
        self.called, self.place = called, place
        self.model, self.metrics = model, metrics
        self.loss: Loss = own_loss if loss == OWN_LOSS else loss
        self.train, self.dev, self.test = train, dev, test
        self._inspected: dict[tuple[int, str], Inspection] = {}  # pickled with the problem
        self._batchable: dict[tuple[int, str], bool] = {}
        self._varying = set[str]()

    def __reduce__(self) -> tuple[Callable[[bytes], ModuleParts], tuple[bytes]]:
        return _unpack, (_pack(self),)

    @lru_cache(maxsize=4)  # noqa: B019 (a problem lives as long as its runs)
    def module(self, seed: int) -> nn.Module:
        """The module of a seed's runs, before training.

        Raises:
            UserError: the user's function raises an error, or makes something that cannot be
                trained.
        """
        with self.name_keys():
            module = make_module(self.model, seed, self.called)
            Parameters.from_module(module)
        return module

    def name_keys(self) -> AbstractContextManager[None]:
        """A context in which errors name the run file, if the problem is from one."""
        return name_keys(self.place)

    def initial(self, seed: int) -> Tensor:
        """The initial parameters ``[P]`` of a seed's runs."""
        return flat(list(trainable_parameters(self.module(seed)).values()))

    @cached_property
    def size(self) -> int:
        """Number of trained parameters."""
        return self.initial(0).numel()

    @property
    def bytes_of_number(self) -> float:
        """Bytes of a parameter in a message: its own, at most the four of float32."""
        return float(min(4, self.initial(0).element_size()))

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
            targets = unwrap(self.train.targets)
            return split_rows(self.partition, targets, len(self.train), workers, seed)

    def inspect(self, minibatch: int, device: str) -> Inspection:
        """Inspect the module by running it, once for each size and device; see `inspect_module`."""
        if (minibatch, device) not in self._inspected:
            self._inspected[minibatch, device] = self._inspect(minibatch, device)
        return self._inspected[minibatch, device]

    def _inspect(self, minibatch: int, device: str) -> Inspection:
        module, floats = self.module(0), self.initial(0).dtype
        batch = self.train.spread(minibatch)[:minibatch].to(device, floats)
        packages = {str(m.__module__).partition(".")[0] for m in self.metrics.values()}
        # A user's metric may need examples of all classes; ours do not.
        count = FEW if packages <= {*OWN} else TRIED
        scored = self.train.spread(count)[:count].to(device, floats)
        with self.name_keys():
            inspection = inspect_module(_to_device(module, device), self.loss, batch.x, batch.y)
            call = Call.from_module(module, needs_labels=self.loss is own_loss)
            metrics = {f"{METRIC}{name}": metric for name, metric in self.metrics.items()}
            parts = {"model": _to_device(module, device), "loss": self.loss, **metrics}
            varying = refuse_hidden_state(parts, partial(_call_parts, call, batch, scored))
            for name, data in {"dev": self.dev, "test": self.test}.items():
                if data is not None and _looks_else(data, self.train):
                    rows = data.spread(TRIED).to(device, floats)
                    functions = {"loss": self.loss, **self.metrics}
                    copied = copy_module(module).to(device)
                    try_metrics(copied, functions, rows.x, rows.y, call, data=name)
        for name in sorted(varying - VARYING):
            LOG.info(f"{name}: calls change it, so its value is no part of a run's identity")
        self._varying |= varying
        return inspection

    def _is_batchable(self, minibatch: int, device: str) -> bool:
        """Whether replicas can be computed at once, found out once for each size and device."""
        if (minibatch, device) not in self._batchable:
            examples = self.train[:minibatch].to(device, self.initial(0).dtype)
            parts = _to_device(self.module(0), device), self.loss, examples.x, examples.y
            self._batchable[minibatch, device] = is_batchable(*parts)
        return self._batchable[minibatch, device]

    def network(
        self, seed: int, minibatch: int, device: str, rules: GradientRules = NO_RULES
    ) -> ModuleNetwork:
        """The network that algorithms compute gradients with."""
        inspection = self.inspect(minibatch, device)
        return ModuleNetwork(
            self.module(seed),
            self.loss,
            together=None if self.autocast else inspection.together,
            is_batchable=lambda: self._is_batchable(minibatch, device),
            reduction=inspection.reduction,
            axes=inspection.axes,
            changing=inspection.changing,
            rules=rules,
            autocast=self.autocast,
            device=device,
        )

    @cached_property
    def _plain(self) -> dict[str, Any]:
        VARYING.update(self._varying)
        data = {"train": self.train, "dev": self.dev, "test": self.test}
        with self.name_keys():
            model: dict[str, str] = {"code": digest_of_code(self.model, "model")}
            if isinstance(self.model, nn.Module):
                model["state"] = digest_of_state(self.model)
            metrics = [[name, digest_of_part(m, "metric")] for name, m in self.metrics.items()]
            partition = self.partition and {"partition": describe_partition(self.partition)}
            return {
                "model": model,
                "loss": digest_of_part(self.loss, "loss"),
                "metrics": metrics,
                "data": {name: part and part.sha256 for name, part in data.items()},
                **({BETTER: MORE} if self.maximise else {}),
                **({"autocast": str(self.autocast)} if self.autocast else {}),
                **(partition or {}),
            }

    def to_identity(self) -> dict[str, Any]:
        """Digests of code, state and data."""
        return self._plain


@lru_cache(maxsize=4)
def make_module(model: Any, seed: int, name: str = "") -> nn.Module:
    """A module itself, or what a user's function makes for a seed.

    Args:
        model: see `ModuleParts`.
        seed: seed of a run.
        name: the function's name in messages; empty for its own.

    Raises:
        UserError: the function raises an error, or makes something else.
    """
    if isinstance(model, nn.Module):
        return model
    arguments = {} if takes(model) or not takes(model, seed=seed) else {"seed": seed}
    maker = partial(model, **arguments)
    with use_seed(stream_key(seed, "initialise") >> 65):
        module = call_function("model", maker, name=name or name_function(model))
    if not isinstance(module, nn.Module):
        mistake = f"gives a {type(module).__name__}"
        raise UserError(f"model: {mistake}; allowed: a torch.nn.Module, or what makes one")
    return module


def _pack(problem: ModuleParts) -> bytes:
    # without digests, which another process finds by itself: of the code that it has
    parts = {name: part for name, part in vars(problem).items() if name != "_plain"}
    return pickle.dumps(Parcel(parts))


@lru_cache(maxsize=4)
def _unpack(data: bytes) -> ModuleParts:
    """One problem for all runs that a process receives of it."""
    problem = ModuleParts.__new__(ModuleParts)
    vars(problem).update(pickle.loads(data).content)
    return problem


def read_autocast(choice: object) -> torch.dtype | None:
    """The type of the setting ``autocast``.

    Raises:
        UserError: another one than bfloat16; float16 would need its gradients to be scaled.
    """
    if choice not in (None, torch.bfloat16, "bfloat16"):
        raise UserError(f"autocast: {choice!r}; allowed: None, 'bfloat16' or torch.bfloat16")
    return None if choice is None else torch.bfloat16


def _call_parts(
    call: Call, examples: Arrays, scored: Arrays, parts: Mapping[str, Any], is_changed: bool
) -> list[float]:
    """Call model, loss and metrics once, as training and evaluation do; returns loss and scores.

    Args:
        call: the way the model is called.
        examples: a minibatch.
        scored: examples for the metrics.
        parts: the model, the loss and the metrics, changed.
        is_changed: whether to repeat half of the examples in place of the rest.

    Raises:
        UserError: see `try_metrics`.
    """
    if is_changed:  # each second one twice, as a metric may need examples of all classes
        examples, scored = (e.take(np.arange(len(e)) // 2 * 2) for e in (examples, scored))
    module: nn.Module = parts["model"]
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    with preserve_generators(), torch.enable_grad():
        if is_changed:
            seed_generators(0)
        outputs = call.run_on_copies(module, examples.x, examples.y)
        loss = parts["loss"](outputs, unwrap(examples.y))
        loss.backward()
    module.zero_grad()
    metrics = {k.removeprefix(METRIC): part for k, part in parts.items() if k.startswith(METRIC)}
    scores = try_metrics(module, metrics, scored.x, scored.y, call)
    for submodule, mode in modes:
        submodule.training = mode
    return [loss.item(), *scores]


def _to_device(module: nn.Module, device: str) -> nn.Module:
    return module if device == "cpu" else copy_module(module).to(device)


@dataclass(frozen=True, eq=False)
class Arrays(Rows):
    """Examples and their targets, row by row.

    Args:
        x: ``[N, ...]``, or several inputs as one; they are passed to the module as `Call` says.
        y: ``[N, ...]``, or several.
    """

    x: Value
    y: Value

    def __getitem__(self, rows: slice) -> Arrays:
        """A copy of some of the examples, as a module may write its inputs."""
        return Arrays(self.x, self.y).map(lambda tensor: tensor[rows].clone())

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.x.device

    @property
    def targets(self) -> Value:
        """Targets of all examples."""
        return self.y

    def tensors(self) -> list[Tensor]:
        """All tensors of the inputs, then those of the targets."""
        return [*leaves(self.x), *leaves(self.y)]

    @cached_property
    def sha256(self) -> str:
        """Digest of types, shapes and content of all tensors, and of their names if several."""
        return f"{digest_of(self.x)[:32]}{digest_of(self.y)[:32]}"

    def map(self, function: Callable[[Tensor], Tensor]) -> Arrays:
        """Inputs and targets of the function's results."""
        return Arrays(map_tensors(function, self.x), map_tensors(function, self.y))

    def to(self, device: str, floats: torch.dtype) -> Arrays:
        """A copy on a device, with floating-point tensors in one precision."""
        return self.map(lambda t: (t.to(floats) if t.is_floating_point() else t).to(device))

    def spread(self, count: int) -> Arrays:
        """About ``count`` of the examples, evenly spaced; all if they are fewer."""
        return self[:: max(1, len(self) // count)].map(lambda tensor: tensor.contiguous())

    def take(self, rows: np.ndarray) -> Arrays:
        """The examples of ``rows``, in that order."""
        index = torch.as_tensor(rows).to(self.device)
        return self.map(lambda tensor: tensor[index])

    def gather(self, rows: Tensor) -> Minibatch:
        """Minibatches ``[W, 1, B, ...]`` of ``rows [W, B]``; a minibatch counts as one frame."""
        index, shape = upload(rows.flatten(), self.device), (len(rows), 1, rows.shape[1])

        def gather(part: Tensor) -> Tensor:
            return part.index_select(0, index).view(*shape, *part.shape[1:])

        x, y = map_tensors(gather, self.x), map_tensors(gather, self.y)
        return Minibatch(cast(Tensor, x), cast(Tensor, y))

    def split(self, share: float, seed: int = 0) -> tuple[Arrays, Arrays]:
        """Split at random; the second part has about ``share``, and at least one example."""
        order = stream(seed, "development").permutation(len(self))
        count = max(1, round(share * len(self)))
        return self.take(np.sort(order[count:])), self.take(np.sort(order[:count]))


def _looks_else(data: Arrays, reference: Arrays) -> bool:
    """Whether examples of two data sets differ in shape or type."""
    shapes = [[(t.shape[1:], t.dtype) for t in arrays.tensors()] for arrays in (data, reference)]
    return shapes[0] != shapes[1]


def digest_of(value: Value) -> str:
    """Digest of a tensor, or of the structure of several and of each."""
    if isinstance(value, Tensor):
        return digest_of_tensor(value)
    sha = hashlib.sha256(json.dumps(describe_structure(value, "")).encode())
    for tensor in leaves(value):
        sha.update(digest_of_tensor(tensor).encode())
    return sha.hexdigest()
