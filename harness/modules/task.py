"""A user's module as a task: configuration, minibatches, and evaluation by loss and metrics."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from harness.algorithms.catalogue import Algorithm
from harness.base.errors import UserError, name_error
from harness.base.seeds import stream_key
from harness.base.settings import setting
from harness.experiment.contract import EvaluationResult
from harness.experiment.digests import digest_of_code, from_outside
from harness.experiment.experiment import Pieces, TrainingConfig
from harness.experiment.order import (
    ContinuousOrder,
    Examples,
    Key,
    Laid,
    Minibatches,
    Order,
    Partition,
    Shares,
)
from harness.modules.buffers import deploy
from harness.modules.gradient_rules import GradientRules
from harness.modules.inspection import Inspection
from harness.modules.network import OWN_LOSS, Drawing, Metric, ModuleNetwork, use_seed
from harness.modules.outputs import Classes, class_axis, join_alike, logits_of
from harness.modules.partition import measure_skew, partition_of
from harness.modules.problem import Arrays, Problem
from harness.modules.reading import RandomExamples, arrays_of
from harness.modules.settings import ModuleTable, check_module
from harness.modules.trees import unwrap
from harness.networks.contract import Minibatch, State
from harness.replay.replica_states import to_array
from harness.simulator import Workload
from harness.simulator.protocols.contract import TimingProtocol

Metrics = Mapping[str, Metric]
"""Metrics by name; the first one decides."""

SUMMED = "summed over examples"
"""Value in the identity of a loss that sums over examples; its measurements are means."""


@dataclass(frozen=True, kw_only=True)
class ModuleConfig(TrainingConfig[Problem]):
    """One training of a module, on a simulated cluster.

    Args:
        problem: module, loss, data and metrics, whose digests are part of the identity.
        work: operations and bytes of a minibatch, for which the cluster is charged.
        clip: largest norm of a worker's gradient over all parameters; None for no limit.
        weight_decay: multiple of the parameters that is added to a worker's gradient after
            clipping. The decay of `AdamW` and `Muon` is a setting of theirs.
        accumulate: microbatches of a minibatch, whose outputs are joined for its loss.

    Raises:
        UserError: settings that do not go together.
    """

    task: ClassVar[str] = "module"
    charge: ClassVar[str] = "time is charged for the module; charge_for='cluster' takes the file's"
    unit: ClassVar[str] = "examples"
    cut_by: ClassVar[str] = "minibatch"
    counts_examples: ClassVar[bool] = True

    problem: Problem
    work: Workload
    clip: float | None = setting(None, above=0.0)
    weight_decay: float = setting(0.0, at_least=0.0)
    accumulate: int = setting(1, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._size % self.accumulate:
            told = f"a divisor of minibatch, {self._size}"
            raise UserError(f"accumulate: {self.accumulate}; allowed: {told}")
        if not self.schedule.searches:
            return
        found = self.inspection
        if found.draws or found.changing:
            what = "draws at random" if found.draws else "has running statistics"
            raise UserError(f"schedule: no search for the rate of a module that {what}")
        if self.problem.partition is not None:
            raise UserError("schedule: no search for the rate with a partition; allowed: 'iid'")

    @property
    def _size(self) -> int:
        return self.stage(0).minibatch

    @property
    def inspection(self) -> Inspection:
        """Properties of the module and its loss."""
        return self.problem.inspect(self._size, self.device)

    def to_dict(self) -> dict[str, Any]:
        """See `TrainingConfig`; adds digests of the user's code, and whether the loss is a sum."""
        found = self.inspection
        summed = found.reduction == "sum"
        further = {"code": self._code} if self._code else {}
        further |= {"loss": SUMMED} if summed else {}
        further |= {"buffers": self.problem.buffers} if found.changing else {}
        if self.algorithm.averages_gradients and (self.clip or self.weight_decay):
            further |= {"rules": "of the mean gradient"}
        return super().to_dict() | further

    @cached_property
    def _code(self) -> dict[str, str]:
        """Digests of parts in the user's code; cached, and pickled with the configuration."""
        parts = {"algorithm": self.algorithm, "protocol": self.protocol, "schedule": self.schedule}
        outside = {name: part for name, part in parts.items() if from_outside(part)}
        return {name: digest_of_code(part, name) for name, part in outside.items()}

    @property
    def has_replica_state(self) -> bool:
        """See `TrainingConfig`."""
        return bool(self.inspection.changing)

    def network(self, data: Problem) -> ModuleNetwork:
        """The network of the problem's module."""
        rules = GradientRules(self.clip, self.weight_decay, self.accumulate)
        return data.network(self.seed, self._size, self.device, rules)

    def pieces(self, data: Problem) -> Arrays:
        """The training examples."""
        return data.train

    def zeros(self, data: Problem) -> Tensor:
        """See `TrainingConfig`."""
        return torch.zeros_like(data.initial(self.seed), device="cpu")

    def examples(self, data: Problem) -> Arrays:
        """See `TrainingConfig`."""
        return data.train.to(self.device, data.initial(self.seed).dtype)

    def lay_out(self, stage: int, train: Pieces) -> Order | Partition:
        """See `TrainingConfig`."""
        with self.problem.name_keys():
            return super().lay_out(stage, train)

    def order(self, stage: int, train: Pieces) -> Laid:
        """See `TrainingConfig`; rounds leave no examples out, nor do workers with own data."""
        _, own, a_fold, *_ = self.handing
        cut = stage, self.passes, self.stages_around(stage).stop, self.workers, own, a_fold
        if self.problem.partition is not None:
            shares = self.problem.shares(self.workers, self.seed)
            size = self.stage(stage).minibatch
            return ContinuousOrder(lambda times: Shares(self.seed, times, shares, size), *cut)
        if not self.rounds:
            return super().order(stage, train)
        return ContinuousOrder(lambda number: self.lay_out(number, train), *cut)

    @property
    def counts_by_worker(self) -> bool:
        """See `TrainingConfig`."""
        return self.problem.partition is not None and self.handing.own is None

    def find_simulation_only(self) -> tuple[str, str] | None:
        """See `TrainingConfig`; a real server counts the minibatches of all workers together."""
        if not self.counts_by_worker:
            return None
        return "task.partition", "simulated only without rounds; allowed on real processes: 'iid'"

    def describe_data(self) -> Mapping[str, float]:
        """See `TrainingConfig`; how much the workers' data differ, with a partition."""
        if self.problem.partition is None:
            return {}
        shares = self.problem.shares(self.workers, self.seed)
        return measure_skew(shares, unwrap(self.problem.train.targets))

    def minibatches(self, data: Problem, examples: Examples) -> Minibatches:
        """See `TrainingConfig`; modules and data sets that draw random numbers get their seeds."""
        draws = data.inspect(self._size, self.device).draws
        order_of = partial(self.order, train=data.train)
        return ModuleMinibatches(order_of, examples, self.seed, draws=draws)

    @property
    def effort(self) -> float:
        """See `Configuration`."""
        return float(self.passes * self.problem.size)

    def with_algorithm(self, algorithm: Algorithm, protocol: TimingProtocol | None) -> Self:
        """See `TrainingConfig`; the bytes sent are scaled to the other algorithm's."""
        found = super().with_algorithm(algorithm, protocol)
        if algorithm.sent == self.algorithm.sent:
            return found
        whole = self.work.parameter_bytes / self.algorithm.sent
        return replace(found, work=replace(self.work, parameter_bytes=whole * algorithm.sent))

    def workload(self, number: int = 0) -> Workload:
        """See `TaskConfig`."""
        del number
        return self.work

    @property
    def judged(self) -> str:
        """The first metric on the development set; without one, the loss."""
        return f"dev_{next(iter(self.problem.metrics), 'loss')}"

    @property
    def example_weight(self) -> float:
        """See `TaskConfig`; shares of right or wrong classes have one."""
        is_counted = is_ours(self.problem.metrics, SHARES)
        return 1.0 / self.scored_examples if is_counted else 0.0

    @property
    def is_share(self) -> bool:
        """See `TaskConfig`."""
        return self.problem.is_share

    @property
    def scored_examples(self) -> int:
        """Number of development examples with a target that the first metric counts."""
        classes, targets = self.inspection.classes, self.problem.dev.y
        is_counted = is_ours(self.problem.metrics, SHARES)
        if not is_counted or classes is None or not isinstance(targets, Tensor):
            return len(self.problem.dev)
        return int(classes.counts(targets).view(len(targets), -1).any(1).sum())

    def show(self, error: float) -> str:
        """See `TaskConfig`; shares in percent, other metrics as numbers."""
        value = -error if self.problem.maximise else error
        return f"{value:.2%}" if self.is_share else f"{value:.6g}"

    def stage_name(self, fold: int) -> str:
        """Name of the algorithm; before the first fold ``"its initial parameters"``."""
        return type(self.algorithm).__name__ if fold > 0 else "its initial parameters"


