"""Local descent: a worker's steps between two folds, by any local optimizer.

All algorithms with local steps take them here, by natural gradient, which needs the inputs and
output derivatives of every layer, or by a `LocalOptimizer`, which needs only the gradient.

Learning rates here multiply the **mean** gradient of a minibatch, as in paper 2. A schedule's rate
is used unchanged; multiply it yourself for rates proportional to the number of workers.

- `Momentum`: Polyak 1964; Nesterov's as in Sutskever et al. 2013, in the form of
  ``torch.optim.SGD``.
- `Adam` (arXiv 1412.6980); `AdamW`: Loshchilov and Hutter (arXiv 1711.05101), algorithm 2.
- `Muon`: the momentum of every weight matrix, orthogonalised. Jordan et al. 2024
  (kellerjordan.github.io/posts/muon); directions are scaled to the size of AdamW's as in Liu et
  al. (arXiv 2502.16982), section 2.2, so that one learning rate serves weights and biases.
- Natural gradient of a user's module: hooks on its affine layers, plain gradients for the rest.
  Memories have the same names as for a network of affine layers only.

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor

from harness.algorithms.contract import Memory, check_methods, concat_rows, rows_of
from harness.algorithms.schedules import rates_of
from harness.base.errors import UserError
from harness.base.settings import setting
from harness.natural_gradient import NaturalGradient
from harness.natural_gradient.layer import Sides, part, state_from_tensors, state_tensors
from harness.natural_gradient.layer_hooks import HookableNetwork, naturalise_
from harness.networks.contract import LayeredNetwork, Minibatch, Network, RuledNetwork
from harness.networks.unused import Unused, columns_of

State = dict[str, Tensor]
"""State of an optimizer, by name; every tensor has a row for each worker."""


class LocalOptimizer(ABC):
    """Base class of optimizers of local steps; a run file can name any dataclass of this kind."""

    def __init_subclass__(cls) -> None:
        """Reject a class with a method of other parameters."""
        super().__init_subclass__()
        arguments = "gradients, replicas, state, network"
        check_methods(cls, "optimizer", start="replicas", direct_=arguments)

    @abstractmethod
    def start(self, replicas: Tensor) -> State:
        """The initial state.

        Args:
            replicas: ``[W, P]``, initial parameters of the workers.

        Returns:
            Tensors by name, each with a row for each worker; executors store and restore them.
        """
        ...

    @abstractmethod
    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """Turn gradients into directions ``[W, P]``, in place: a step is ``theta -= rate * out``.

        Args:
            gradients: of the mean loss; overwritten with the directions.
            replicas: parameters at which the gradients were taken; not changed.
            state: changed in place.
            network: gives views of its weight matrices.
        """
        ...

    def direct_used_(
        self, gradients: Tensor, replicas: Tensor, state: State, network: Network, unused: Unused
    ) -> None:
        """`direct_`, except for parameters without gradient: torch's optimizers leave them alone.

        Their directions are zero and their state stays. From the first such step on, each tensor
        counts its own steps: a state ``[W]`` becomes one ``[W, T]`` for T parameter tensors, named
        `EACH`, and `direct_` gets the tensors with equal counts together.
        """
        if not any(unused) and not any(name.startswith(EACH) for name in state):
            self._direct_all_(gradients, replicas, state, network)
            return
        assert isinstance(network, RuledNetwork)  # others have gradients of all parameters
        sizes, shape = network.sizes, gradients.shape
        for name in [name for name, tensor in state.items() if tensor.dim() == 1]:
            state[EACH + name] = state.pop(name).unsqueeze(1).repeat(1, len(sizes))
        counts = [name for name in state if name.startswith(EACH)]
        for worker, missing in enumerate(unused or [list[int]()] * len(gradients)):
            row, alike = slice(worker, worker + 1), dict[tuple[float, ...], list[int]]()
            ages = cast("list[list[float]]", [state[name][worker].tolist() for name in counts])  # pyright: ignore[reportUnknownMemberType]
            steps = zip(*ages, strict=True) if counts else [()] * len(sizes)
            for number, count in enumerate(steps):
                if number not in missing:
                    alike.setdefault(count, []).append(number)
            for numbers in alike.values():
                columns = columns_of(sizes, numbers)
                places = {name: columns if t.shape == shape else ... for name, t in state.items()}
                places |= dict.fromkeys(counts, numbers)
                inner = {name: state[name][row, place] for name, place in places.items()}
                inner |= {name.removeprefix(EACH): inner.pop(name)[:, 0] for name in counts}
                directions = gradients[row, columns]
                self._direct_all_(directions, replicas[row, columns], inner, network.part(numbers))
                gradients[row, columns] = directions
                inner |= {name: inner[name.removeprefix(EACH)].unsqueeze(1) for name in counts}
                for name, place in places.items():
                    state[name][row, place] = inner[name]

    def _direct_all_(
        self, gradients: Tensor, replicas: Tensor, state: State, network: Network
    ) -> None:
        """`direct_`.

        Raises:
            UserError: it returns something, as a reader of torch's rules may do.
        """
        answer: object = self.direct_(gradients, replicas, state, network)
        if answer is not None and answer is not gradients:
            reason = f"direct_ of {type(self).__name__} returns a {type(answer).__name__}"
            raise UserError(f"optimizer: {reason}; allowed: None, with the gradients overwritten")


EACH = "each."
"""Prefix of the names of an optimizer's state with a value for each parameter tensor."""

