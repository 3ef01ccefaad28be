"""An algorithm with the protocol it trains in, by a short name: ``async``, ``averaging:10``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from harness.algorithms.averaging import BlockMomentum, OuterNesterov
from harness.algorithms.catalogue import (
    Adam,
    AdamW,
    Algorithm,
    AsyncDescent,
    AsyncSgd,
    AveragedSgd,
    GradientAveraging,
    LocalOptimizer,
    ModelAveraging,
    Momentum,
    Muon,
    TorchOptimizer,
)
from harness.algorithms.descent import PLAIN, Descent
from harness.base.errors import UserError, name_error
from harness.base.registry import (
    ALIASES,
    SHORT_NAMES,
    load_plugins,
    names_algorithm,
    resolve_algorithm,
)
from harness.base.settings import build, check_settings_class, dataclasses_below
from harness.experiment.experiment import usual_protocol
from harness.natural_gradient import NaturalGradient
from harness.simulator.protocols.backup_workers import BackupWorkers
from harness.simulator.protocols.contract import TimingProtocol
from harness.simulator.simulation import load_protocol, protocol_named

PLAIN_FORMS = AsyncSgd(), AveragedSgd(), GradientAveraging(), ModelAveraging()

OUTER_FORMS = [ModelAveraging(outer=outer) for outer in (BlockMomentum(), OuterNesterov())]

NAMES: dict[str, Algorithm] = dict(
    zip(SHORT_NAMES, [*PLAIN_FORMS, *OUTER_FORMS, GradientAveraging()], strict=True)
)
"""Algorithms by short name; the class name of any algorithm means that class with defaults."""

ROUNDS_OF = ("averaging", "block-momentum")
"""Names that need a number of local steps: their papers have no usual one."""

USUAL_STEPS = {"diloco": 500}
"""Local steps between rounds where a name has no number: those of the paper (arXiv 2311.08105)."""

OPTIMIZERS: dict[str, Descent] = {
    "sgd": PLAIN,
    "momentum": Momentum(),
    "nesterov": Momentum(nesterov=True),
    "adam": Adam(),
    "adamw": AdamW(),
    "muon": Muon(),
    "ngsgd": NaturalGradient(),
    **{name.lower(): TorchOptimizer(name) for name in ("Adagrad", "RMSprop", "NAdam", "RAdam")},
}
"""Optimizers by name. None of them decays parameters: ``torch.optim.AdamW`` does, by 0.01."""

MOST_STEPS = 2**20


@dataclass(frozen=True)
class Method:
    """A training algorithm with the protocol that times it.

    Attributes:
        label: name in tables and plots, one line.
        algorithm: computes contributions and folds.
        protocol: the timing protocol: order of reads, computations and folds.
    """

    label: str
    algorithm: Algorithm
    protocol: TimingProtocol

    def __post_init__(self) -> None:
        check_settings_class("algorithm", self.algorithm)
        check_settings_class("protocol", self.protocol)
        if not (self.label and self.label.isprintable()):
            raise UserError(f"label: {self.label!r}; allowed: one line of printable characters")


Asked = str | Algorithm | tuple[str | Algorithm, TimingProtocol] | Method
"""A name, with the minibatches of a contribution after a colon (``"averaging:10"``): 1 without
them, but 500 of ``"diloco"``, and `ROUNDS_OF` need a number; ``"backup-workers:2"`` drops two. Or
an algorithm, alone or with its protocol, or a `Method`."""


def several(asked: Sequence[Asked] | Asked) -> Sequence[Asked]:
    """Methods as a list, of which one may come without."""
    if isinstance(asked, list) or (
        isinstance(asked, tuple) and not any(isinstance(part, TimingProtocol) for part in asked)
    ):
        return cast("Sequence[Asked]", asked)
    return [cast(Asked, asked)]


def method_of(asked: Asked, *, needs_steps: bool = True) -> Method:
    """The method that a name, an algorithm, or an algorithm with its protocol describes.

    Args:
        asked: a name, with or without the minibatches of a contribution after a colon; or an
            algorithm, alone or with its protocol: see `Asked`.
        needs_steps: whether names of `ROUNDS_OF` need a number; otherwise it is 1.

    Raises:
        UserError: an unknown name, a number that is none, or a missing one.

    Example:
        >>> method_of("averaging:10").protocol.every
        10
    """
    match asked:
        case Method():
            return asked
        case Algorithm():
            return Method(type(asked).__name__, asked, usual_protocol(asked))
        case (str() | Algorithm() as part, TimingProtocol() as protocol):
            method = method_of(part, needs_steps=False)
            name, algorithm, usual = method.label, method.algorithm, method.protocol
            label = name if type(protocol) is type(usual) else f"{name} {protocol.name}"
            return Method(label, algorithm, protocol)
        case str():
            return _method_named(asked, needs_steps=needs_steps)
        case _:
            value = cast(Any, asked)
    # A class in place of its object is the usual mistake, and Python's message would not say so.
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, type):
            mistake = f"{part.__name__} is a class; allowed: an object of it"
            raise UserError(f"algorithm: {mistake}, e.g. {part.__name__}()")
    allowed = "a name, an Algorithm, such with its TimingProtocol, or a Method"
    raise UserError(f"algorithm: {value!r}; allowed: {allowed}")


def protocol_of(name: str, *, needs_steps: bool = True) -> TimingProtocol:
    """The protocol of that name, or the one that an algorithm's name means (``"ddp"``).

    Args:
        name: of a protocol or its class, or of an algorithm as `method_of` has it.
        needs_steps: see `method_of`.

    Raises:
        UserError: an unknown name, or a missing number.
    """
    try:
        return protocol_named(name)
    except UserError:
        if not names_algorithm(name):
            raise
    return method_of(name, needs_steps=needs_steps).protocol


def _method_named(text: str, *, needs_steps: bool) -> Method:
    called, colon, number = text.partition(":")
    name = resolve_algorithm(called)
    algorithm = _find_algorithm(name)
    if not colon and name in ROUNDS_OF and needs_steps:
        mistake = f"{text!r} has no number of local steps between two rounds"
        raise UserError(f"algorithm: {mistake}; allowed: with one, e.g. '{text}:10'")
    if colon and not number.isdecimal():
        raise UserError(f"algorithm: {text!r}; allowed after the colon: a whole number, from 1")
    steps = int(number) if colon else USUAL_STEPS.get(name, 1)
    if not 1 <= steps <= MOST_STEPS:
        raise UserError(f"algorithm: {text!r}; allowed after the colon: 1 to {MOST_STEPS}")
    backup = name == "backup-workers"
    protocol = BackupWorkers(steps) if backup else usual_protocol(algorithm, steps)
    return Method(text, algorithm, protocol)


def with_optimizer(method: Method, optimizer: str | Descent | None) -> Method:
    """A method with an optimizer for its workers' steps; rates then scale its directions.

    Args:
        method: a method whose algorithm has a ``descent``, or is plain asynchronous SGD.
        optimizer: a name of `OPTIMIZERS`, or an optimizer; None returns the method unchanged.

    Raises:
        UserError: an unknown name, or an algorithm whose workers take no steps of their own.

    Example:
        >>> with_optimizer(method_of("async"), "momentum").algorithm
        AsyncDescent(descent=Momentum(momentum=0.9, nesterov=False))
    """
    if optimizer is None:
        return method
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            raise name_error("optimizer", optimizer, OPTIMIZERS)
        optimizer = OPTIMIZERS[optimizer]
    check_settings_class("optimizer", optimizer)
    algorithm: Any = method.algorithm
    # AsyncSgd itself has no descent to replace; a user's subclass may fold in its own way.
    if type(algorithm) is AsyncSgd:
        return method if optimizer == PLAIN else replace(method, algorithm=AsyncDescent(optimizer))
    settings = {entry.name for entry in fields(algorithm)}
    if "optimizer" in settings and optimizer == PLAIN:
        mistake = f"plain SGD in the server of {method.label}"
        raise UserError(f"optimizer: {mistake}; allowed: another one, or algorithm 'async'")
    if "optimizer" in settings and isinstance(optimizer, LocalOptimizer):
        return replace(method, algorithm=replace(algorithm, optimizer=optimizer))
    # The field `descent` of AveragedSgd is an algorithm, not an optimizer.
    if "descent" not in settings or isinstance(algorithm, AveragedSgd):
        if optimizer == PLAIN:
            return method
        mistake = f"{method.label} takes no steps of an optimizer's"
        raise UserError(f"optimizer: {mistake}; allowed: None, or with async, sync, averaging")
    return replace(method, algorithm=replace(algorithm, descent=optimizer))


def _find_algorithm(name: str) -> Algorithm:
    if name in NAMES:
        return NAMES[name]
    # A plugin's classes are found as subclasses, once they are imported.
    load_plugins("algorithms")
    classes = {kind.__name__: kind for kind in dataclasses_below(Algorithm)}
    if name not in classes:
        try:
            protocol = load_protocol(name).__name__
        except UserError:
            raise name_error("algorithm", name, [*NAMES, *ALIASES, *classes]) from None
        allowed = f"a pair of an algorithm and it, as ('async', {protocol}(...))"
        raise UserError(f"algorithm: {name!r} is a protocol; allowed: {allowed}")
    return build(classes[name], {}, "algorithm", name)