class ModuleMinibatches(Minibatches):
    """Minibatches with seeds for what is drawn at random.

    The draws of a module's layers depend on the run's seed, the worker and the step alone; those of
    a data set (`RandomExamples`) on the run's seed, the pass and the example.

    Args:
        order_of: from the number of a stage to its order.
        examples: the training data on its device.
        seed: the run's seed.
        draws: whether layers draw.
    """

    def __init__(
        self, order_of: Callable[[int], Laid], examples: Examples, seed: int, *, draws: bool
    ) -> None:
        super().__init__(order_of, examples)
        self._seed, self._draws = seed, draws

    def fetch(self, keys: Sequence[Key]) -> Minibatch:
        """See `Minibatches`."""
        minibatch = super().fetch(keys)
        if not self._draws:
            return minibatch
        seeds = [stream_key(self._seed, "layers", *key) >> 65 for key in keys]
        return Minibatch(cast(Tensor, Drawing(minibatch.x, seeds)), minibatch.targets)

    def gather(self, keys: Sequence[Key]) -> Minibatch:
        """See `Minibatches`."""
        if not isinstance(self._examples, RandomExamples):
            return super().gather(keys)
        rows, passes = self.order.rows_of(keys), self.order.passes_of(keys)
        return self._examples.ask(rows, passes, self._seed)


