"""Buffers that training changes, such as the running statistics of BatchNorm: a worker's own.

As a module's parameters become views of a row of the replica stack, these buffers become views of a
row of a `State`, and forward passes change them there. Workers do not exchange them. `deploy` says
which ones a trained model has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from harness.algorithms.contract import concat_rows
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
        for each in module.modules():
            for own, buffer in each.named_buffers(recurse=False):
                owners.setdefault(id(buffer), []).append((each, own))
        known = dict(module.named_buffers())
        return cls(tuple((name, tuple(owners[id(known[name])])) for name in names))

    def fresh(self) -> State:
        """Copies of the module's present buffers, as the state of one replica."""
        return {
            name: self._get_buffer(owners).detach().clone()[None] for name, owners in self.places
        }

    def bind(self, state: Mapping[str, Tensor], row: int) -> list[Tensor]:
        """Make the module's buffers views of a row of a state; an empty one leaves them.

        Returns:
            The views, for `write_back`.
        """
        views = [state[name][row] for name, _ in self.places] if state else []
        for view, (_, owners) in zip(views, self.places, strict=bool(views)):
            for module, own in owners:
                setattr(module, own, view)
        return views

    def write_back(self, views: Sequence[Tensor]) -> None:
        """Copy the buffers into their views that the module has replaced by other tensors."""
        for view, (_, owners) in zip(views, self.places, strict=bool(views)):
            if (now := self._get_buffer(owners)) is not view:
                view.copy_(now)

    @staticmethod
    def _get_buffer(owners: Sequence[Owner]) -> Tensor:
        module, own = owners[0]
        return module.get_buffer(own)


Versions = Mapping[str, tuple[Tensor, int]]
"""Each buffer of a module by name, with its number of writes so far."""


def get_versions(module: nn.Module) -> Versions:
    """The versions of a module's buffers now."""
    return {name: (buffer, buffer._version) for name, buffer in module.named_buffers()}


def find_changed_buffers(module: nn.Module, before: Versions) -> tuple[str, ...]:
    """Names of the buffers of all submodules of which one was written or replaced.

    Values tell less: an average of the weights that starts from them is first written unchanged.

    Args:
        module: the module.
        before: the versions of all its buffers at an earlier time.
    """
    now = get_versions(module)
    changed = {
        name
        for name, (buffer, version) in now.items()
        if name not in before or buffer is not before[name][0] or version != before[name][1]
    }
    owners = {name.rpartition(".")[0] for name in changed}
    return tuple(name for name in now if name.rpartition(".")[0] in owners)


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
    several = f" and {len(names) - 1} more" if len(names) > 1 else ""
    others = " or ".join(f"{each!r}" for each in get_args(Rule) if each != rule)
    told = f"{DEPLOYED[rule]} (buffers={rule!r}; also {others})"
    return f"model: each worker has buffers of its own ({names[0]}{several}); {told}"
