"""Buffers that training changes, such as the running statistics of BatchNorm: a worker's own.

As a module's parameters become views of a row of the replica stack, these buffers become views of a
row of a `State`, and forward passes change them there. Workers do not exchange them. `deploy` says
which ones a trained model has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from harness.algorithms.contract import concat_rows
from harness.base.errors import UserError
from harness.networks.contract import State

Rule = Literal["mean", "first", "local"]
"""Buffers of a trained model: the mean over workers, the first worker's, or each worker's own."""

Owner = tuple[nn.Module, str]


@dataclass(frozen=True)
class Buffers:
    """The buffers of a module that training changes.

    Args:
        places: each buffer's name, with the modules that have it and its name in them.
    """

    places: tuple[tuple[str, tuple[Owner, ...]], ...]

    @classmethod
    def from_module(cls, module: nn.Module, names: Sequence[str]) -> Buffers:
        """The buffers of these names, as in ``module.named_buffers()``."""
        if not names:
            return cls(())
        owners: dict[int, list[Owner]] = {}
        for submodule in module.modules():
            for key, buffer in submodule.named_buffers(recurse=False):
                owners.setdefault(id(buffer), []).append((submodule, key))
        buffers = dict(module.named_buffers())
        return cls(tuple((name, tuple(owners[id(buffers[name])])) for name in names))

    def fresh(self) -> State:
        """Copies of the module's present buffers, as the state of one replica."""
        return {n: getattr(*owners[0]).detach().clone()[None] for n, owners in self.places}

    def bind(self, state: Mapping[str, Tensor], row: int) -> list[int]:
        """Make the module's buffers views of a row of a state; an empty one leaves them.

        Returns:
            The addresses of the views, for `write_back`.
        """
        views = [state[name][row] for name, _ in self.places] if state else []
        for view, (_, owners) in zip(views, self.places, strict=bool(views)):
            for module, attribute in owners:
                setattr(module, attribute, view)
        return [view.data_ptr() for view in views]

    def write_back(self, state: Mapping[str, Tensor], row: int, views: Sequence[int]) -> None:
        """Copy the buffers into the row that the module has replaced by other tensors.

        Raises:
            UserError: by tensors of another shape or type.
        """
        for view, (name, owners) in zip(views, self.places, strict=bool(views)):
            if (buffer := getattr(*owners[0])) is None or buffer.data_ptr() != view:
                _check_kind(name, state[name][row], buffer)
                state[name][row].copy_(cast(Tensor, buffer))


Versions = Mapping[str, tuple[Tensor, int, Tensor]]
"""Tensors of a module by name, each with its number of writes so far and a copy."""


def get_versions(module: nn.Module) -> Versions:
    """The versions of a module's parameters and buffers now."""
    return {n: (t, t._version, t.detach().clone()) for n, t in _tensors(module).items()}


def find_changed_buffers(module: nn.Module, before: Versions) -> tuple[str, ...]:
    """Names of the buffers of all submodules of which one was written or replaced.

    Values alone would miss an average of the weights that starts from them, which is first written
    unchanged; versions alone what is written by ``.data`` or NumPy.

    Args:
        module: the module.
        before: the versions at an earlier time.

    Raises:
        UserError: a parameter was written, or a buffer has another shape or type than before.
    """
    tensors = _tensors(module)
    written = _compare({name: value for name, (*_, value) in before.items()}, tensors, ())
    written |= {n for n, (t, v, _) in before.items() if tensors[n] is not t or t._version != v}
    for name in sorted(written & dict(module.named_parameters()).keys()):
        mistake = f"forward writes the parameter {name!r}, which all workers share"
        raise UserError(f"model: {mistake}; allowed: a buffer in place of a frozen parameter")
    owners = {name.rpartition(".")[0] for name in written}
    return tuple(n for n, _ in module.named_buffers() if n.rpartition(".")[0] in owners)


def check_constants(module: nn.Module, start: nn.Module, exempt: Iterable[str]) -> None:
    """Refuse a module of which training has written more than it was known to.

    Args:
        module: the trained module.
        start: the module from which it was copied, perhaps on another device.
        exempt: names of its parameters and buffers that training may write.

    Raises:
        UserError: another one has changed.
    """
    for name in sorted(_compare(_tensors(start), _tensors(module), exempt)):
        mistake = f"training has written {name!r}, which the first calls did not"
        raise UserError(f"model: {mistake}; allowed: a buffer that every forward writes")


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def _compare(
    then: Mapping[str, Tensor], after: Mapping[str, Tensor], exempt: Iterable[str]
) -> set[str]:
    """Names of the tensors with other values, except known ones.

    Raises:
        UserError: the shape or type of one has changed.
    """
    for name in [*then, *after]:
        _check_kind(name, then.get(name), after.get(name))
    pairs = [(n, then[n], after[n].to(then[n].device)) for n in then.keys() - set(exempt)]
    dense = [(n, a, b) for n, a, b in pairs if a.layout == torch.strided and not a.is_meta]
    return {n for n, a, b in dense if not ((a == b) | (a != a) & (b != b)).all()}


def _check_kind(name: str, before: Tensor | None, after: Tensor | None) -> None:
    kinds = ["None" if t is None else f"{t.dtype} {list(t.shape)}" for t in (before, after)]
    if kinds[0] != kinds[1]:
        mistake = f"{name!r} is {kinds[0]} at first, and {kinds[1]} after a forward"
        raise UserError(f"model: {mistake}; allowed: a buffer of one shape and type")


def deploy(states: Mapping[int, State], fresh: State, rule: Rule) -> State:
    """The buffers of a trained model: one row, or with ``"local"`` one for each worker.

    Args:
        states: the state of each worker that has contributed.
        fresh: the state before training, for none of them.
        rule: ``"mean"`` over these workers, of numbers that are no floats the first worker's;
            ``"first"``, of the worker with the lowest index; or ``"local"``.
    """
    if not states:
        return fresh
    joint = concat_rows([states[worker] for worker in sorted(states)])
    if rule == "local":
        return joint
    means = rule == "mean"
    return {
        name: _mean(t) if means and t.is_floating_point() else t[:1] for name, t in joint.items()
    }


def _mean(rows: Tensor) -> Tensor:
    return rows.double().mean(0, keepdim=True).to(rows.dtype)


DEPLOYED: dict[Rule, str] = {
    "mean": "a trained model has the mean over workers",
    "first": "a trained model has the first worker's",
    "local": "scores are means over workers",
}


def describe_buffers(names: Sequence[str], rule: Rule) -> str:
    """A line about the buffers that training changes; empty without any."""
    if not names:
        return ""
    suffix = f" and {len(names) - 1} more" if len(names) > 1 else ""
    rules = " or ".join(f"{name!r}" for name in get_args(Rule) if name != rule)
    choice = f"{DEPLOYED[rule]} (buffers={rule!r}; also {rules})"
    return f"model: each worker has buffers of its own ({names[0]}{suffix}); {choice}"
