"""Natural-gradient SGD for any PyTorch model: a `torch.optim` optimizer with hooks.

Every `torch.nn.Linear` has both of its sides preconditioned as in `layer`; every other
parameter takes a plain SGD step. Nothing else of this project is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor, nn

from harness.errors import UserError, unknown
from harness.natural_gradient.change import (
    PerComponent,
    PerSample,
    Rate,
    limited_,
    per_sample_share,
    scale_,
)
from harness.natural_gradient.estimate import Moment, Preconditioner, Rows
from harness.natural_gradient.joint import Call, together
from harness.natural_gradient.layer import NaturalGradient, Sides
from harness.natural_gradient.precondition import Factor, untouched
from harness.natural_gradient.product import project_

Reduction = Literal["mean", "sum"]


@dataclass
class _Watched:
    """One linear layer, and what its two sides have seen since the last step."""

    module: nn.Linear
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])
    sides: Sides | None = None

    @property
    def appended(self) -> bool:
        return self.module.bias is not None  # pyright: ignore[reportUnnecessaryComparison]

    def watch(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        """A forward hook: keep the inputs, and ask autograd for the outputs' derivatives."""
        del module
        if output.requires_grad:
            x = (args[0] if args else kwargs["input"]).detach()

            def keep(delta: Tensor) -> None:
                self.seen.append((x, delta.detach()))

            output.register_hook(keep)  # pyright: ignore[reportUnknownMemberType]

    def rows(self) -> tuple[Rows, Rows]:
        """Inputs and derivatives of all forward passes, one row a position: ``[1, N, m or n]``."""
        x, delta = (
            torch.cat([side.flatten(0, -2) if side.dim() > 1 else side[None] for side in sides])
            for sides in zip(*self.seen, strict=True)
        )
        dtype = self.module.weight.dtype
        return Rows(x.to(dtype).unsqueeze(0), self.appended), Rows(delta.to(dtype).unsqueeze(0))

    def gradient(self) -> Tensor:
        """A copy, ``[1, n, m]``; with a bias, its last column, ``[1, n, m + 1]``."""
        weight, bias = self.module.weight, self.module.bias
        assert weight.grad is not None
        if not self.appended:
            return weight.grad[None].clone()
        last = torch.zeros_like(bias) if bias.grad is None else bias.grad
        return torch.cat([weight.grad, last.unsqueeze(1)], 1)[None]