PLAIN = NaturalGradient(inputs=None, outputs=None)
"""Plain stochastic gradient descent, without a limit of its steps."""

Descent = NaturalGradient | LocalOptimizer
"""Optimizers of local steps."""

Restart = Literal["never", "pass", "round"]
"""Reset of a worker's estimates: never, before each pass over the data, or before each round."""

OPTIMIZER = "optimizer."
"""Prefix of the names of an optimizer's state in a memory."""


def local_steps(
    descent: Descent,
    network: Network,
    stack: Tensor,
    minibatches: Sequence[Minibatch],
    rate: float,
    memory: Memory,
    restart: Restart = "never",
) -> Tensor:
    """Take one step of every row of ``stack [W, P]`` for each minibatch, with workers' memories.

    Args:
        descent: the optimizer.
        network: the network that is trained.
        stack: parameters, changed in place.
        minibatches: one for each step, each with W minibatches.
        rate: learning rate for the mean gradient; a `StepRates` has one for each step.
        memory: the workers' memories, changed in place.
        restart: reset of the memories: ``"never"``, before each ``"pass"`` over the data, or before
            each ``"round"``.

    Returns:
        The losses ``[W]``, summed over all frames.
    """
    direct = _select_direction(descent, network, stack, memory, restart)
    losses, direction = stack.new_zeros(len(stack)), torch.empty_like(stack)
    for minibatch, lr in zip(minibatches, rates_of(rate, len(minibatches)), strict=True):
        losses += direct(minibatch, direction, lr)
        stack.sub_(direction, alpha=lr)
    return losses


def local_direction(
    descent: Descent,
    network: Network,
    stack: Tensor,
    minibatches: Sequence[Minibatch],
    rate: float,
    memory: Memory,
    restart: Restart = "never",
) -> tuple[Tensor, Tensor]:
    """The mean direction of several minibatches, all at the parameters ``stack [W, P]``.

    Args:
        descent: the optimizer.
        network: the network that is trained.
        stack: parameters, not changed.
        minibatches: each with W minibatches.
        rate: learning rate of the coming step; natural gradient limits its length.
        memory: the workers' memories, changed in place.
        restart: reset of the memories: ``"never"``, before each ``"pass"`` over the data, or before
            each ``"round"``.

    Returns:
        ``[W, P]``, and the losses ``[W]``, summed over all frames.
    """
    direct = _select_direction(descent, network, stack, memory, restart)
    mean = torch.empty_like(stack)
    return mean, mean_over(lambda batch, out: direct(batch, out, rate), minibatches, mean)


def mean_over(
    direct: Callable[[Minibatch, Tensor], Tensor], minibatches: Sequence[Minibatch], out: Tensor
) -> Tensor:
    """Write the mean of the minibatches' directions or gradients to ``out [W, P]``.

    Args:
        direct: writes the vectors ``[W, P]`` of one minibatch and returns its losses ``[W]``.
        minibatches: all at the same parameters.
        out: overwritten.

    Returns:
        The losses ``[W]``, summed over all frames.
    """
    vectors, losses = torch.empty_like(out), out.new_zeros(len(out))
    out.fill_(-0.0)  # which keeps the marks of `harness.networks.unused`
    for minibatch in minibatches:
        losses += direct(minibatch, vectors)
        out.add_(vectors, alpha=1.0 / len(minibatches))
    return losses


