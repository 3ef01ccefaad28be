"""What is measured of anybody's module: its loss, and metrics by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from harness.base.errors import UserError, unknown
from harness.execution.data.arrays import Arrays
from harness.execution.runs.problem import Metric, Problem
from harness.modules.network import ModuleNetwork

BLOCK = 1024
"""Examples evaluated at once."""
LOSS = "loss"


@dataclass(frozen=True)
class ModuleScores:
    """Scores on one set, means over its examples.

    Attributes:
        loss: the mean over examples, also of a loss that sums over them.
        further: metrics by name; the first judges, where there is one.
    """

    loss: float
    further: Mapping[str, float]

    @property
    def error(self) -> float:
        """What candidates are judged by."""
        return next(iter(self.further.values()), self.loss)

    @property
    def finite(self) -> bool:
        """Whether the model still computes numbers."""
        return math.isfinite(self.loss)

    @property
    def measured(self) -> dict[str, float]:
        """All, by name."""
        return {**self.further, LOSS: self.loss}


class ModuleEvaluator:
    """Scores models of one module.

    Args:
        network: the module; a copy of it is put into evaluation mode.
        problem: with the metrics.
    """

    def __init__(self, network: ModuleNetwork, problem: Problem) -> None:
        self._network = copy.deepcopy(network)
        self._network.module.eval()
        self._loss, self._metrics = problem.loss, dict(problem.metrics)

    @torch.no_grad()
    def scores(self, model: Tensor, examples: Arrays) -> ModuleScores:
        """Scores of ``model [P]`` on a set."""
        module, total = self._network.at(model), dict.fromkeys([LOSS, *self._metrics], 0.0)
        for begin in range(0, len(examples), BLOCK):
            x, y = examples.x[begin : begin + BLOCK], examples.y[begin : begin + BLOCK]
            outputs = module(x)
            each = 1 if self._network.reduction == "sum" else len(x)
            total[LOSS] += each * float(self._loss(outputs, y))
            for name, metric in self._metrics.items():
                total[name] += len(x) * float(metric(outputs, y))
        means = {name: value / len(examples) for name, value in total.items()}
        return ModuleScores(means.pop(LOSS), means)


def wrong(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of targets that are not the class with the largest output.

    Raises:
        UserError: there are no several classes, of which one output could be the largest.
    """
    shapes = (outputs.shape[:1] + outputs.shape[2:], outputs.shape[:-1])
    if outputs.dim() < 2 or targets.shape not in shapes or outputs.numel() == targets.numel():
        told = f"outputs {list(outputs.shape)} for targets {list(targets.shape)}"
        raise UserError(
            f"metric: error: {told}; allowed: an output for each class, or another metric"
        )
    classes = -1 if outputs.shape[:-1] == targets.shape else 1
    return (outputs.argmax(classes) != targets).double().mean()


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error."""
    return _apart(outputs, targets).square().mean()


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error."""
    return _apart(outputs, targets).abs().mean()


def _apart(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs less targets; other shapes would be spread over each other without a word.

    Raises:
        UserError: their shapes differ.
    """
    if outputs.shape != targets.shape:
        told = f"outputs {list(outputs.shape)} for targets {list(targets.shape)}"
        raise UserError(f"metric: {told}; allowed: the same shape, or a function of one's own")
    return (outputs - targets).double()


METRICS: dict[str, Metric] = {"error": wrong, "mse": squared, "mae": absolute}
"""By name."""


def metrics_of(asked: Any, train: Arrays) -> dict[str, Metric]:
    """The metrics that are asked for.

    Args:
        asked: names, functions or several of them; None for the share of wrong classes where
            targets are whole numbers, else for the loss alone.
        train: the data.

    Raises:
        UserError: an unknown name.
    """
    if asked is None:
        return {} if train.y.is_floating_point() else {"error": wrong}
    several: list[Any] = [*asked] if isinstance(asked, list | tuple) else [asked]  # pyright: ignore[reportUnknownVariableType]
    found: dict[str, Metric] = {}
    for each in several:
        if isinstance(each, str):
            if each not in (*METRICS, LOSS):
                raise unknown("metric", each, [*METRICS, LOSS])
            if each != LOSS:
                found[each] = METRICS[each]
        elif callable(each):
            found[getattr(each, "__name__", type(each).__name__)] = cast(Metric, each)
        else:
            raise UserError(f"metric: {each!r} is not allowed; allowed: a name or a function")
    if LOSS in found:
        raise UserError(f"metric: a function named {LOSS!r}; allowed: any other name")
    return found