def problem_of(table: ModuleTable, called: str = "", place: str = "") -> Problem:
    """Module, loss, data and metrics of what a user says.

    Args:
        table: with the objects themselves.
        called: name of the model in a run file.
        place: what precedes keys in messages, of a run file.

    Raises:
        UserError: a mistake in one of them.
    """
    check_module(table)
    train = arrays_of(table.data, "data")
    if not isinstance(table.dev, float | int):
        dev = arrays_of(table.dev, "dev")
    elif 0.0 < table.dev < 1.0:
        train, dev = train.split(table.dev)
    else:
        raise UserError(f"dev: {table.dev}; allowed: a share between 0 and 1, or data")
    test = None if table.test is None else arrays_of(table.test, "test")
    metrics = metrics_of(table.metric, train, table.loss)
    first, meaning = next(iter(metrics), LOSS), (table.maximise, table.share)
    if first in METRICS and not is_ours(metrics) and meaning == (None, None):
        told = f"a function named {first!r}, as one of ours"
        raise UserError(f"metric: {told}; allowed: another name, or maximise or share beside it")
    return Problem(
        table.model,
        table.loss,
        train,
        dev,
        test,
        metrics,
        called,
        place,
        maximise=is_maximised(table.maximise, metrics),
        is_share=is_ours(metrics, SHARES) if table.share is None else table.share,
        partition=partition_of(table.partition),
        buffers=table.buffers,
        autocast=table.autocast,
    )


HELD_OUT = 2000
"""About this many examples of the development set, evenly spaced, give the held-out loss."""