def mean_gradient(network: Network, stack: Tensor, minibatch: Minibatch, out: Tensor) -> Tensor:
    """Write each worker's mean gradient to ``out [W, P]``; returns the summed losses ``[W]``."""
    losses = network.gradient(stack, *minibatch, out)
    out.div_(minibatch.targets.shape[1])
    return losses


def _select_direction(
    descent: Descent, network: Network, stack: Tensor, memory: Memory, restart: Restart
) -> Callable[[Minibatch, Tensor, float], Tensor]:
    """A function that writes one minibatch's directions to ``out [W, P]`` and returns its losses.

    Raises:
        UserError: natural gradient for a network without access to its layers.
        ValueError: the memory belongs to another number of workers.
    """
    if isinstance(descent, LocalOptimizer):
        state = _optimizer_state(descent, stack, memory, restart)
        return partial(_compute_directions, descent, network, stack, state, memory)
    if descent == PLAIN:
        return lambda minibatch, out, rate: mean_gradient(network, stack, minibatch, out)
    is_fresh = _is_restart_due(memory, restart) or not part(memory.tensors, "0")
    if not isinstance(network, RuledNetwork) and isinstance(network, LayeredNetwork):
        sizes = network.layout.sizes
        if is_fresh:
            state = descent.start(sizes, len(stack), stack.dtype, stack.device)
            memory.tensors |= state_tensors(state)
        _check(memory, len(stack))
        sides = state_from_tensors(memory.tensors, len(sizes) - 1)
        return partial(_direct_layers, descent, network, stack, memory, sides)
    if not isinstance(network, HookableNetwork):
        raise UserError("descent: natural gradient needs a network with accessible layers")
    if is_fresh:
        memory.tensors |= initial_estimates(descent, network, len(stack))
    _check(memory, len(stack))
    return partial(direction_of_module, descent, network, stack, memory)


def _direct_layers(
    descent: NaturalGradient,
    network: LayeredNetwork,
    stack: Tensor,
    memory: Memory,
    sides: list[Sides],
    minibatch: Minibatch,
    out: Tensor,
    rate: float,
) -> Tensor:
    """Write one minibatch's directions to ``out [W, P]``; returns the summed losses ``[W]``."""
    share = 1.0 / minibatch.targets.shape[1]
    losses, sides[:] = descent.direction(network, stack, minibatch, sides, rate, out, share)
    memory.tensors |= state_tensors(sides)
    return losses


def _compute_directions(
    descent: LocalOptimizer,
    network: Network,
    stack: Tensor,
    state: State,
    memory: Memory,
    minibatch: Minibatch,
    out: Tensor,
    rate: float,
) -> Tensor:
    """Write one minibatch's directions to ``out [W, P]``; returns the summed losses ``[W]``."""
    del rate
    losses, names = mean_gradient(network, stack, minibatch, out), [*state]
    unused = network.unused if isinstance(network, RuledNetwork) else []
    descent.direct_used_(out, stack, state, network, unused)
    if state.keys() != set(names):  # parameters have begun to count by themselves
        for name in names:
            del memory.tensors[OPTIMIZER + name]
        memory.tensors |= {OPTIMIZER + name: tensor for name, tensor in state.items()}
    return losses


def _optimizer_state(
    descent: LocalOptimizer, stack: Tensor, memory: Memory, restart: Restart
) -> State:
    """The workers' optimizer state, from their memory or fresh; it is stored in their memory."""
    names = [name for name in memory.tensors if name.startswith(OPTIMIZER)]
    if not names or _is_restart_due(memory, restart):
        state = _start_optimizer(descent, stack)
        memory.tensors |= {OPTIMIZER + name: tensor for name, tensor in state.items()}
        return state
    _check(memory, len(stack))
    return {name.removeprefix(OPTIMIZER): memory.tensors[name] for name in names}


