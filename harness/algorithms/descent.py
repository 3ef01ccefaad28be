"""Local descent: a worker's steps between two folds, by any local optimizer.

Local descent: a worker's steps between two folds, and its memory of them. All algorithms with
local steps take them here, by whatever moves a replica: natural gradient, which needs to see every
layer, or a `LocalOptimizer`, which needs the gradient.

Rates here are of the **mean** gradient of a minibatch, as in paper 2; a schedule's rate is
used as it is: who wants it in proportion to the number of workers multiplies it.

Shape letters: W workers, P parameters.

What a local optimizer is: the direction a worker takes from a gradient, and what it remembers. Any
of them can make the local steps of any algorithm that has some (`local_descent`).

Stochastic gradient descent with momentum, as a local optimizer. Polyak 1964; Nesterov's as
Sutskever et al. 2013 write it, in the form of ``torch.optim.SGD``.

AdamW as a local optimizer. Loshchilov and Hutter (arXiv 1711.05101), algorithm 2.

Muon as a local optimizer: the momentum of every weight matrix, orthogonalised. Jordan et al. 2024
(kellerjordan.github.io/posts/muon); directions are scaled to the size of AdamW's as in Liu et al.
(arXiv 2502.16982), section 2.2, so that one rate serves weights and biases.

Natural gradient of anybody's module: its affine layers watched, the rest plain. What workers
remember has the names that it has of a network of affine layers alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from harness.algorithms.contract import Memory, concat_rows, rows_of
from harness.base.errors import UserError
from harness.base.settings import setting
from harness.natural_gradient import NaturalGradient
from harness.natural_gradient.joint import join, may_join, part, step_
from harness.natural_gradient.layer import Sides, state_from_tensors, state_tensors
from harness.natural_gradient.layer import part as part_of
from harness.natural_gradient.layer_hooks import HookableNetwork, naturalise_
from harness.networks.contract import LayeredNetwork, Minibatch, Network

State = dict[str, Tensor]
"""By name; every tensor has a row for each worker."""


class LocalOptimizer(ABC):
    """Turns gradients into directions; a dataclass of its kind can be named in a run file."""

    @abstractmethod
    def start(self, replicas: Tensor) -> State:
        """What is known before the first step.

        Args:
            replicas: ``[W, P]``, where workers start.

        Returns:
            Tensors by name, each with a row for each worker; executors keep and restore them.
        """
        ...

    @abstractmethod
    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """Make of gradients the directions against which replicas move, both ``[W, P]``.

        Args:
            gradients: of the mean loss; overwritten with the directions.
            replicas: where they were taken; left alone.
            state: changed in place.
            network: where its layers lie in a row.
        """
        ...


PLAIN = NaturalGradient(inputs=None, outputs=None)
"""Plain stochastic gradient descent; `plain` has a limit to its steps."""

AT_ONCE = 2**21
"""Elements of the widest level of all replicas, ``W B max(sizes)``, up to which a processor
takes them as one batch; more no longer lie in its caches from one layer to the next."""

Descent = NaturalGradient | LocalOptimizer
"""What can move a replica."""

Restart = Literal["never", "pass", "round"]
"""When a worker forgets its estimates: never, before each pass over the data, or each round."""

OPTIMIZER = "optimizer."
"""What a memory's names of an optimizer's state begin with."""


def local_steps(
    descent: Descent,
    network: Network,
    stack: Tensor,
    minibatches: Sequence[Minibatch],
    rate: float,
    memory: Memory,
    restart: Restart = "never",
) -> Tensor:
    """Move every row of ``stack [W, P]`` along its minibatches, with what workers remember.

    Args:
        descent: what moves it.
        network: what is trained.
        stack: parameters, moved in place.
        minibatches: one for each step, each with W minibatches.
        rate: of the mean gradient.
        memory: the workers', changed in place.
        restart: when they forget it: ``"never"``, before each ``"pass"`` over the data, or each
            ``"round"``.

    Returns:
        The losses ``[W]``, summed over all frames.
    """
    if direct := _select_direction(descent, network, stack, rate, memory, restart):
        losses, direction = stack.new_zeros(len(stack)), torch.empty_like(stack)
        for minibatch in minibatches:
            losses += direct(minibatch, direction)
            stack.sub_(direction, alpha=rate)
        return losses
    assert isinstance(descent, NaturalGradient)
    if not isinstance(network, LayeredNetwork):
        return _descend_plainly(descent, network, stack, minibatches, rate)
    known = restore_estimates(descent, network, stack, memory, restart)
    losses, known = descend(descent, network, stack, minibatches, rate, known)
    remember(memory, known)
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
    """The mean of the directions a frame that minibatches give where ``stack [W, P]`` is.

    Args:
        descent: what makes directions of gradients.
        network: what is trained.
        stack: parameters, left alone.
        minibatches: all seen from there.
        rate: that the step will have: natural gradient limits how far it goes.
        memory: the workers', changed in place.
        restart: when they forget it: ``"never"``, before each ``"pass"`` over the data, or each
            ``"round"``.

    Returns:
        ``[W, P]``, and the losses ``[W]``, summed over all frames.
    """
    if direct := _select_direction(descent, network, stack, rate, memory, restart):
        mean = torch.empty_like(stack)
        return mean, mean_over(direct, minibatches, mean)
    direction, total = torch.empty_like(stack), torch.zeros_like(stack)
    losses = stack.new_zeros(len(stack))
    assert isinstance(descent, NaturalGradient)
    if not isinstance(network, LayeredNetwork):
        _check_plain(descent)
        for minibatch in minibatches:
            losses += network.gradient(stack, *minibatch, direction)
            total.add_(direction, alpha=1.0 / (minibatch.targets.shape[1] * len(minibatches)))
        return total, losses
    known = restore_estimates(descent, network, stack, memory, restart)
    for minibatch in minibatches:
        frames = minibatch.targets.shape[1]
        loss, known = descent.direction(network, stack, minibatch, known, rate / frames, direction)
        total.add_(direction, alpha=1.0 / (frames * len(minibatches)))
        losses += loss
    remember(memory, known)
    return total, losses


def mean_over(
    direct: Callable[[Minibatch, Tensor], Tensor], minibatches: Sequence[Minibatch], out: Tensor
) -> Tensor:
    """The mean of what minibatches give, into ``out [W, P]``.

    Args:
        direct: puts what one gives into ``[W, P]`` and returns its losses ``[W]``.
        minibatches: all seen from one place.
        out: overwritten.

    Returns:
        The losses ``[W]``, summed over all frames.
    """
    one, losses = torch.empty_like(out), out.new_zeros(len(out))
    out.zero_()
    for minibatch in minibatches:
        losses += direct(minibatch, one)
        out.add_(one, alpha=1.0 / len(minibatches))
    return losses


def mean_gradient(network: Network, stack: Tensor, minibatch: Minibatch, out: Tensor) -> Tensor:
    """Each worker's gradient, mean over frames, into ``out [W, P]``; the summed losses ``[W]``."""
    losses = network.gradient(stack, *minibatch, out)
    out.div_(minibatch.targets.shape[1])
    return losses


