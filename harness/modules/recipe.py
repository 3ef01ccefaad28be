"""Settings of a training recipe: its schedule, weight decay and optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
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
from harness.base.errors import UserError, name_error
from harness.base.settings import check_settings_class
from harness.experiment.digests import digest_of_code
from harness.experiment.experiment import HasIdentity
from harness.experiment.methods import OPTIMIZERS
from harness.modules.allowed import call_function, is_finite, name_function
from harness.modules.network import trainable_parameters
from harness.natural_gradient import NGSGD

SCHEDULES: dict[str, Callable[[float], Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "linear": Linear,
    "steps": Steps,
    "warmup": Warmup,
}
"""Schedules by name, with their default settings."""

AskedSchedule = str | Schedule | Callable[[float], float]
"""A name of `SCHEDULES`; a `Schedule`; or a function from the share of training done, in [0, 1), to
the factor of the learning rate."""

ALLOWED = "'cosine', 'linear', 'steps', 'warmup', 'constant', a lagbench.Schedule or a function"

_call = partial(call_function, "schedule", end=f"; allowed: {ALLOWED}")


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
        asked: see `AskedSchedule`; the rate of a `Schedule` is replaced.
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
        mistake = f"torch's {name} counts the steps of one optimizer; allowed: {ALLOWED}"
        raise UserError(f"schedule: {mistake} of the share of training done")
    if not callable(asked):
        raise UserError(f"schedule: {asked!r}; allowed: {ALLOWED} of the share of training done")
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
        raise UserError(f"schedule: {mistake}; allowed: one of the share, or {ALLOWED}")


def _scheduler_of_torch(schedule: Any) -> str | None:
    """Name of the class of a learning-rate scheduler of torch, of its class, or of a partial."""
    maker = cast("partial[Any]", schedule).func if isinstance(schedule, partial) else schedule
    kind = maker if isinstance(maker, type) else type(maker)
    return kind.__name__ if issubclass(kind, torch.optim.lr_scheduler.LRScheduler) else None


# -- optimizers of torch: an object, a class or a function that makes one ------------------------


AskedOptimizer = str | Descent | Optimizer | Callable[..., Optimizer] | None
"""A name of `OPTIMIZERS`, a `LocalOptimizer`, a `NaturalGradient`, an optimizer of torch, its
class, or a function of parameters that makes one; None for plain gradients."""

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
        asked: see `AskedOptimizer`.
        model: what the user trains; groups of parameters are those of a module.

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
    optimizer = call_function("optimizer", maker, [nn.Parameter(torch.zeros(1))], end=end)
    if not isinstance(optimizer, Optimizer):
        raise UserError(f"optimizer: a function that gives {optimizer!r}{allowed}")
    is_partial = isinstance(asked, partial)
    has_rate = not is_partial or "lr" in cast("partial[Any]", asked).keywords
    choice = _convert(optimizer, {})
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