class ModuleTask:
    """The opened task of a module; see `Task`.

    Args:
        config: configuration of the run.
    """

    unit = "a minibatch"

    def __init__(self, config: ModuleConfig) -> None:
        self.config, self.problem = config, config.problem
        self._start = self.problem.initial(config.seed).to(config.device)
        network = config.network(self.problem)
        self._fresh = network.fresh_state()
        scored = partial(ModuleEvaluator, network, self.problem, config.inspection.classes)
        self._evaluator, self._losses = scored(self.problem.metrics), scored({})
        self._states: Callable[[], Mapping[int, State]] = dict
        self._train, self._dev, self._test = (
            part and part.to(config.device, self._start.dtype)
            for part in (self.problem.train, self.problem.dev, self.problem.test)
        )
        assert self._train is not None
        self.minibatches = config.minibatches(self.problem, self._train)
        self._check_evaluation()

    def _check_evaluation(self) -> None:
        """Refuse targets that do not count, and scores that differ from call to call.

        Raises:
            UserError: there are such.
        """
        if not self.config.scored_examples:
            told = "no target is a class that the loss counts"
            raise UserError(f"dev: {told}; allowed: one or more")
        assert self._dev is not None
        few = self._dev[:FEW]
        once, again = (self._losses.scores(self._start, few, self._fresh).loss for _ in range(2))
        if not math.isclose(once, again, rel_tol=SAME) and math.isfinite(once):
            told = f"two evaluations of one model give {once:.6g} and {again:.6g}"
            allowed = "draws from the global generators of torch, numpy or random alone"
            raise UserError(f"loss: {told}; allowed: {allowed}")

    @property
    def network(self) -> ModuleNetwork:
        """The network of searches for a learning rate."""
        return self._network

    @cached_property
    def _network(self) -> ModuleNetwork:
        return self.config.network(self.problem)

    def initial(self) -> Tensor:
        """See `Task`."""
        return self._start

    def losses_in(self, minibatch: int) -> int:
        """One: the user's loss function returns one number a minibatch."""
        del minibatch
        return 1

    def dev(self, model: Tensor) -> ModuleScores:
        """See `Task`."""
        assert self._dev is not None
        return self._evaluator.scores(model, self._dev, self._deploy_state())

    def take_states(self, states: Callable[[], Mapping[int, State]]) -> None:
        """See `StatefulTask`."""
        self._states = states

    def _deploy_state(self) -> State:
        return deploy(self._states(), self._fresh, self.problem.buffers)

    def deployed_state(self) -> dict[str, np.ndarray]:
        """See `StatefulTask`."""
        return {name: to_array(tensor) for name, tensor in self._deploy_state().items()}

    def held_out_loss(self, model: Tensor) -> float:
        """See `Task`."""
        assert self._dev is not None
        return self._losses.scores(model, self._dev.spread(HELD_OUT), self._deploy_state()).loss

    def tested(self, model: Tensor, name: str) -> EvaluationResult:
        """The same scores on the test set, if there is one."""
        if self._test is None:
            return EvaluationResult({})
        found = self._evaluator.scores(model, self._test, self._deploy_state()).measured
        return EvaluationResult({f"test_{metric}/{name}": value for metric, value in found.items()})


BLOCK = 1024
"""Number of examples whose outputs are computed at once, if those of several can be joined."""

SAMPLED = 64
"""At least so many examples of several blocks are computed once more, in other company."""

FEW, SAME = 16, 1e-4
"""Development examples that are evaluated twice at first, and the difference that is rounding."""

EVALUATION_SEED = 0
"""Seed of all that model, loss and metrics draw in an evaluation, so that each draws the same."""

LOSS = "loss"


@dataclass(frozen=True)
class ModuleScores:
    """Scores on one set.

    Attributes:
        loss: that of the whole set; of a loss that sums over examples, the mean over them.
        further: metrics by name; the first one decides.
        maximise: whether more of the first metric is better.
    """

    loss: float
    further: Mapping[str, float]
    maximise: bool = False

    @property
    def error(self) -> float:
        """The first metric, or the loss; negated where more is better."""
        value = next(iter(self.further.values()), self.loss)
        return -value if self.maximise else value

    @property
    def finite(self) -> bool:
        """Whether the model's loss is finite."""
        return math.isfinite(self.loss)

    @property
    def measured(self) -> dict[str, float]:
        """Metrics and loss by name."""
        return {**self.further, LOSS: self.loss}


