"""Local descent: a worker's steps between two folds, and its memory of them.

All algorithms with local steps take them here, by whatever moves a replica: natural gradient,
which needs to see every layer, or a `LocalOptimizer`, which needs the gradient.

Rates here are of the **mean** gradient of a minibatch, as in paper 2; a schedule's rate is
used as it is: who wants it in proportion to the number of workers multiplies it.

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from harness.algorithms.contract import Memory
from harness.algorithms.local_optimizer import LocalOptimizer, State
from harness.algorithms.memories import rows_of, united
from harness.algorithms.natural_modules import direction_of_module, started
from harness.base.errors import UserError
from harness.natural_gradient import NaturalGradient
from harness.natural_gradient.joint import join, may_join, part, step_
from harness.natural_gradient.layer import Sides, state_from_tensors, state_tensors
from harness.natural_gradient.layer import part as part_of
from harness.natural_gradient.seen import WatchedNetwork
from harness.networks.contract import LayeredNetwork, Minibatch, Network

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
    if direct := _directing(descent, network, stack, rate, memory, restart):
        losses, direction = stack.new_zeros(len(stack)), torch.empty_like(stack)
        for minibatch in minibatches:
            losses += direct(minibatch, direction)
            stack.sub_(direction, alpha=rate)
        return losses
    assert isinstance(descent, NaturalGradient)
    if not isinstance(network, LayeredNetwork):
        return _plainly(descent, network, stack, minibatches, rate)
    known = recalled(descent, network, stack, memory, restart)
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
    if direct := _directing(descent, network, stack, rate, memory, restart):
        mean = torch.empty_like(stack)
        return mean, mean_over(direct, minibatches, mean)
    direction, total = torch.empty_like(stack), torch.zeros_like(stack)
    losses = stack.new_zeros(len(stack))
    assert isinstance(descent, NaturalGradient)
    if not isinstance(network, LayeredNetwork):
        _only_plain(descent)
        for minibatch in minibatches:
            losses += network.gradient(stack, *minibatch, direction)
            total.add_(direction, alpha=1.0 / (minibatch.targets.shape[1] * len(minibatches)))
        return total, losses
    known = recalled(descent, network, stack, memory, restart)
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


def _directing(
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
        return partial(_directed, descent, network, stack, state)
    if descent == PLAIN or isinstance(network, LayeredNetwork):
        return None
    if not isinstance(network, WatchedNetwork):
        return None
    if _begins(memory, restart) or not part_of(memory.tensors, "0"):
        memory.tensors |= started(descent, network, len(stack))
    _check(memory, len(stack))
    return partial(direction_of_module, descent, network, stack, memory, rate)


def _plainly(
    descent: NaturalGradient,
    network: Network,
    stack: Tensor,
    minibatches: Sequence[Minibatch],
    rate: float,
) -> Tensor:
    """`descend` along plain gradients, which is all that any network has."""
    _only_plain(descent)
    losses, slope = stack.new_zeros(len(stack)), torch.empty_like(stack)
    for minibatch in minibatches:
        losses += network.gradient(stack, *minibatch, slope)
        stack.sub_(slope, alpha=rate / minibatch.targets.shape[1])
    return losses


def _only_plain(descent: NaturalGradient) -> None:
    """Refuse what needs to see inside a network that shows nothing.

    Raises:
        UserError: the descent does.
    """
    if descent != PLAIN:
        raise UserError("descent: natural gradient needs a network whose layers can be seen")


def _directed(
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
    if not names or _begins(memory, restart):
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
        return _in_turns(descent, network, stack, minibatches, rate, state, most)
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


def _in_turns(
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
    return torch.cat(losses), state_from_tensors(united(after), len(state))


def recalled(
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
    if _begins(memory, restart) or not part_of(memory.tensors, "0"):
        return descent.start(sizes, len(replicas), replicas.dtype, replicas.device)
    _check(memory, len(replicas))
    return state_from_tensors(memory.tensors, len(sizes) - 1)


def remember(memory: Memory, state: Sequence[Sides]) -> None:
    """Keep the workers' estimates for their next round."""
    memory.tensors |= state_tensors(state)


def _begins(memory: Memory, restart: Restart) -> bool:
    """Whether what is remembered is to be forgotten."""
    return restart == "round" or (restart == "pass" and memory.new_pass)


def _check(memory: Memory, workers: int) -> None:
    known = {len(t) for t in memory.tensors.values() if t.dim()}
    if known != {workers}:
        raise ValueError(f"{workers} workers contribute with a memory of {known}")