def _select_direction(
    descent: Descent,
    network: Network,
    stack: Tensor,
    rate: float,
    memory: Memory,
    restart: Restart,
) -> Callable[[Minibatch, Tensor], Tensor] | None:
    """What puts the directions of a minibatch where ``stack`` is into ``out [W, P]``.

    It returns the losses ``[W]``. None where a network of affine layers alone, or plain
    gradients, have a way of their own.
    """
    if isinstance(descent, LocalOptimizer):
        state = _optimizer_state(descent, stack, memory, restart)
        return partial(_compute_directions, descent, network, stack, state)
    if descent == PLAIN or isinstance(network, LayeredNetwork):
        return None
    if not isinstance(network, HookableNetwork):
        return None
    if _is_restart_due(memory, restart) or not part_of(memory.tensors, "0"):
        memory.tensors |= initial_estimates(descent, network, len(stack))
    _check(memory, len(stack))
    return partial(direction_of_module, descent, network, stack, memory, rate)


def _descend_plainly(
    descent: NaturalGradient,
    network: Network,
    stack: Tensor,
    minibatches: Sequence[Minibatch],
    rate: float,
) -> Tensor:
    """`descend` along plain gradients, which is all that any network has."""
    _check_plain(descent)
    losses, slope = stack.new_zeros(len(stack)), torch.empty_like(stack)
    for minibatch in minibatches:
        losses += network.gradient(stack, *minibatch, slope)
        stack.sub_(slope, alpha=rate / minibatch.targets.shape[1])
    return losses


