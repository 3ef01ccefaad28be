"""What one says of a module, in ``[task]`` of a run file and in a call of `import lagbench`.

A mistake is refused in one line. Then come the parts of the training recipe: the schedule, weight
decay and the optimizer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.optim import Optimizer

from harness.algorithms.descent import (
    PLAIN,
    Adam,
    AdamW,
    Descent,
    LocalOptimizer,
    Momentum,
    Muon,
)
from harness.algorithms.schedules import Constant, Cosine, Linear, Schedule, Steps, Warmup
from harness.algorithms.torch_optimizers import FLAGS, LINEAR, Group, Grouped, TorchOptimizer
from harness.base.errors import RAISED, UserError, describe_raised, name_error
from harness.base.settings import Spec, check_settings_class, meanings, setting
from harness.experiment.digests import digest_of_code
from harness.experiment.experiment import HasIdentity
from harness.experiment.methods import OPTIMIZERS
from harness.modules.buffers import Rule
from harness.modules.network import OWN_LOSS, GradientRules, trainable_parameters
from harness.natural_gradient import NGSGD
from harness.store import DEFAULT_STORE


def name_function(function: object) -> str:
    """The name of a user's function; of another object, of its class."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def call_function(
    key: str, function: Callable[..., Any], *arguments: object, name: str = "", end: str = ""
) -> Any:
    """The result of a user's function.

    Args:
        key: the setting that it is.
        function: the function.
        arguments: what it is called with.
        name: its name in messages; empty for its own.
        end: end of the message.

    Raises:
        UserError: it raises an error.
    """
    try:
        return function(*arguments)
    except UserError:
        raise
    except RAISED as error:
        reason = f"{name or name_function(function)} raised {describe_raised(error)}"
        raise UserError(f"{key}: {reason}{end}") from error


def takes(function: Callable[..., Any], *arguments: object, **named: object) -> bool:
    """Whether a function can be called with arguments; assumed of one without a signature."""
    try:
        signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # a function of C
        return True
    return True


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number, and not a bool."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


LONGEST, ADDRESS = 80, " at 0x"
"""Longest text of a value that is shown in full, and the mark of a default `repr`."""


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Reject a value of the wrong type.

    Raises:
        UserError: it is of none of ``kinds``; ``allowed`` describes them in words.
    """
    if not isinstance(value, kinds):
        raise UserError(f"{name}: {show_value(value)}; allowed: {allowed}")


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Reject a value that is no whole number, or is too small.

    Raises:
        UserError: no int, a bool, or a number below ``least``.
    """
    if not _whole(value) or value < least:
        raise UserError(f"{name}: {show_value(value)}; allowed: a whole number from {least}")


def check_number(name: str, value: Any, least: float | None = None) -> None:
    """Reject a value that is no finite number, or is too small.

    Raises:
        UserError: it is not, or below ``least``.
    """
    if not is_finite(value) or (least is not None and value < least):
        bound = "" if least is None else f" from {least:g}"
        raise UserError(f"{name}: {show_value(value)}; allowed: a number{bound}")


def pair_of(name: str, value: Any) -> tuple[float, float]:
    """A value as a pair of numbers.

    Raises:
        UserError: it is no sequence of two numbers.
    """
    match _as_list(value):
        case [int() | float() as low, int() | float() as high]:
            return low, high
        case _:
            raise UserError(f"{name}: {show_value(value)}; allowed: two numbers")


def show_value(value: object) -> str:
    """A value for messages: its `repr` if short, else its type."""
    text = repr(value)
    if isinstance(value, type) or len(text) > LONGEST or "\n" in text or ADDRESS in text:
        kind = value if isinstance(value, type) else type(value)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        return f"{'' if isinstance(value, type) else 'a '}{name}"
    return text


def counts_of(workers: Any) -> list[int]:
    """Numbers of workers, of which one may come without a list.

    Raises:
        UserError: it is no list of whole numbers.
    """
    counts = [workers] if _whole(workers) else _as_list(workers)
    if not all(_whole(count) and count >= 1 for count in counts):
        raise UserError(f"workers: {workers!r}; allowed: whole numbers from 1")
    return counts


