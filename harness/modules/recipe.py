"""Settings of a training recipe: a schedule by name, object or function, and weight decay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, cast

import torch

from harness.algorithms.descent import AdamW, Muon
from harness.algorithms.schedules import Constant, Schedule
from harness.algorithms.share_schedules import Cosine, Linear, Steps, Warmup
from harness.base.errors import UserError, name_error
from harness.experiment.digests import digest_of_code
from harness.experiment.experiment import HasIdentity
from harness.experiment.methods import check_settings_class
from harness.modules.allowed import call_function, is_finite, name_function

SCHEDULES: dict[str, Callable[[float], Schedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "linear": Linear,
    "steps": Steps,
    "warmup": Warmup,
}
"""Schedules by name, with their default settings."""

AskedSchedule = str | Schedule | Callable[[float], Schedule | float]
"""A name of `SCHEDULES`; a `Schedule`; a function that makes one from a learning rate; or a
function from the share of training done, in [0, 1), to the factor of the learning rate."""

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
    schedule = _call(asked, 0.5)  # a rate as well as a share
    if isinstance(schedule, Schedule):
        schedule = _call(asked, rate)
        check_settings_class("schedule", schedule)
        return schedule
    if not is_finite(schedule):
        is_plain = isinstance(schedule, int | float | str | None)
        value = schedule if is_plain else type(schedule).__name__
        raise UserError(f"schedule: {name_function(asked)} gives {value!r}; allowed: {ALLOWED}")
    return FunctionSchedule(rate, cast("Callable[[float], float]", asked))


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
