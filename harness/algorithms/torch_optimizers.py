"""Optimizers of ``torch.optim`` as local optimizers, each worker with a state of its own.

`TorchOptimizer` runs torch's own step at a learning rate of 1 on parameters of zero: the negative
of the result is the direction, since these optimizers are linear in the learning rate and work
element by element. Weight decay, which depends on the parameters, is added as torch defines it for
the class. The result is torch's up to rounding. `Grouped` has groups of parameters, as in
``AdamW([{"params": base, "lr": 1e-4}, {"params": head}])``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, cast

import torch
from torch import Tensor, nn

from harness.algorithms.descent import LocalOptimizer, State
from harness.base.errors import UserError, name_error
from harness.base.settings import setting
from harness.networks.contract import Network, RuledNetwork
from harness.networks.unused import Unused, fill_unused_

LINEAR = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
"""Classes of ``torch.optim`` whose steps are linear in the learning rate, element by element."""

FLAGS = ("capturable", "differentiable", "foreach", "fused", "maximize")
"""Settings of torch's optimizers that change no result, or would turn its sign."""

BEGUN = "begun"
"""Name of the state that says whether a worker has taken a step, ``[W]``."""


@dataclass(frozen=True)
class TorchOptimizer(LocalOptimizer):
    """A class of ``torch.optim``, with the settings that it has there.

    Args:
        name: one of Adadelta, Adagrad, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, SGD.
        settings: its settings without the learning rate, as JSON.

    Examples:
        >>> TorchOptimizer("RMSprop", '{"alpha": 0.9}').name
        'RMSprop'
    """

    name: str = setting("Adam", one_of=LINEAR)
    settings: str = "{}"

    def __post_init__(self) -> None:
        if self.name not in LINEAR:
            raise name_error("optimizer", self.name, LINEAR)
        if self.settings == "{}":  # torch's own; to make one imports its compiler, for a second
            return
        try:
            self._make(torch.zeros(1))
        except (TypeError, ValueError) as error:
            reason = f"torch.optim.{self.name}: {error}"
            raise UserError(f"optimizer: {self.settings!r}; {reason}") from error

    def start(self, replicas: Tensor) -> State:
        """No step taken; the names and shapes of the state are those after a step of torch's."""
        row = torch.zeros_like(replicas[0])
        optimizer, parameter = self._make(row)
        parameter.grad = torch.zeros_like(row)
        cast(Any, optimizer).step()
        shapes = self._tensors(optimizer, parameter)
        workers = len(replicas)
        state = {name: tensor.new_zeros(workers, *tensor.shape) for name, tensor in shapes.items()}
        return {BEGUN: torch.zeros(workers, dtype=torch.float64, device=row.device), **state}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        del network
        decay, beside = self._decay()
        flags = cast("list[float]", state[BEGUN].tolist())  # pyright: ignore[reportUnknownMemberType]
        columns = {name: rows for name, rows in state.items() if name != BEGUN}
        for worker, (gradient, theta) in enumerate(zip(gradients, replicas, strict=True)):
            optimizer, parameter = self._make(torch.zeros_like(theta))
            if flags[worker]:
                entries = {name: rows[worker] for name, rows in columns.items()}
                cast(Any, optimizer).state[parameter].update(entries)
            coupled = decay and not beside
            parameter.grad = gradient.add(theta, alpha=decay) if coupled else gradient
            cast(Any, optimizer).step()
            for name, tensor in self._tensors(optimizer, parameter).items():
                columns[name][worker].copy_(tensor)
            gradient.copy_(parameter.data.neg())
            if decay and beside:
                gradient.add_(theta, alpha=decay)
        state[BEGUN].fill_(1.0)

    def _make(self, start: Tensor) -> tuple[torch.optim.Optimizer, nn.Parameter]:
        """Torch's optimizer of one vector, at a learning rate of 1 and without decay."""
        parameter = nn.Parameter(start)
        options = {**json.loads(self.settings), "weight_decay": 0.0}
        return getattr(torch.optim, self.name)([parameter], lr=1.0, **options), parameter

    def _decay(self) -> tuple[float, bool]:
        """Weight decay, and whether it is beside the gradient and not added to it."""
        options = json.loads(self.settings)
        beside = self.name == "AdamW" or options.get("decoupled_weight_decay", False)
        usual = 0.01 if self.name == "AdamW" else 0.0
        return float(options.get("weight_decay", usual)), beside

    @staticmethod
    def _tensors(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> State:
        """The state of a parameter that torch keeps in tensors."""
        entries = cast(Any, optimizer).state[parameter]
        return {name: entry for name, entry in entries.items() if isinstance(entry, Tensor)}


# -- groups of parameters -----------------------------------------------------------------------

Span = tuple[int, int]
"""First column of adjacent parameters, and the column after the last."""


@dataclass(frozen=True)
class Group:
    """A group of parameters.

    Args:
        optimizer: makes its directions, element by element.
        factor: its learning rate over that of the run.
        decay: multiple of the parameters that is added to their gradients.
    """

    optimizer: LocalOptimizer
    factor: float = 1.0
    decay: float = 0.0


@dataclass(frozen=True)
class Grouped(LocalOptimizer):
    """The direction of each group is that of its optimizer, times its factor.

    A step of a run at the rate r is so one at ``r factor`` for each group, at every local step and
    every fold, also where r follows a schedule.

    Args:
        groups: the groups.
        sizes: number of elements of each trained tensor, in the model's order.
        members: number of the group of each of these tensors.
    """

    groups: tuple[Group, ...]
    sizes: tuple[int, ...]
    members: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse tensors without a group.

        Raises:
            UserError: ``members`` has not one group of ``groups`` for each tensor of ``sizes``.
        """
        count = len(self.groups)
        if len(self.members) != len(self.sizes) or not all(0 <= n < count for n in self.members):
            allowed = f"one number from 0 to {count - 1} for each of {len(self.sizes)} sizes"
            raise UserError(f"members: {list(self.members)}; allowed: {allowed}")

    def start(self, replicas: Tensor) -> State:
        """The states of all groups, named ``GROUP.NAME``.

        Raises:
            UserError: the tensors are not those of the model.
        """
        if sum(self.sizes) != replicas.shape[1]:
            allowed = f"tensors of {replicas.shape[1]:,} elements together, as the model has"
            raise UserError(f"sizes: {list(self.sizes)}; allowed: {allowed}")
        return {
            f"{number}.{name}": tensor
            for number, group, spans in self._each()
            for name, tensor in group.optimizer.start(_gather(replicas, spans)).items()
        }

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        self.direct_used_(gradients, replicas, state, network, [])

    def direct_used_(
        self, gradients: Tensor, replicas: Tensor, state: State, network: Network, unused: Unused
    ) -> None:
        """See `LocalOptimizer`."""
        for number, group, spans in self._each():
            begin = f"{number}."
            names = [name for name in state if name.startswith(begin)]
            substate = {name.removeprefix(begin): state.pop(name) for name in names}
            places = [place for place, member in enumerate(self.members) if member == number]
            missing = [[places.index(place) for place in row if place in places] for row in unused]
            directions, parameters = _gather(gradients, spans), _gather(replicas, spans)
            if group.decay:
                decayed = parameters.clone() if any(missing) else parameters
                fill_unused_(decayed, [self.sizes[place] for place in places], missing, 0.0)
                directions.add_(decayed, alpha=group.decay)
            inner = network.part(places) if isinstance(network, RuledNetwork) else network
            group.optimizer.direct_used_(directions, parameters, substate, inner, missing)
            state |= {begin + name: tensor for name, tensor in substate.items()}
            widths = [end - start for start, end in spans]
            parts = directions.mul_(group.factor).split_with_sizes(widths, 1)
            for (start, end), part in zip(spans, parts, strict=True):
                gradients[:, start:end] = part

    def _each(self) -> Iterator[tuple[int, Group, list[Span]]]:
        """Each group with its number and the columns of its parameters."""
        ends = list(accumulate(self.sizes))
        tensors = zip(self.members, [0, *ends], ends, strict=False)
        runs = [(member, list(run)) for member, run in groupby(tensors, lambda tensor: tensor[0])]
        for number, group in enumerate(self.groups):
            spans = [(run[0][1], run[-1][2]) for member, run in runs if member == number]
            if spans:
                yield number, group, spans


def _gather(stack: Tensor, spans: Sequence[Span]) -> Tensor:
    """A copy of some columns of ``[W, P]``."""
    return torch.cat([stack[:, start:end] for start, end in spans], 1)
