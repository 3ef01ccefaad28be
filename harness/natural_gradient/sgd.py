"""Natural-gradient SGD for any PyTorch model: a `torch.optim` optimizer with hooks.

Every `torch.nn.Linear`, `Conv1d` and `Conv2d` has both of its sides preconditioned as in
`layer_hooks`; every other parameter takes a plain SGD step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from harness.base.errors import UserError, name_error
from harness.natural_gradient.layer import NaturalGradient, Sides
from harness.natural_gradient.layer_hooks import LayerHook, Reduction, is_affine, naturalise_


class NGSGD(torch.optim.Optimizer):
    """SGD with natural-gradient steps for linear and convolutional layers.

    Each step preconditions ``.grad``, so clipping and accumulation work as with any optimizer;
    weight decay and momentum are applied afterwards.

    Args:
        modules: a model, or several modules; all their parameters are optimized.
        lr: the learning rate, as for `torch.optim.SGD`.
        momentum: as for `torch.optim.SGD`, without dampening.
        weight_decay: factor of the parameter that is added to the direction, not preconditioned.
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
        items: list[object] = [*roots]  # a user may well pass parameters
        if not items or not all(isinstance(root, nn.Module) for root in items):
            raise UserError("NGSGD: it needs modules, not parameters; allowed: a model or modules")
        if reduction not in ("mean", "sum"):
            raise name_error("NGSGD: reduction", str(reduction), ("mean", "sum"))
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, value in defaults.items():
            if not value >= 0.0:
                raise UserError(f"NGSGD: {name} is {value}; allowed: 0 or more")
        super().__init__(list(dict.fromkeys(p for r in roots for p in r.parameters())), defaults)
        self.options = options or NaturalGradient()
        self.reduction: Reduction = reduction
        layers = dict.fromkeys(m for r in roots for m in r.modules() if is_affine(m))
        self._watched = [LayerHook(cast(Any, module)) for module in layers]
        self._sides: dict[int, Sides] = {}
        self._hooks = [
            w.module.register_forward_hook(w.watch, with_kwargs=True) for w in self._watched
        ]

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()
        self._forget()

    def restart(self) -> None:
        """Discard the estimates, as some recipes do at every epoch."""
        self._sides.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients as any optimizer does, and the rows recorded for them."""
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
        estimates = {place: sides.tensors() for place, sides in sorted(self._sides.items())}
        return {**super().state_dict(), "natural_gradient": estimates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict` of the same model."""
        # torch casts what it finds in "state" to the parameters' precision; the estimates'
        # small matrices are float64 whatever that is.
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "natural_gradient"})
        estimates = state_dict["natural_gradient"]
        self._sides.clear()
        for i, watched in enumerate(self._watched):
            device = watched.module.weight.device
            state = {name: t.to(device, copy=True) for name, t in estimates.get(i, {}).items()}
            if state:
                self._sides[i] = Sides.from_tensors(state)

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
        """The natural-gradient directions of affine layers, by parameter."""
        rates = {p: group["lr"] for group in self.param_groups for p in group["params"]}
        ready = {
            place: watched
            for place, watched in enumerate(self._watched)
            if watched.seen and watched.module.weight.grad is not None
        }
        gradients = [_copy_gradients(watched.module) for watched in ready.values()]
        estimates = [self._sides.get(place) or w.start(self.options) for place, w in ready.items()]
        at = [rates[watched.module.weight] for watched in ready.values()]
        layers = list(ready.values())
        after = naturalise_(self.options, layers, gradients, estimates, at, self.reduction)
        self._sides |= dict(zip(ready, after, strict=True))
        directions: dict[Tensor, Tensor] = {}
        for watched, (weight, bias) in zip(layers, gradients, strict=True):
            directions[watched.module.weight] = weight
            if bias is not None:
                directions[cast(Tensor, watched.module.bias)] = bias
        return directions


def _copy_gradients(module: nn.Linear | nn.Conv1d | nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """Copies of the gradients of a layer's weight and bias; zeros for a bias without one."""
    weight, bias = module.weight.grad, cast("Tensor | None", module.bias)
    assert weight is not None
    if bias is None:
        return weight.clone(), None
    return weight.clone(), torch.zeros_like(bias) if bias.grad is None else bias.grad.clone()