def rates_of(rates: Any, methods: Sequence[str]) -> dict[str, Any] | None:
    """The learning rates of each method, one or a list; None to search them.

    Args:
        rates: a number or a list for all methods, a mapping with one for each, or None. A mapping
            may have the name of a method without what follows a colon or a space in its label.
        methods: labels of the methods.

    Raises:
        UserError: a rate is missing or not positive.
    """
    if rates is None or rates == "sweep":
        return None
    rate_of: dict[str, Any] = dict.fromkeys(methods, rates)
    if isinstance(rates, Mapping):
        table = cast("Mapping[str, Any]", rates)
        rate_of = {m: table.get(m, table.get(re.split("[: ]", m)[0])) for m in methods}
    for method, rate in rate_of.items():
        if rate is None:
            allowed = ", ".join(methods)
            raise UserError(f"rates: none for {method!r}; allowed: one for each of {allowed}")
        several = [rate] if isinstance(rate, int | float) else _as_list(rate)
        if not (several and all(is_finite(value) and value > 0.0 for value in several)):
            allowed = "a number above 0, several to choose among, or None to search one"
            raise UserError(f"rate: {show_value(rate)}; allowed: {allowed}")
    return rate_of


def seeds_of(choice: Any) -> list[int]:
    """The seeds that ``seeds=`` asks for, by their number or one by one.

    Raises:
        UserError: none, one that is negative or not whole, or one that is there twice.
    """
    seeds = list(range(choice)) if _whole(choice) else _as_list(choice)
    are_whole = seeds and all(_whole(seed) and seed >= 0 for seed in seeds)
    if not are_whole or len(set(seeds)) < len(seeds):
        raise UserError(
            f"seeds: {choice!r}; allowed: how many, from 1; or which, from 0, each once"
        )
    return seeds


def _as_list(value: Any) -> list[Any]:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return [*cast("Sequence[Any]", value)] if listed else [None]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class ModuleTable(Spec):
    """Keys of ``[task]`` with ``is = "module"``: a user's module, its loss and its data.

    In a run file, names have the form ``my_module:name``; the module is beside the run file or
    installed. In a call of `import lagbench`, these are the objects.

    Args:
        model: a `torch.nn.Module`, from whose parameters every run starts, in its current mode; or
            a function that makes one, called for each seed with its random numbers, and with
            ``seed`` if it needs that argument. Parameters with ``requires_grad`` are trained and
            have one precision; tied ones count once.
        loss: a function of outputs and targets: one number for a minibatch; ``"model"`` for the
            ``loss`` of the model's outputs. Outputs may be of any kind; of an object or a dict the
            built-in metrics take ``logits``.
        data: training data: a pair of arrays, a map-style dataset, a `DataLoader`, or a function
            that returns one, in a call also with the seed as its argument. Several inputs are a
            tuple, ``((X, M), y)``, or a dict by the names of ``forward``; in a dict ``labels`` (or
            ``label``) are the targets, which ``forward`` receives too if it has that parameter;
            without them the loss gets the dict, and so does a ``forward`` with none of its names. A
            dataset that draws from the generators of torch, numpy or `random` is read again in each
            pass, seeded by run, pass and example. A `DataLoader` gives the examples of its data
            set, each through its ``collate_fn``, which may not mix them; their order and the
            minibatches are the run's own.
        test: test data of the same kinds, reported on and used for nothing else.
        dev: development data of the same kinds, or the share of the training data held out for it:
            they decide on learning rates and on times to a target.
        metric: ``"error"``, ``"accuracy"``, ``"mse"``, ``"mae"``, ``"loss"``, or a function of
            outputs and targets, one number for the whole set; of several, in a list or a dict by
            name, the first decides. A
            function's outputs are those of 1,024 examples at a time, joined, or all in one call if
            they depend on one another.
        maximise: whether more of the metric is better; by default, of ``"accuracy"`` alone.
        share: whether the metric is a share, from 0 to 1; by default, ``"error"`` and
            ``"accuracy"`` are.
        charge_for: workload that is timed in place of the trained module's: another module, which
            takes the same examples; ``"cluster"`` for the ``[workload]`` of the cluster's file; in
            a call also a `Workload`.
        step_seconds: seconds of a step on every device; or ``"count"``: the operators of the step,
            its memory traffic and its arithmetic, for each of which a device has a rate.
        minibatch: examples in a worker's minibatch.
        partition: the workers' data: ``"iid"`` (asynchronous algorithms hand out one shuffled
            sequence, rounds deal equal parts), ``"by_label"`` (equal shares in the order of
            classes), ``"dirichlet:ALPHA"`` (in a call `dirichlet`), or a function of targets,
            number of workers and random generator, to each one's rows of the training data, each
            example in one of them. A share smaller than a minibatch is repeated within it.
        buffers: buffers of trained models, where training changes some, as BatchNorm's running
            statistics, of which each worker has its own: ``"mean"`` over workers, those of the
            ``"first"`` one, or ``"local"``: each worker's own, and scores are means over workers.
        autocast: ``"bfloat16"``: `torch.autocast` to it in forward passes and losses of training.
    """

    model: Any
    loss: Any
    data: Any
    test: Any = None
    dev: Any | float = 0.1
    metric: Any = None
    maximise: bool | None = None
    share: bool | None = None
    charge_for: Any = None
    step_seconds: Any | float = "count"
    minibatch: int = setting(32, at_least=1)
    partition: Any = "iid"
    buffers: Rule = "mean"
    autocast: Any = None


