"""Data that differ by worker: partitions of the training examples, and how skewed they are.

A partition is a function of targets, a number of workers and a random generator, to the rows of
each worker. `by_label` and `Dirichlet` are two; users add their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from harness.base.errors import UserError
from harness.base.seeds import stream
from harness.experiment.digests import digest_of_code
from harness.experiment.experiment import plain
from harness.modules.allowed import call_function, is_finite, name_function

Partitioning = Callable[[Any, int, np.random.Generator], Sequence[Any]]
"""Function of targets ``[N, ...]``, the number of workers and a generator, to each one's rows."""

IID = "iid"

ALLOWED = "'iid', 'by_label', lagbench.dirichlet(alpha), or a function (targets, workers, random)"

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
    raise UserError(f"partition: {choice!r}; allowed: {ALLOWED}")


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
