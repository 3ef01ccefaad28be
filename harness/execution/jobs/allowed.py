"""What `import lagbench` is asked for, refused in one line before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from torch import nn

from harness.algorithms.descent import Descent
from harness.algorithms.schedules import Schedule
from harness.base.errors import UserError
from harness.execution.jobs.rates import TUNING_SEED
from harness.simulator import Cluster, Workload

LONGEST, ADDRESS = 80, " at 0x"
"""Characters of a value that is shown as it is, and what is in the text of one without a name."""


def check_settings(model: object, loss: object, asked: Any) -> None:
    """Refuse settings that no run would.

    Args:
        model: a module, or what makes one.
        loss: a function.
        asked: see `harness.execution.jobs.experiment.Settings`, all of them.

    Raises:
        UserError: a value that is not allowed.
    """
    if not callable(model):
        told = "allowed: a torch.nn.Module, or a function that makes one"
        raise UserError(f"model: {type(model).__name__}; {told}")
    for name, value in {"loss": loss, "schedule": asked.schedule}.items():
        if not callable(value):
            raise UserError(f"{name}: {value!r}; allowed: a function")
    for name in ("minibatch", "passes", "evaluations"):
        check_whole(name, getattr(asked, name))
    told = "'momentum', 'adamw', 'muon', 'ngsgd', a LocalOptimizer or NaturalGradient of lagbench"
    check_kind("optimizer", asked.optimizer, (str, *get_args(Descent), type(None)), told)
    check_kind("store", asked.store, (str, Path), "a folder")
    check_kind("device", asked.device, str, "'cpu', 'cuda' or 'auto'")
    if asked.target is not None:
        check_number("target", asked.target)
    _check_positive("guess", asked.guess)
    _check_seeds(asked.seeds)
    _check_schedule(asked.schedule, asked.guess)


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Refuse a value of a kind that an argument does not take.

    Raises:
        UserError: it is of none of ``kinds``, which ``allowed`` says in words.
    """
    if not isinstance(value, kinds):
        raise UserError(f"{name}: {_shown(value)}; allowed: {allowed}")


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number, or too small.

    Raises:
        UserError: it is.
    """
    if not _whole(value) or value < least:
        raise UserError(f"{name}: {_shown(value)}; allowed: a whole number from {least}")


def check_number(name: str, value: Any) -> None:
    """Refuse what is no finite number.

    Raises:
        UserError: it is.
    """
    if not _finite(value):
        raise UserError(f"{name}: {_shown(value)}; allowed: a number")


def pair_of(name: str, value: Any) -> tuple[float, float]:
    """Two numbers.

    Raises:
        UserError: it is anything else.
    """
    match _listed(value):
        case [int() | float() as low, int() | float() as high]:
            return low, high
        case _:
            raise UserError(f"{name}: {_shown(value)}; allowed: two numbers")


def _check_schedule(make: Any, rate: float) -> None:
    """Refuse what makes no schedule of a rate: the classes of torch's schedulers, for one."""
    told = "allowed: a function of a rate that gives a lagbench.Schedule, e.g. lagbench.Constant"
    try:
        made = make(rate)
    except TypeError as error:
        raise UserError(f"schedule: {_shown(make)} ({error}); {told}") from error
    if not isinstance(made, Schedule):
        raise UserError(f"schedule: {_shown(make)} gives {_shown(made)}; {told}")


def _shown(value: object) -> str:
    """A value in a few words: a short text as it is, of others the kind."""
    text = repr(value)
    if isinstance(value, type) or len(text) > LONGEST or "\n" in text or ADDRESS in text:
        kind = value if isinstance(value, type) else type(value)
        return f"{'' if isinstance(value, type) else 'a '}{kind.__module__}.{kind.__qualname__}"
    return text


def check_charge(asked: Any, given: Mapping[str, Any], machine: Cluster) -> None:
    """Refuse to charge a cluster for what is not there, or for two things at once.

    Args:
        asked: see `check_settings`.
        given: those of them that the user gave.
        machine: the cluster.

    Raises:
        UserError: a value that is not allowed.
    """
    charged = asked.charge_for
    if charged == "cluster" and machine.workload is None:
        told = f"cluster {machine.name!r} has no [workload]"
        raise UserError(f"charge_for: 'cluster'; {told}; allowed: a module or a Workload")
    if not isinstance(charged, nn.Module | Workload | None) and charged != "cluster":
        told = "allowed: a torch.nn.Module, a Workload, or 'cluster'"
        raise UserError(f"charge_for: {charged!r}; {told}")
    for name in ("parameter_bytes", "flops_per_example", "step_seconds"):
        if given.get(name) is not None and isinstance(charged, Workload | str):
            told = "allowed: without charge_for, which says it already"
            raise UserError(f"{name}: {given[name]!r}; {told}")
    for name in ("parameter_bytes", "flops_per_example"):
        value = getattr(asked, name)
        if value is not None and not (_finite(value) and value >= 0.0):
            raise UserError(f"{name}: {value!r}; allowed: a number from 0")
    if asked.flops_per_example is None:
        return
    if "step_seconds" in given:
        raise UserError(f"step_seconds: {asked.step_seconds!r}; allowed: without flops_per_example")
    if all(device.achieved_flops_per_s is None for device in machine.devices.values()):
        told = f"no device of cluster {machine.name!r} has achieved_flops_per_s"
        raise UserError(f"flops_per_example: {told}; allowed: step_seconds")


def check_lists(methods: Any, workers: Any) -> None:
    """Refuse one algorithm, or one number of workers, where several are asked for.

    Raises:
        UserError: it is no list, or not of whole numbers.
    """
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        raise UserError(f"algorithms: {methods!r}; allowed: a list of names or Algorithm objects")
    if not all(_whole(each) and each >= 1 for each in _listed(workers)):
        raise UserError(f"workers: {workers!r}; allowed: a list of whole numbers from 1")


def check_rates(given: Any, methods: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse rates that are none, and to report the seed that rates are chosen with.

    Args:
        given: one for all, one for each method, or None: to be found.
        methods: their labels.
        seeds: that are reported.

    Raises:
        UserError: there are such.
    """
    if given is None and TUNING_SEED in seeds:
        raise UserError(f"seeds: {TUNING_SEED} is what rates are chosen with; allowed: others")
    if not isinstance(given, Mapping):
        return None if given is None else _check_positive("rate", given)
    for method in methods:
        if method not in given:
            raise UserError(f"rates: none for {method}; allowed: one for each algorithm")
        _check_positive(f"rates: {method}", given[method])
    return None


def _check_seeds(asked: Any) -> None:
    if _whole(asked):
        return
    each = _listed(asked)
    if not all(map(_whole, each)) or len(set(each)) < len(each):
        raise UserError(f"seeds: {asked!r}; allowed: how many, or which, each once")


def _listed(value: Any) -> list[Any]:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    return [*cast("Sequence[Any]", value)] if listed else [None]


def _check_positive(name: str, value: Any) -> None:
    if not (_finite(value) and value > 0.0):
        raise UserError(f"{name}: {value!r}; allowed: a number above 0")


def _finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