@dataclass(frozen=True, kw_only=True)
class Settings(GradientRules, ModuleTable):
    """Arguments of a call of `import lagbench`, with those of `ModuleTable` and `GradientRules`.

    Args:
        passes: passes over the training data, the same for every number of workers.
        evaluations: evaluations on the development data in each pass.
        seeds: number of seeds, or a list of them; a seed sets data order, timing and initial
            parameters (of a model that is made by a function).
        guess: the first learning rate that is tried.
        optimizer: makes a worker's steps from its gradients: ``"sgd"``, ``"momentum"``,
            ``"nesterov"``, ``"adam"``, ``"adamw"``, ``"muon"``, ``"ngsgd"`` (natural gradient of
            linear and convolutional layers), a `LocalOptimizer`, a `NaturalGradient`, or one of
            ``torch.optim`` as an object, a class or a function that makes one. Each worker has its
            own state; ``"sync"`` has one. None for the algorithm's own, which is mostly ``"sgd"``.
            Further names: ``"adagrad"``, ``"rmsprop"``, ``"nadam"``, ``"radam"``. A torch object
            keeps its settings and groups of parameters, whose rates keep their ratio to the first
            one's, the rate that is trained and searched; parameters without gradient in a step are
            skipped, as torch does. Those that are not element-wise and linear in the rate (LBFGS,
            Rprop) are refused.
        schedule: learning rate over training: ``"cosine"``, ``"linear"`` (both with a warm-up),
            ``"warmup"``, ``"steps"``, ``"constant"``; a function from the share of training done,
            in [0, 1), to a factor; or a `Schedule`, whose rate is replaced, e.g.
            ``lagbench.Cosine(1.0, warmup=0.1)``.
        target: value of the metric for times to target; None for 95% of the way from before
            training to the best end with the fewest workers (`compare`), or none (`train`).
        device: device that trains here: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        store: folder of the store.
        jobs: runs at a time: this process and others beside it, or jobs of ``submit``.
        submit: executor of the runs in place of processes here: ``"slurm"``, ``"local"``,
            ``"dask"``, ``"ray"``, or ``"MODULE:FUNCTION"``, a function that returns an executor.
        runs_per_job: runs that a job of ``submit`` executes, one after the other.
    """

    passes: int = setting(5, at_least=1)
    evaluations: int = setting(10, at_least=1)
    seeds: Any = 3
    guess: float = setting(0.1, above=0.0)
    optimizer: Any = None
    schedule: Any = "constant"
    target: float | None = setting(None)
    device: Any = "cpu"
    store: Any = DEFAULT_STORE
    jobs: int = setting(1, at_least=1)
    submit: str | None = None
    runs_per_job: int = setting(1, at_least=1)


# help() shows a class's own docstring alone, and users write the arguments of all three.
_MEANINGS = "\n".join(f"    {name}: {text}" for name, text in meanings(Settings).items())
Settings.__doc__ = f"Arguments of every call of `import lagbench`.\n\nArgs:\n{_MEANINGS}\n"

USUAL: dict[str, Any] = {
    entry.name: entry.default for entry in fields(Settings) if entry.default is not MISSING
}
"""Default of each setting, as declared in `Settings`."""