def _start_optimizer(descent: LocalOptimizer, stack: Tensor) -> State:
    """The initial state of an optimizer.

    Raises:
        UserError: it is no dict of tensors that have a row for each worker.
    """
    state = cast(object, descent.start(stack))
    states = cast("dict[str, object]", state) if isinstance(state, dict) else {"": state}
    for name, tensor in states.items():
        if not (isinstance(tensor, Tensor) and len(tensor.shape) and len(tensor) == len(stack)):
            shape = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            answer = f"start of {type(descent).__name__} returns {name or 'a'} {shape}"
            allowed = f"a dict of tensors, each with a row for each of {len(stack)} workers"
            raise UserError(f"optimizer: {answer}; allowed: {allowed}")
    return cast(State, states)


def _is_restart_due(memory: Memory, restart: Restart) -> bool:
    """Whether the memory is to be reset before this contribution."""
    return restart == "round" or (restart == "pass" and memory.new_pass)


def _check(memory: Memory, workers: int) -> None:
    sizes = {len(t) for t in memory.tensors.values() if t.dim()}
    if sizes - {workers}:
        raise ValueError(f"{workers} workers contribute with a memory of {sizes}")


@dataclass(frozen=True)
class Momentum(LocalOptimizer):
    """``m <- momentum m + g``; the direction is m, or with ``nesterov`` ``g + momentum m``.

    Args:
        momentum: decay factor of m per step.
        nesterov: whether to use Nesterov's direction.

    Examples:
        >>> m, g = Momentum(0.5), torch.ones(1, 2)
        >>> m.direct_(g, g, {"momentum": torch.ones(1, 2)}, network=None)
        >>> g
        tensor([[1.5000, 1.5000]])
    """

    momentum: float = setting(0.9, at_least=0.0, at_most=1.0)
    nesterov: bool = False

    def start(self, replicas: Tensor) -> State:
        """Zero momentum."""
        return {"momentum": torch.zeros_like(replicas)}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        del replicas, network
        momentum = state["momentum"].mul_(self.momentum).add_(gradients)
        if self.nesterov:
            gradients.add_(momentum, alpha=self.momentum)
        else:
            gradients.copy_(momentum)


@dataclass(frozen=True)
class Adam(LocalOptimizer):
    """The direction is ``m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)``.

    ``m <- beta1 m + (1 - beta1) g`` and ``v <- beta2 v + (1 - beta2) g * g``, in a worker's t-th
    step. A decay of the parameters is a part of g, as in ``torch.optim.Adam``.

    Args:
        beta1: decay factor of m per step.
        beta2: decay factor of v per step.
        epsilon: constant added to the root of v.
    """

    beta1: float = setting(0.9, at_least=0.0, at_most=1.0)
    beta2: float = setting(0.999, at_least=0.0, at_most=1.0)
    epsilon: float = setting(1e-8, above=0.0)

    def start(self, replicas: Tensor) -> State:
        """Zero means, and a step count of 0."""
        steps = torch.zeros(len(replicas), dtype=torch.float64, device=replicas.device)
        means = {name: torch.zeros_like(replicas) for name in ("mean", "square")}
        return {**means, "steps": steps}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        del replicas, network
        steps = state["steps"].add_(1.0)
        mean = state["mean"].lerp_(gradients, 1.0 - self.beta1)
        square = state["square"].mul_(self.beta2)
        square.addcmul_(gradients, gradients, value=1.0 - self.beta2)
        unbiased = [(1.0 - beta**steps).unsqueeze(1) for beta in (self.beta1, self.beta2)]
        root = (square / unbiased[1].to(square.dtype)).sqrt_().add_(self.epsilon)
        torch.div(mean / unbiased[0].to(mean.dtype), root, out=gradients)


@dataclass(frozen=True)
class AdamW(Adam):
    """The direction of `Adam`, plus ``decay theta``.

    Args:
        beta1: see `Adam`.
        beta2: see `Adam`.
        epsilon: see `Adam`.
        decay: weight decay, multiplied by the learning rate.
    """

    decay: float = setting(0.0, at_least=0.0)

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        super().direct_(gradients, replicas, state, network)
        gradients.add_(replicas, alpha=self.decay)


QUINTIC = 3.4445, -4.7750, 2.0315
"""Jordan's ``a x + b x^3 + c x^5``: five iterations bring singular values to about 1."""


