"""Evaluation of a user's module: its loss and metrics on a data set as a whole."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.base.errors import UserError, name_error
from harness.modules.network import OWN_LOSS, Metric, ModuleNetwork, use_seed
from harness.modules.parts import Arrays, ModuleParts
from harness.modules.values import Classes, class_axes, join_alike, logits_of, unwrap

Metrics = Mapping[str, Metric]
"""Metrics by name; the first one decides."""


BLOCK = 1024
"""Number of examples whose outputs are computed at once, if those of several can be joined."""

SAMPLED = 64
"""At least so many examples of several blocks are computed once more, in other company."""

EVALUATION_SEED = 0
"""Seed of all that model, loss and metrics draw in an evaluation, so that each draws the same."""

LOSS = "loss"


class ModuleEvaluator:
    """Scores models of one module.

    Args:
        network: network of the module, put into evaluation mode.
        problem: the problem, with its loss.
        classes: the classes that our metrics count; None where there are none.
        metrics: metrics by name.
    """

    def __init__(
        self,
        network: ModuleNetwork,
        problem: ModuleParts,
        classes: Classes | None,
        metrics: Metrics,
    ) -> None:
        self._network, self._classes = network, classes
        self._network.module.eval()
        self._loss, self._metrics = problem.loss, metrics
        for name, metric in metrics.items():
            if metric in (wrong, right) and classes is not None and classes.mistake:
                allowed = "metric='loss' or a function"
                raise UserError(f"metric: {name}: {classes.mistake}; allowed: {allowed}")

    @torch.no_grad()
    def scores(
        self, model: Tensor, examples: Arrays, state: Mapping[str, Tensor] | None = None
    ) -> dict[str, float]:
        """Metrics and loss of ``model [P]`` on a data set as a whole, by name.

        Args:
            model: parameters.
            examples: the data set.
            state: buffers that training changes; of several rows, scores are the mean.
        """
        state = {name: tensor.clone() for name, tensor in (state or {}).items()}
        rows = len(next(iter(state.values()))) if state else 1
        measured: list[dict[str, float]] = []
        for row in range(rows):
            self._network.buffers.bind(state, row)
            measured.append(self._scores(model, examples))
        return {name: sum(values[name] for values in measured) / rows for name in measured[0]}

    def _scores(self, model: Tensor, examples: Arrays) -> dict[str, float]:
        module, targets = self._network.bind_parameters(model), unwrap(examples.y)
        with use_seed(EVALUATION_SEED):
            outputs = self._run(module, examples)
            loss = float(self._loss(outputs, targets))
            further = {
                name: float(metric(*copy.deepcopy(self._arrange(metric, outputs, targets))))
                for name, metric in self._metrics.items()
            }
        count = len(examples) if self._network.reduction == "sum" else 1
        return {**further, LOSS: loss / count}

    def _run(self, module: nn.Module, examples: Arrays) -> Any:
        """The outputs for all examples: of blocks, joined, or of one call where they cannot be."""
        run, count = self._network.call.run_on_copies, len(examples)
        if count > BLOCK:
            # At least one of each block is computed among others too: that must change nothing.
            rows = np.append(np.arange(0, count - 1, min(count // SAMPLED, BLOCK - 1)), count - 1)
            few = examples.take(rows := rows[len(rows) == BLOCK :])
            blocks = (slice(a, a + BLOCK) for a in range(0, count, BLOCK))
            parts = (run(module, examples.x[b], examples.y[b]) for b in blocks)
            if found := join_alike(parts, run(module, few.x, few.y), torch.as_tensor(rows), count):
                return found[0]
        return run(module, examples.x, examples.y)

    def _arrange(self, metric: Metric, outputs: Any, targets: Any) -> tuple[Any, Any]:
        """Outputs and targets as a metric gets them.

        For ours, classes are last, and targets that the loss ignores are no class.
        """
        classes = self._classes
        if metric not in (wrong, right) or classes is None or not torch.is_tensor(targets):
            return outputs, targets
        marked = targets.long().where(classes.counts(targets), -1)
        return cast(Tensor, logits_of(outputs)).movedim(classes.axis, -1), marked


def _tensors(outputs: Any, targets: Any, name: str) -> tuple[Tensor, Tensor]:
    """Outputs, or their ``logits``, and targets as tensors, for a metric.

    Raises:
        UserError: they are none.
    """
    found = logits_of(outputs)
    kinds = type(cast(object, outputs)).__name__, type(targets).__name__
    for what, kind, each in zip(("outputs", "targets"), kinds, (found, targets), strict=True):
        if not isinstance(each, Tensor):
            told = f"a {kind} of {what}"
            needs = "a tensor, or outputs with 'logits'"
            raise UserError(
                f"metric: {name!r} needs {needs}, not {told}; allowed: metric='loss' or a function"
            )
    return cast(Tensor, found), cast(Tensor, targets)


def wrong(outputs: Any, targets: Any) -> Tensor:
    """The share of targets that are not the class with the largest output.

    Targets that are no class, such as -100, are not counted.

    Raises:
        UserError: the shapes are not those of outputs for several classes.
    """
    outputs, targets = _tensors(outputs, targets, "error")
    if not (axes := class_axes(outputs, targets)):
        told = f"outputs {list(outputs.shape)} for targets {list(targets.shape)}"
        raise UserError(
            f"metric: error: {told}; allowed: an output for each class, or another metric"
        )
    axis = axes[0]
    counted = Classes(outputs.shape[axis]).counts(targets)
    return (outputs.argmax(axis) != targets)[counted].double().mean()


def right(outputs: Any, targets: Any) -> Tensor:
    """The share of targets that are the class with the largest output; see `wrong`."""
    return 1.0 - wrong(outputs, targets)


def squared(outputs: Any, targets: Any) -> Tensor:
    """Mean squared error."""
    return _residuals(outputs, targets, "mse").square().mean()


def absolute(outputs: Any, targets: Any) -> Tensor:
    """Mean absolute error."""
    return _residuals(outputs, targets, "mae").abs().mean()


def _residuals(outputs: Any, targets: Any, name: str) -> Tensor:
    """Outputs minus targets.

    Raises:
        UserError: their shapes differ.
    """
    outputs, targets = _tensors(outputs, targets, name)
    # Unequal shapes would be broadcast without an error, and give a wrong mean.
    if outputs.shape != targets.shape:
        told = f"outputs {list(outputs.shape)} for targets {list(targets.shape)}"
        raise UserError(f"metric: {told}; allowed: the same shape, or a function of one's own")
    return (outputs - targets).double()


METRICS: dict[str, Metric] = {"error": wrong, "accuracy": right, "mse": squared, "mae": absolute}
"""Metrics by name."""

MAXIMISED, SHARES = ("accuracy",), ("error", "accuracy")
"""Metrics of ours of which more is better, and those that are shares of examples."""


def is_ours(metrics: Mapping[str, Metric], names: Sequence[str] = tuple(METRICS)) -> bool:
    """Whether the first metric is one of ours with one of these names, not a user's function."""
    return next(iter(metrics.values()), None) in [METRICS[name] for name in names]