class ModuleEvaluator:
    """Scores models of one module.

    Args:
        network: network of the module, put into evaluation mode.
        problem: the problem, with its loss.
        classes: the classes that our metrics count; None where there are none.
        metrics: metrics by name.
    """

    def __init__(
        self, network: ModuleNetwork, problem: Problem, classes: Classes | None, metrics: Metrics
    ) -> None:
        self._network, self._classes = network, classes
        self._network.module.eval()
        self._loss, self._metrics = problem.loss, metrics
        self._maximise = problem.maximise

    @torch.no_grad()
    def scores(
        self, model: Tensor, examples: Arrays, state: Mapping[str, Tensor] | None = None
    ) -> ModuleScores:
        """Scores of ``model [P]`` on a data set as a whole.

        Args:
            model: parameters.
            examples: the data set.
            state: buffers that training changes; of several rows, scores are the mean.
        """
        own = {name: tensor.clone() for name, tensor in (state or {}).items()}
        rows = len(next(iter(own.values()))) if own else 1
        each: list[ModuleScores] = []
        for row in range(rows):
            self._network.buffers.bind(own, row)
            each.append(self._scores(model, examples))
        further = {name: sum(one.further[name] for one in each) / rows for name in self._metrics}
        return ModuleScores(sum(one.loss for one in each) / rows, further, self._maximise)

    def _scores(self, model: Tensor, examples: Arrays) -> ModuleScores:
        module, targets = self._network.bind_parameters(model), unwrap(examples.y)
        with use_seed(EVALUATION_SEED):
            outputs = self._run(module, examples)
            loss = float(self._loss(outputs, targets))
            further = {
                name: float(metric(*copy.deepcopy((outputs, self._mark_ignored(metric, targets)))))
                for name, metric in self._metrics.items()
            }
        count = len(examples) if self._network.reduction == "sum" else 1
        return ModuleScores(loss / count, further, self._maximise)

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

    def _mark_ignored(self, metric: Metric, targets: Any) -> Any:
        """Targets as a metric gets them: for ours, those that the loss ignores are no class."""
        if metric not in (wrong, right) or self._classes is None or not torch.is_tensor(targets):
            return targets
        return targets.long().where(self._classes.counts(targets), -1)


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
    if (axis := class_axis(outputs, targets)) is None:
        told = f"outputs {list(outputs.shape)} for targets {list(targets.shape)}"
        raise UserError(
            f"metric: error: {told}; allowed: an output for each class, or another metric"
        )
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


METRICS: dict[str, Metric] = {
    "error": wrong,
    "accuracy": right,
    "mse": squared,
    "mae": absolute,
}
"""Metrics by name."""

MAXIMISED, SHARES = ("accuracy",), ("error", "accuracy")
"""Metrics of ours of which more is better, and those that are shares of examples."""


def is_ours(metrics: Mapping[str, Metric], names: Sequence[str] = tuple(METRICS)) -> bool:
    """Whether the first metric is one of ours with one of these names, not a user's function."""
    first = next(iter(metrics), LOSS)
    return first in names and metrics[first] is METRICS[first]


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
        asked: a name, a function, or several of them; None for the share of wrong classes if
            targets are whole numbers, else for the loss alone.
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
    several: list[Any] = [*asked] if isinstance(asked, list | tuple) else [asked]  # pyright: ignore[reportUnknownVariableType]
    metrics: dict[str, Metric] = {}
    for metric in several:
        if not (isinstance(metric, str) or callable(metric)):
            raise UserError(f"metric: {metric!r} is not allowed; allowed: a name or a function")
        if isinstance(metric, str) and metric not in (*METRICS, LOSS):
            raise name_error("metric", metric, [*METRICS, LOSS])
        if metric == LOSS:
            continue
        is_name = isinstance(metric, str)
        name = metric if is_name else getattr(metric, "__name__", type(metric).__name__)
        if name in (LOSS, *metrics):
            told = f"a function named {LOSS!r}" if name == LOSS else f"two named {name!r}"
            raise UserError(f"metric: {told}; allowed: any other name")
        metrics[name] = METRICS[name] if is_name else cast(Metric, metric)
    return metrics