@dataclass(frozen=True)
class Muon(LocalOptimizer):
    """``0.2 sqrt(max(rows, columns)) orthogonal((1 - momentum) g + momentum m)`` for weights.

    ``m <- momentum m + (1 - momentum) g``. The optimizer ``rest`` moves the biases.

    Args:
        momentum: decay factor of m per step.
        iterations: number of iterations of the polynomial.
        rest: optimizer of the biases.
        decay: weight decay of the weights, multiplied by the learning rate.
    """

    momentum: float = setting(0.95, at_least=0.0, at_most=1.0)
    iterations: int = setting(5, at_least=1, at_most=100)
    rest: AdamW = field(default_factory=AdamW)
    decay: float = setting(0.0, at_least=0.0)

    def start(self, replicas: Tensor) -> State:
        """Zero momentum, and the initial state of ``rest``."""
        return {"momentum": torch.zeros_like(replicas), **self.rest.start(replicas)}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        momentum = state["momentum"].lerp_(gradients, 1.0 - self.momentum)
        ahead = gradients.lerp(momentum, self.momentum)
        self.rest.direct_(gradients, replicas, state, network)
        stacks = gradients, ahead, replicas
        for weight, slope, theta in zip(*map(network.matrices, stacks), strict=True):
            size = 0.2 * max(slope.shape[1:]) ** 0.5
            weight.copy_(orthogonal(slope, self.iterations).mul_(size))
            if self.decay:
                weight.add_(theta, alpha=self.decay)


def orthogonal(matrices: Tensor, iterations: int) -> Tensor:
    """``U p(p(...(S))) V'`` for each of ``matrices [W, n, m]``, with ``U S V'`` of unit norm."""
    a, b, c = QUINTIC
    # The Gram matrix is as large as the number of rows, so tall matrices are transposed.
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / x.square().sum((1, 2), keepdim=True).sqrt().clamp(min=1e-7)
    for _ in range(iterations):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.transpose(1, 2) if tall else x).contiguous()


def initial_estimates(
    descent: NaturalGradient, network: HookableNetwork, workers: int
) -> dict[str, Tensor]:
    """Initial estimates of the workers for a module's layers.

    Raises:
        UserError: the module has no layer that can be preconditioned.
    """
    if not network.layers:
        lack = "none of this module can be hooked; allowed: Linear, Conv1d, Conv2d of one group"
        raise UserError(f"descent: natural gradient needs layers; {lack}")
    tensors = state_tensors([layer.start(descent) for layer in network.layers])
    return concat_rows([tensors] * workers)


def direction_of_module(
    descent: NaturalGradient,
    network: HookableNetwork,
    stack: Tensor,
    memory: Memory,
    minibatch: Minibatch,
    out: Tensor,
    rate: float,
) -> Tensor:
    """Compute one minibatch's directions; parameters outside affine layers get plain gradients.

    Args:
        descent: the preconditioners and the limit of a change.
        network: the module.
        stack: parameters ``[W, P]``, not changed.
        memory: the workers' memories, changed in place.
        minibatch: W minibatches.
        out: ``[W, P]``, overwritten.
        rate: learning rate of the coming step, which the limit of changes needs.

    Returns:
        The losses ``[W]``.
    """
    after: list[dict[str, Tensor]] = []

    def visit(worker: int) -> None:
        rows = rows_of(memory.tensors, slice(worker, worker + 1))
        sides = state_from_tensors(rows, len(network.layers))
        after.append(state_tensors(_precondition_row(descent, network, out[worker], sides, rate)))

    losses = network.watch_gradient(stack, *minibatch, out, visit)
    # Counts of calls are shared by all workers (`rows_of`), so these must have equal ones.
    if any(
        not torch.equal(tensors[name], t)
        for tensors in after
        for name, t in after[0].items()
        if not t.dim()
    ):
        raise UserError(
            "descent: a layer that some workers use and others do not; allowed: neither"
        )
    memory.tensors |= concat_rows(after)
    return losses


def _precondition_row(
    descent: NaturalGradient,
    network: HookableNetwork,
    row: Tensor,
    estimates: list[Sides],
    rate: float,
) -> list[Sides]:
    """Turn the gradient in a row ``[P]`` into the direction; returns the next estimates."""
    used = [place for place, layer in enumerate(network.layers) if layer.seen]
    gradients = [network.views_of(place, row) for place in used]
    layers, sides = [network.layers[place] for place in used], [estimates[place] for place in used]
    after = naturalise_(descent, layers, gradients, sides, [rate] * len(used), network.reduction)
    updates = dict(zip(used, after, strict=True))
    return [updates.get(place, sides) for place, sides in enumerate(estimates)]
