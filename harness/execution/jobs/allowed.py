"""What `import lagbench` is asked for, refused in one line before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import nn

from harness.algorithms.local_descent import Descent
from harness.errors import UserError
from harness.execution.jobs.rates import TUNING_SEED
from harness.simulator import Cluster, Workload


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
        if not _whole(value := getattr(asked, name)) or value < 1:
            raise UserError(f"{name}: {value!r}; allowed: a whole number from 1")
    if not isinstance(asked.optimizer, str | Descent | None):
        told = "allowed: 'momentum', 'adamw', 'muon', 'ngsgd', a LocalOptimizer or NaturalGradient"
        raise UserError(f"optimizer: {asked.optimizer!r}; {told}")
    if asked.target is not None and not _finite(asked.target):
        raise UserError(f"target: {asked.target!r}; allowed: a number")
    _check_positive("guess", asked.guess)
    _check_seeds(asked.seeds)


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
    if not all(map(_whole, _listed(workers))):
        raise UserError(f"workers: {workers!r}; allowed: a list of whole numbers")


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
