"""An instance of every algorithm, and every protocol's settings, that can train.

Classes are found where run files find them: below `Algorithm`, `LocalOptimizer` and
`TimingProtocol`, and among the coders. One that is added is tried with its defaults; where it has
none, or where a setting takes another path, its settings stand here.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, get_args

from harness.algorithms.averaging import BlockMomentum, OuterNesterov
from harness.algorithms.catalogue import (
    AdamW,
    Algorithm,
    LocalOptimizer,
    ModelAveraging,
    Momentum,
    TopK,
)
from harness.algorithms.compression import Coder
from harness.algorithms.descent import PLAIN
from harness.base.settings import dataclasses_below
from harness.natural_gradient import NaturalGradient, PerSample, Preconditioner
from harness.simulator.protocols.contract import TimingProtocol

WORKERS = 4
EVERY_DESCENT = {"AsyncDescent", "ModelAveraging", "StreamingDiLoCo", "EagerDiLoCo"}
NATURAL = NaturalGradient(Preconditioner(2, 2), None, PerSample(0.1))
"""One side is enough to remember, and half of the work."""
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "AsyncSgd": ({}, {"scaling": "memory_of_one"}),
    "ClippedSgd": ({"limit": 0.1},),
    "DelayCompensated": ({"strength": 4.0, "history": 256},),
    "DelayedNesterov": ({"every": 3, "spread": 0.1},),
    "EagerDiLoCo": ({"workers": WORKERS},),
    "Easgd": ({}, {"rounds": True, "beta": 0.4}),
    "ElasticDiLoCo": ({"fragments": 2, "quorum": 2, "mixing": 0.25},),
    "FedBuff": ({"buffer": 3},),
    "ModelAveraging": ({}, {"outer": BlockMomentum()}, {"outer": OuterNesterov()}),
    "Ringmaster": ({"most": 3},),
    "StreamingDiLoCo": ({"fragments": 3, "mixing": 0.5},),
    "Averaging": ({"every": 2}, {"every": 2, "overlap": True}),
    "BackupWorkers": ({"backups": 1},),
    "ParameterServer": (
        {},
        {"push_every": 2},
        {"depth": 3},
        {"bound": 1},
        {"queue": 1, "push_every": 3},
    ),
}


OF_ONE_MODEL = {"Group", "Grouped"}
"""Settings with the sizes of one model's tensors: `tests/harness/modules/test_optimizers.py`."""


def own(kind: type[Any]) -> list[type[Any]]:
    """The dataclasses below a class that come with the harness, by name."""
    found = (each for each in dataclasses_below(kind) if each.__module__.startswith("harness."))
    found = (each for each in found if each.__name__ not in OF_ONE_MODEL)
    return sorted(found, key=lambda each: each.__name__)


def instances(kind: type[Any]) -> Iterator[Any]:
    """Each class below ``kind`` with its defaults, or with the settings that stand here."""
    for each in own(kind):
        yield from instances_of(each)


def instances_of(kind: type[Any]) -> Iterator[Any]:
    """A class with its defaults, or with the settings that stand here."""
    for settings in SETTINGS.get(kind.__name__, ({},)):
        yield kind(**settings)


def algorithms() -> dict[str, Algorithm]:
    """Every algorithm by name: with local optimizers where it has one, and every coder.

    Each kind of memory of its own (`EVERY_DESCENT`) meets all of them, the others meet two, and one
    with further settings.
    """
    descents = [PLAIN, NATURAL, *instances(LocalOptimizer)]
    found: list[Algorithm] = []
    for base in instances(Algorithm):
        names = {entry.name for entry in fields(base)}
        if "coder" in names:
            inner = ModelAveraging(Momentum())  # no ties: AdamW moves all alike at first
            coders = [TopK(0.5), *(each() for each in get_args(Coder) if each is not TopK)]
            found += [replace(base, coder=coder) for coder in coders]
            found += [replace(base, coder=TopK(0.5), averaging=inner)]
        elif "optimizer" in names:
            found += [replace(base, optimizer=each) for each in instances(LocalOptimizer)]
        elif isinstance(getattr(base, "descent", None), NaturalGradient | LocalOptimizer):
            is_first = base == type(base)(**SETTINGS.get(type(base).__name__, ({},))[0])
            in_full = is_first and type(base).__name__ in EVERY_DESCENT
            theirs = descents if in_full else [NATURAL, AdamW()] if is_first else [AdamW()]
            found += [replace(base, descent=descent) for descent in theirs]
        else:
            found.append(base)
    return {repr(each): each for each in found}


def protocols() -> dict[str, TimingProtocol]:
    """Every protocol that hands out data, by its settings."""
    found = [each for each in instances(TimingProtocol) if each.handing(WORKERS) is not None]
    return {repr(each): each for each in found}