def check_module(table: ModuleTable) -> None:
    """Reject a model or loss that are none.

    Raises:
        UserError: see there.
    """
    model, loss = table.model, table.loss
    if not callable(model):
        advice = "allowed: a torch.nn.Module, or a function that makes one"
        raise UserError(f"model: {type(model).__name__}; {advice}")
    if isinstance(loss, type):
        name = loss.__name__
        raise UserError(f"loss: {name} is a class; allowed: an object of it, e.g. {name}()")
    has_parameters = isinstance(loss, nn.Module) and next(loss.parameters(), None) is not None
    if has_parameters and not isinstance(model, nn.Module):
        raise UserError("model, loss: the loss is a module; allowed: the model comes first")
    if not (callable(loss) or loss == OWN_LOSS):
        advice = "allowed: a function, or 'model' for its own"
        raise UserError(f"loss: a {type(loss).__name__}; {advice}")


SCHEDULES: dict[str, Callable[[float], Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "linear": Linear,
    "steps": Steps,
    "warmup": Warmup,
}
"""Schedules by name, with their default settings."""

A_SCHEDULE = "'cosine', 'linear', 'steps', 'warmup', 'constant', a lagbench.Schedule or a function"

_call = partial(call_function, "schedule", end=f"; allowed: {A_SCHEDULE}")


class FunctionSchedule(Schedule, HasIdentity):
    """A user's function from the share of training done to the factor of the learning rate.

    Args:
        rate: learning rate at a factor of 1.
        function: the function; its code is part of a run's identity.
    """

    def __init__(self, rate: float, function: Callable[[float], float]) -> None:
        self.rate, self.function = rate, function

    def factor_at(self, share: float) -> float:
        """See `Schedule`.

        Raises:
            UserError: the function raises an error, or gives no number from 0.
        """
        factor = _call(self.function, share)
        if not (is_finite(factor) and factor >= 0.0):
            reason = f"gives {factor!r} where a share of {share:g} is done"
            name = name_function(self.function)
            raise UserError(f"schedule: {name} {reason}; allowed: a number from 0")
        return float(factor)

    def to_identity(self) -> dict[str, Any]:
        """The learning rate, and the digest of the function."""
        code = digest_of_code(self.function, "schedule")
        return {"is": type(self).__name__, "rate": self.rate, "function": code}


def with_decay(part: Any, weight_decay: float) -> Any:
    """An algorithm or optimizer whose `AdamW` or `Muon` decays parameters beside the gradient.

    Args:
        part: a dataclass; returned itself if it has neither, and no decay is asked for.
        weight_decay: multiple of the parameters.

    Raises:
        UserError: the optimizer has another decay of its own.

    Example:
        >>> with_decay(AdamW(), 0.1).decay
        0.1
    """
    if not weight_decay or not is_dataclass(part):
        return part
    values = {entry.name: getattr(part, entry.name) for entry in fields(part)}
    inner = {name: with_decay(value, weight_decay) for name, value in values.items()}
    changed = {name: value for name, value in inner.items() if value is not values[name]}
    if isinstance(part, AdamW | Muon):
        if part.decay not in (0.0, weight_decay):
            mistake = f"{type(part).__name__} has a decay of {part.decay:g}"
            raise UserError(f"weight_decay: {weight_decay:g}; {mistake}; allowed: one of them")
        changed["decay"] = weight_decay
    return cast(Any, replace)(part, **changed) if changed else part


def schedule_of(asked: Any, rate: float) -> Schedule:
    """The schedule that a user asks for, at a learning rate.

    Args:
        asked: a name of `SCHEDULES`; a `Schedule`, whose rate is replaced; or a function from the
            share of training done, in [0, 1), to the factor of the learning rate.
        rate: the learning rate.

    Raises:
        UserError: it is none of these; schedulers of torch are named.

    Examples:
        >>> schedule_of("cosine", 0.1)
        Cosine(rate=0.1, warmup=0.05, floor=0.0)
    """
    if isinstance(asked, str):
        if asked not in SCHEDULES:
            raise name_error("schedule", asked, SCHEDULES)
        return SCHEDULES[asked](rate)
    if isinstance(asked, Schedule):
        check_settings_class("schedule", asked)
        return cast(Any, replace)(asked, rate=rate)
    if (name := _scheduler_of_torch(asked)) is not None:
        mistake = f"torch's {name} counts the steps of one optimizer; allowed: {A_SCHEDULE}"
        raise UserError(f"schedule: {mistake} of the share of training done")
    if not callable(asked):
        raise UserError(f"schedule: {asked!r}; allowed: {A_SCHEDULE} of the share of training done")
    schedule = FunctionSchedule(rate, cast("Callable[[float], float]", asked))
    schedule.factor_at(0.5)  # a mistake is found before training
    return schedule


STEPS = frozenset(
    ("step", "steps", "epoch", "epochs", "iteration", "iter", "it", "batch", "update")
)
"""Names of an argument that counts, in other libraries."""


def check_share(schedule: Any) -> None:
    """Reject a function with an argument that counts, by its name.

    Raises:
        UserError: it is.
    """
    if not callable(schedule) or isinstance(schedule, Schedule | type):
        return
    try:
        argument = next(iter(signature(cast("Callable[..., Any]", schedule)).parameters), "")
    except (TypeError, ValueError):  # a function of C
        return
    if argument in STEPS:
        mistake = f"a function of {argument!r} is called with the share of training done, in [0, 1)"
        raise UserError(f"schedule: {mistake}; allowed: one of the share, or {A_SCHEDULE}")


def _scheduler_of_torch(schedule: Any) -> str | None:
    """Name of the class of a learning-rate scheduler of torch, of its class, or of a partial."""
    maker = cast("partial[Any]", schedule).func if isinstance(schedule, partial) else schedule
    kind = maker if isinstance(maker, type) else type(maker)
    return kind.__name__ if issubclass(kind, torch.optim.lr_scheduler.LRScheduler) else None


# -- optimizers of torch: an object, a class or a function that makes one ------------------------


OURS = {"NGSGD": "'ngsgd'", "Muon": "'muon'"}
"""Optimizers here, by the class of the torch optimizer."""


class OptimizerChoice(NamedTuple):
    """What a user's optimizer says.

    Attributes:
        descent: the optimizer; None for the algorithm's own.
        rate: its learning rate; None if it says none.
        weight_decay: multiple of the parameters that is added to the gradient.
    """

    descent: str | Descent | None
    rate: float | None = None
    weight_decay: float = 0.0


def optimizer_of(asked: Any, model: object = None) -> OptimizerChoice:
    """The optimizer that a user asks for, with its learning rate.

    Args:
        asked: a name of `OPTIMIZERS`, a `LocalOptimizer`, a `NaturalGradient`, an optimizer of
            torch, its class, or a function of parameters that makes one; None for plain gradients.
        model: what the user trains; the function gets its parameters.

    Raises:
        UserError: an optimizer of torch that is not supported, or none at all; or one of torch that
            has some of the module's parameters only.

    Examples:
        >>> made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.8)
        >>> optimizer_of(made)
        OptimizerChoice(descent=Momentum(momentum=0.8, nesterov=False), rate=0.1, weight_decay=0.0)
    """
    if asked is None or isinstance(asked, str | Descent):
        return OptimizerChoice(asked)
    if isinstance(asked, Optimizer):
        return _convert(asked, _find_trained(model, asked))
    if isinstance(asked, type):
        name = asked.__name__
        if name in OURS:
            _refuse(name)
        if issubclass(asked, LocalOptimizer):
            raise UserError(
                f"optimizer: {name} is a class; allowed: an object of it, e.g. {name}()"
            )
    allowed = f"; allowed: {_list_allowed()}"
    if not callable(cast(object, asked)):
        raise UserError(f"optimizer: {asked!r}{allowed}")
    end = f" when it was called with parameters{allowed}"
    maker = cast("Callable[..., Any]", asked)
    trained = trainable_parameters(model) if isinstance(model, nn.Module) else {}
    parameters = [*trained.values()] or [nn.Parameter(torch.zeros(1))]
    optimizer = call_function("optimizer", maker, parameters, end=end)
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer: a function that gives {optimizer!r}{allowed}")
    is_partial = isinstance(asked, partial)
    has_rate = not is_partial or "lr" in cast("partial[Any]", asked).keywords
    choice = _convert(optimizer, _find_trained(model, optimizer))
    return choice if has_rate and not isinstance(asked, type) else choice._replace(rate=None)


def _find_trained(model: object, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The trained parameters of a module, if the optimizer has them; else none.

    Raises:
        UserError: it has only some of them.
    """
    trained = trainable_parameters(model) if isinstance(model, nn.Module) else {}
    ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [name for name, parameter in trained.items() if id(parameter) not in ids]
    if len(missing) == len(trained):
        return {}
    if missing:
        suffix = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        mistake = f"lacks the model's {missing[0]!r}{suffix}; allowed: all that require a gradient"
        raise UserError(f"optimizer: {mistake} (requires_grad_(False) excludes others)")
    return trained


def _convert(optimizer: Optimizer, trained: Mapping[str, nn.Parameter]) -> OptimizerChoice:
    """Our optimizer with the settings of torch's.

    Args:
        optimizer: the optimizer.
        trained: its parameters by name; empty if they are not those of the user's module.
    """
    kind = type(optimizer)
    if kind is NGSGD or kind.__name__ in OURS:
        _refuse(kind.__name__)
    if kind.__name__ not in LINEAR or getattr(torch.optim, kind.__name__) is not kind:
        _refuse(kind.__name__)
    # Adagrad's state is filled when it is made, with a count of 0.
    if any(float(state.get("step", 1.0)) for state in optimizer.state.values()):
        raise UserError(
            "optimizer: has taken steps; allowed: a fresh one, as its state is not kept"
        )
    if any(vars(optimizer).get(f"_optimizer_step_{moment}_hooks") for moment in ("pre", "post")):
        raise UserError("optimizer: has hooks on its steps, which would not be called")
    if any("initial_lr" in group for group in optimizer.param_groups):
        raise UserError("optimizer: has a scheduler; allowed: schedule=, a run's own")
    groups = [{k: v for k, v in entry.items() if k != "params"} for entry in optimizer.param_groups]
    choices = [_convert_group(optimizer, entry) for entry in groups]
    if all(entry == groups[0] for entry in groups):
        return choices[0]
    if not trained:
        mistake = f"{len(groups)} groups of parameters, which are not those of the model"
        raise UserError(f"optimizer: {mistake}; allowed: a module as model, and its parameters")
    base = next((entry.rate for entry in choices if entry.rate), None)
    if base is None:
        raise UserError("optimizer: all groups of parameters have lr=0; allowed: one above 0")
    group_of = {id(p): n for n, entry in enumerate(optimizer.param_groups) for p in entry["params"]}
    members = tuple(
        Group(
            Momentum(0.0) if entry.descent == PLAIN else cast(LocalOptimizer, entry.descent),
            (entry.rate or 0.0) / base,
            entry.weight_decay,
        )
        for entry in choices
    )
    sizes = tuple(entry.numel() for entry in trained.values())
    return OptimizerChoice(
        Grouped(members, sizes, tuple(group_of[id(p)] for p in trained.values())), base
    )


def _convert_group(optimizer: Optimizer, group: Mapping[str, Any]) -> OptimizerChoice:
    """Our optimizer with the settings of one group of parameters."""
    options = {name: value for name, value in group.items() if name in optimizer.defaults}
    rate, decay = float(options.pop("lr")), float(options.pop("weight_decay"))
    if options.pop("maximize", False):
        raise UserError("optimizer: maximize=True; allowed: False, with a loss of the other sign")
    for name in FLAGS:
        options.pop(name, None)
    descent, decay = _match(type(optimizer).__name__, options, decay)
    return OptimizerChoice(descent, rate, decay)


def _match(name: str, options: dict[str, Any], decay: float) -> tuple[Descent, float]:
    """The optimizer, and the weight decay that is added to the gradient."""
    if name == "SGD" and not options["dampening"]:
        momentum = float(options["momentum"])
        descent = Momentum(momentum, bool(options["nesterov"])) if momentum else PLAIN
        return descent, decay
    beside = options.get("decoupled_weight_decay", name == "AdamW")
    if name in ("Adam", "AdamW") and not options["amsgrad"]:
        (beta1, beta2), epsilon = map(float, options["betas"]), float(options["eps"])
        if beside:
            return AdamW(beta1, beta2, epsilon, decay), 0.0
        return Adam(beta1, beta2, epsilon), decay
    # AdamW's groups have a setting that its constructor does not take.
    accepted = signature(getattr(torch.optim, name)).parameters
    options = {setting: value for setting, value in options.items() if setting in accepted}
    text = json.dumps({**options, "weight_decay": decay}, sort_keys=True)
    return TorchOptimizer(name, text), 0.0


def _refuse(name: str) -> None:
    """Reject an optimizer of torch.

    Raises:
        UserError: always.
    """
    raise UserError(f"optimizer: torch's {name}; allowed: {OURS.get(name) or _list_allowed()}")


def _list_allowed() -> str:
    names = ", ".join(f"'{name}'" for name in OPTIMIZERS)
    return f"{names}; torch.optim's {', '.join(LINEAR)}; a lagbench.LocalOptimizer"
