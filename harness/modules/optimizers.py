"""Optimizers of torch that a user passes as an object, a class or a function that makes one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.optim import Optimizer

from harness.algorithms.descent import PLAIN, Adam, AdamW, Descent, LocalOptimizer, Momentum
from harness.algorithms.torch_optimizers import FLAGS, LINEAR, Group, Grouped, TorchOptimizer
from harness.base.errors import UserError
from harness.experiment.methods import OPTIMIZERS
from harness.modules.allowed import call_function
from harness.modules.network import trainable_parameters
from harness.natural_gradient import NGSGD

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