class NGSGD(torch.optim.Optimizer):
    """SGD whose linear layers descend along their natural gradient.

    The gradient that is preconditioned is what stands in ``.grad`` at the step, so clipping
    and accumulation work as with any optimizer; weight decay and momentum come after it.

    Args:
        modules: a model, or several modules; all their parameters are optimized.
        lr: the learning rate, as for `torch.optim.SGD`.
        momentum: as for `torch.optim.SGD`, without dampening.
        weight_decay: added to the direction, times the parameter; it is not preconditioned.
        options: both sides' preconditioners and the max-change. `PerComponent.together` counts
            the linear layers.
        reduction: whether the loss is the mean or the sum over rows (frames, positions). It
            sets the scale at which derivatives of minibatches are compared, not the rate.

    Raises:
        UserError: parameters in place of modules, or a value outside its range.
    """

    def __init__(
        self,
        modules: nn.Module | Iterable[nn.Module],
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        options: NaturalGradient | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        roots = [modules] if isinstance(modules, nn.Module) else list(modules)
        given: list[object] = [*roots]  # a user may well pass parameters
        if not given or not all(isinstance(root, nn.Module) for root in given):
            raise UserError("NGSGD: modules are what it needs to see; allowed: a model or modules")
        if reduction not in ("mean", "sum"):
            raise unknown("NGSGD: reduction", str(reduction), ("mean", "sum"))
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, value in defaults.items():
            if not value >= 0.0:
                raise UserError(f"NGSGD: {name} is {value}; allowed: 0 or more")
        super().__init__(list(dict.fromkeys(p for r in roots for p in r.parameters())), defaults)
        self.options, self.reduction = options or NaturalGradient(), reduction
        found = dict.fromkeys(m for r in roots for m in r.modules() if isinstance(m, nn.Linear))
        self._watched = [_Watched(module) for module in found]
        self._hooks = [
            w.module.register_forward_hook(w.watch, with_kwargs=True) for w in self._watched
        ]

    def close(self) -> None:
        """Take the hooks off the model, which then trains as if never watched."""
        for hook in self._hooks:
            hook.remove()
        self._forget()

    def restart(self) -> None:
        """Throw the estimates away, as some recipes do at every epoch."""
        for watched in self._watched:
            watched.sides = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As any optimizer; derivatives seen so far go with the gradients they made."""
        super().zero_grad(set_to_none)
        self._forget()

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient.

        Args:
            closure: evaluates the model again and returns the loss, as in `torch.optim`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        directions = self._directions()
        for group in self.param_groups:
            for p in group["params"]:
                direction = directions.get(p, p.grad)
                if direction is not None:
                    self._move(p, direction, group)
        self._forget()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, the estimates under ``"natural_gradient"``."""
        estimates = {
            i: w.sides.tensors() for i, w in enumerate(self._watched) if w.sides is not None
        }
        return {**super().state_dict(), "natural_gradient": estimates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same model."""
        # torch casts what it finds in "state" to the parameters' precision; the estimates'
        # small matrices are float64 whatever that is.
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "natural_gradient"})
        estimates = state_dict["natural_gradient"]
        for i, watched in enumerate(self._watched):
            device = watched.module.weight.device
            own = {name: t.to(device, copy=True) for name, t in estimates.get(i, {}).items()}
            watched.sides = Sides.from_tensors(own) if own else None

    def _forget(self) -> None:
        for watched in self._watched:
            watched.seen.clear()

    def _move(self, p: Tensor, direction: Tensor, group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            direction = direction.add(p, alpha=group["weight_decay"])
        if group["momentum"]:
            velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
            direction = velocity.mul_(group["momentum"]).add_(direction)
        p.sub_(direction, alpha=group["lr"])

    def _directions(self) -> dict[Tensor, Tensor]:
        """The linear layers' directions, by parameter."""
        rates = {p: group["lr"] for group in self.param_groups for p in group["params"]}
        ready = [w for w in self._watched if w.seen and w.module.weight.grad is not None]
        factors = self._factors(ready)
        made = [
            self._direction(w, rates[w.module.weight], *both)
            for w, both in zip(ready, factors, strict=True)
        ]
        change = self.options.max_change
        if made and isinstance(change, PerComponent):
            norms = torch.stack([norm for _, norm in made])
            norm = cast(Tensor, norms.norm(dim=0))  # pyright: ignore[reportUnknownMemberType]
            share = torch.clamp(change.together / norm, max=1.0)
            for direction, _ in made:
                scale_(direction, None, share)
        directions: dict[Tensor, Tensor] = {}
        for watched, (direction, _) in zip(ready, made, strict=True):
            module = watched.module
            directions[module.weight] = direction[0, :, : module.in_features]
            if watched.appended:
                directions[module.bias] = direction[0, :, -1]
        return directions

    def _direction(
        self, watched: _Watched, rate: Rate, fi: Factor, fo: Factor
    ) -> tuple[Tensor, Tensor]:
        """A layer's ``[1, n, m or m + 1]`` and the norm of its change, ``[1]``."""
        direction = watched.gradient()
        project_(direction, fi, fo)
        scale, change = fi.gain * fo.gain, self.options.max_change
        if isinstance(change, PerSample):
            scale *= per_sample_share(change, fi.squares, fo.squares, scale, rate)
        scale_(direction, None, scale)
        norm = torch.zeros_like(scale)
        if isinstance(change, PerComponent):
            norm = limited_(direction, None, rate, change.each)
        return direction, norm

    def _factors(self, ready: Sequence[_Watched]) -> list[tuple[Factor, Factor]]:
        """Both sides' factors of layers; their estimates move on."""
        rows = [watched.rows() for watched in ready]
        sides = [w.sides or self._start(*both) for w, both in zip(ready, rows, strict=True)]
        inputs = _one_side(
            self.options.inputs,
            [(known.inputs, x, 1.0) for known, (x, _) in zip(sides, rows, strict=True)],
        )
        outputs = _one_side(
            self.options.outputs,
            [
                (known.outputs, ends, float(ends.x.shape[1]) if self.reduction == "mean" else 1.0)
                for known, (_, ends) in zip(sides, rows, strict=True)
            ],
        )
        for watched, (i, _), (o, _) in zip(ready, inputs, outputs, strict=True):
            watched.sides = Sides(i, o)
        return [(fi, fo) for (_, fi), (_, fo) in zip(inputs, outputs, strict=True)]

    def _start(self, *both: Rows) -> Sides:
        options: Sequence[Preconditioner | None] = (self.options.inputs, self.options.outputs)
        return Sides(
            *(
                how and how.start(1, rows.width, rows.x.dtype, rows.x.device)
                for how, rows in zip(options, both, strict=True)
            )
        )


def _one_side(
    options: Preconditioner | None, calls: Sequence[tuple[Moment | None, Rows, float]]
) -> Sequence[tuple[Moment | None, Factor]]:
    """The same side of layers: preconditioned, or left as it is."""
    if options is None:
        return [(None, untouched(rows)) for _, rows, _ in calls]
    return together([Call(m, rows, scale) for m, rows, scale in calls if m is not None], options)