def remark_direction(asked: bool | None, metrics: Mapping[str, Metric]) -> Iterator[str]:
    """A line where less of a user's metric counts as better, and ``maximise`` is not given."""
    if asked is None and metrics and not is_ours(metrics):
        yield f"metric: less of {next(iter(metrics))!r} counts as better; for more: maximise=True"


def is_maximised(asked: bool | None, metrics: Mapping[str, Metric]) -> bool:
    """Whether more of the first metric is better.

    Args:
        asked: the setting ``maximise``; None where only `MAXIMISED` are.
        metrics: metrics by name.

    Raises:
        UserError: the loss decides, which training makes less.
    """
    if asked is None:
        return is_ours(metrics, MAXIMISED)
    if asked and not metrics:
        raise UserError("maximise: training makes the loss less; allowed: with a metric")
    return asked


def metrics_of(asked: Any, train: Arrays, loss: object = None) -> dict[str, Metric]:
    """The metrics of the setting ``metric``, by name.

    Args:
        asked: a name, a function, or several of them, in a list or by name; None for the share of
            wrong classes if targets are whole numbers, else for the loss alone.
        train: the training data.
        loss: the setting ``loss``; a model's own decides alone, unless another metric is named.

    Raises:
        UserError: an unknown name, or one that two have.
    """
    if asked is None and loss == OWN_LOSS:
        return {}
    if asked is None:
        whole = isinstance(train.y, Tensor) and not train.y.is_floating_point()
        return {"error": wrong} if whole else {}
    several: list[Any] = [*asked] if isinstance(asked, list | tuple | dict) else [asked]  # pyright: ignore[reportUnknownVariableType]
    named: dict[Any, Any] = asked if isinstance(asked, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    metrics: dict[str, Metric] = {}
    for entry in several:
        metric = named.get(entry, entry)
        if not (isinstance(metric, str) or callable(metric)):
            raise UserError(f"metric: {metric!r} is not allowed; allowed: a name or a function")
        if isinstance(metric, str) and metric not in (*METRICS, LOSS):
            raise name_error("metric", metric, [*METRICS, LOSS])
        if metric == LOSS:
            continue
        is_name = isinstance(metric, str)
        name = entry if named or is_name else getattr(metric, "__name__", type(metric).__name__)
        if name in (LOSS, *metrics):
            told = f"a function named {LOSS!r}" if name == LOSS else f"two named {name!r}"
            raise UserError(f"metric: {told}; allowed: any other name")
        metrics[name] = METRICS[metric] if is_name else cast(Metric, metric)
    return metrics