def _check_plain(descent: NaturalGradient) -> None:
    """Refuse what needs to see inside a network that shows nothing.

    Raises:
        UserError: the descent does.
    """
    if descent != PLAIN:
        raise UserError("descent: natural gradient needs a network whose layers can be seen")


def _compute_directions(
    descent: LocalOptimizer,
    network: Network,
    stack: Tensor,
    state: State,
    minibatch: Minibatch,
    out: Tensor,
) -> Tensor:
    """The directions of one minibatch into ``out [W, P]``; the summed losses ``[W]``."""
    losses = mean_gradient(network, stack, minibatch, out)
    descent.direct_(out, stack, state, network)
    return losses


def _optimizer_state(
    descent: LocalOptimizer, stack: Tensor, memory: Memory, restart: Restart
) -> State:
    """The workers' state, which is in their memory from now on."""
    names = [name for name in memory.tensors if name.startswith(OPTIMIZER)]
    if not names or _is_restart_due(memory, restart):
        fresh = descent.start(stack)
        memory.tensors |= {OPTIMIZER + name: tensor for name, tensor in fresh.items()}
        return fresh
    _check(memory, len(stack))
    return {name.removeprefix(OPTIMIZER): memory.tensors[name] for name in names}


def descend(
    descent: NaturalGradient,
    network: LayeredNetwork,
    stack: Tensor,
    minibatches: Sequence[Minibatch],
    rate: float,
    state: list[Sides],
) -> tuple[Tensor, list[Sides]]:
    """Move every row of ``stack [W, P]`` along its minibatches, ``theta -= rate * direction``.

    Returns:
        The losses ``[W]``, summed over all frames, and what the descent knows afterwards.
    """
    frames = minibatches[0].targets.shape[1]
    most = max(1, AT_ONCE // (frames * max(network.layout.sizes)))
    if stack.device.type == "cpu" and len(stack) > most:
        return _descend_in_chunks(descent, network, stack, minibatches, rate, state, most)
    losses = stack.new_zeros(len(stack))
    if may_join(descent, network.layout.sizes, len(stack), frames, stack.device):
        joint = join(state)
        for minibatch in minibatches:
            step = rate / minibatch.targets.shape[1]
            loss, joint = step_(descent, network, stack, minibatch, joint, step)
            losses += loss
        return losses, part(joint)
    room = torch.empty_like(stack)
    for minibatch in minibatches:
        step = rate / minibatch.targets.shape[1]
        loss, state = descent.descend_(network, stack, minibatch, state, step, room)
        losses += loss
    return losses, state


def _descend_in_chunks(
    descent: NaturalGradient,
    network: LayeredNetwork,
    stack: Tensor,
    minibatches: Sequence[Minibatch],
    rate: float,
    state: list[Sides],
    most: int,
) -> tuple[Tensor, list[Sides]]:
    """`descend`, for at most so many replicas at a time."""
    losses, known, after = list[Tensor](), state_tensors(state), list[dict[str, Tensor]]()
    for begin in range(0, len(stack), most):
        few = slice(begin, begin + most)
        theirs = [Minibatch(each.x[few], each.targets[few]) for each in minibatches]
        own = rows_of(known, few)
        loss, moved = descend(
            descent, network, stack[few], theirs, rate, state_from_tensors(own, len(state))
        )
        losses.append(loss)
        after.append(state_tensors(moved))
    return torch.cat(losses), state_from_tensors(concat_rows(after), len(state))


def restore_estimates(
    descent: NaturalGradient,
    network: LayeredNetwork,
    replicas: Tensor,
    memory: Memory,
    restart: Restart,
) -> list[Sides]:
    """The workers' estimates as a round begins, for replicas ``[W, P]``.

    Raises:
        ValueError: the memory is of another number of workers.
    """
    sizes = network.layout.sizes
    if _is_restart_due(memory, restart) or not part_of(memory.tensors, "0"):
        return descent.start(sizes, len(replicas), replicas.dtype, replicas.device)
    _check(memory, len(replicas))
    return state_from_tensors(memory.tensors, len(sizes) - 1)


def remember(memory: Memory, state: Sequence[Sides]) -> None:
    """Keep the workers' estimates for their next round."""
    memory.tensors |= state_tensors(state)


def _is_restart_due(memory: Memory, restart: Restart) -> bool:
    """Whether what is remembered is to be forgotten."""
    return restart == "round" or (restart == "pass" and memory.new_pass)


def _check(memory: Memory, workers: int) -> None:
    known = {len(t) for t in memory.tensors.values() if t.dim()}
    if known != {workers}:
        raise ValueError(f"{workers} workers contribute with a memory of {known}")


@dataclass(frozen=True)
class Momentum(LocalOptimizer):
    """``m <- momentum m + g``; the direction is m, or with ``nesterov`` ``g + momentum m``.

    Args:
        momentum: how much of m stays.
        nesterov: whether the direction looks one step ahead.
    """

    momentum: float = setting(0.9, at_least=0.0, at_most=1.0)
    nesterov: bool = False

    def start(self, replicas: Tensor) -> State:
        """A momentum of zero."""
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
class AdamW(LocalOptimizer):
    """The direction is ``m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay theta``.

    ``m <- beta1 m + (1 - beta1) g`` and ``v <- beta2 v + (1 - beta2) g * g``, in a worker's t-th
    step.

    Args:
        beta1, beta2: how much of both means stays.
        epsilon: added to the root.
        decay: of the weights, in proportion to the rate.
    """

    beta1: float = setting(0.9, at_least=0.0, at_most=1.0)
    beta2: float = setting(0.999, at_least=0.0, at_most=1.0)
    epsilon: float = setting(1e-8, above=0.0)
    decay: float = setting(0.0, at_least=0.0)

    def start(self, replicas: Tensor) -> State:
        """Means of zero, and no steps."""
        steps = torch.zeros(len(replicas), dtype=torch.float64, device=replicas.device)
        both = {name: torch.zeros_like(replicas) for name in ("mean", "square")}
        return {**both, "steps": steps}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        del network
        steps = state["steps"].add_(1.0)
        mean = state["mean"].lerp_(gradients, 1.0 - self.beta1)
        square = state["square"].mul_(self.beta2)
        square.addcmul_(gradients, gradients, value=1.0 - self.beta2)
        unbiased = [(1.0 - beta**steps).unsqueeze(1) for beta in (self.beta1, self.beta2)]
        root = (square / unbiased[1].to(square.dtype)).sqrt_().add_(self.epsilon)
        torch.div(mean / unbiased[0].to(mean.dtype), root, out=gradients)
        gradients.add_(replicas, alpha=self.decay)


QUINTIC = 3.4445, -4.7750, 2.0315
"""Jordan's ``a x + b x^3 + c x^5``: five times of it bring singular values to about 1."""


@dataclass(frozen=True)
class Muon(LocalOptimizer):
    """Weights go along ``0.2 sqrt(max(rows, columns)) orthogonal(g + momentum m)``.

    ``m <- momentum m + (1 - momentum) g``. Biases go by ``rest``.

    Args:
        momentum: how much of m stays.
        iterations: of the polynomial.
        rest: what moves the biases.
    """

    momentum: float = setting(0.95, at_least=0.0, at_most=1.0)
    iterations: int = setting(5, at_least=1, at_most=100)
    rest: AdamW = field(default_factory=AdamW)

    def start(self, replicas: Tensor) -> State:
        """A momentum of zero, and what ``rest`` begins with."""
        return {"momentum": torch.zeros_like(replicas), **self.rest.start(replicas)}

    def direct_(self, gradients: Tensor, replicas: Tensor, state: State, network: Network) -> None:
        """See `LocalOptimizer`."""
        momentum = state["momentum"].lerp_(gradients, 1.0 - self.momentum)
        ahead = gradients.lerp(momentum, self.momentum)
        self.rest.direct_(gradients, replicas, state, network)
        places = zip(*(network.matrices(stack) for stack in (gradients, ahead)), strict=True)
        for weight, slope in places:
            size = 0.2 * max(slope.shape[1:]) ** 0.5
            weight.copy_(orthogonal(slope, self.iterations).mul_(size))


def orthogonal(matrices: Tensor, iterations: int) -> Tensor:
    """``U p(p(...(S))) V'`` of each of ``matrices [W, n, m]`` ``U S V'``, divided by its norm."""
    a, b, c = QUINTIC
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
    """What workers know of a module's layers before their first minibatch.

    Raises:
        UserError: it has no layer that can be watched.
    """
    if not network.layers:
        told = "none of this module can be watched; allowed: Linear, Conv1d, Conv2d of one group"
        raise UserError(f"descent: natural gradient is of layers; {told}")
    one = state_tensors([layer.start(descent) for layer in network.layers])
    return concat_rows([one] * workers)


def direction_of_module(
    descent: NaturalGradient,
    network: HookableNetwork,
    stack: Tensor,
    memory: Memory,
    rate: float,
    minibatch: Minibatch,
    out: Tensor,
) -> Tensor:
    """The directions of one minibatch, of parameters outside the layers the plain gradient.

    Args:
        descent: how layers are preconditioned.
        network: the module.
        stack: parameters ``[W, P]``, left alone.
        memory: the workers', changed in place.
        rate: that the step will have: changes are limited.
        minibatch: W minibatches.
        out: ``[W, P]``, overwritten.

    Returns:
        The losses ``[W]``.
    """
    after: list[dict[str, Tensor]] = []

    def visit(worker: int) -> None:
        own = rows_of(memory.tensors, slice(worker, worker + 1))
        known = state_from_tensors(own, len(network.layers))
        after.append(state_tensors(_precondition_row(descent, network, out[worker], known, rate)))

    losses = network.watch_gradient(stack, *minibatch, out, visit)
    if any(
        not torch.equal(each[name], t)
        for each in after
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
    known: list[Sides],
    rate: float,
) -> list[Sides]:
    """Make the direction of the gradient in a row ``[P]``; what is known afterwards."""
    used = [place for place, layer in enumerate(network.layers) if layer.seen]
    places = [network.views_of(place, row) for place in used]
    made = [_join_bias(*each) for each in places]
    layers, sides = [network.layers[place] for place in used], [known[place] for place in used]
    after = naturalise_(descent, layers, made, sides, [rate] * len(used), network.reduction)
    for (weight, bias), direction in zip(places, made, strict=True):
        weight.flatten(1).copy_(direction[0, :, : weight[0].numel()])
        if bias is not None:
            bias.copy_(direction[0, :, -1])
    found = dict(zip(used, after, strict=True))
    return [found.get(place, sides) for place, sides in enumerate(known)]


def _join_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    """A copy ``[1, n, m]`` of a layer's gradient, a bias as its last column."""
    flat = weight.flatten(1)
    return (flat.clone() if bias is None else torch.cat([flat, bias.unsqueeze(1)], 1)).unsqueeze(0)
