"""Local descent: a worker's steps between two folds, and its memory of them.

Rates here are of the **mean** gradient of a minibatch, as in paper 2; a schedule's rate is
used as it is: who wants it in proportion to the number of workers multiplies it.

Shape letters: W workers, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from harness.algorithms.contract import Memory
from harness.natural_gradient import NaturalGradient
from harness.natural_gradient.joint import join, may_join, part, step_
from harness.natural_gradient.layer import Sides, state_from_tensors, state_tensors
from harness.network import Minibatch, Network

PLAIN = NaturalGradient(inputs=None, outputs=None)
"""Plain stochastic gradient descent; `plain` has a limit to its steps."""

AT_ONCE = 2**21
"""Elements of the widest level of all replicas, ``W B max(sizes)``, up to which a processor
takes them as one batch; more no longer lie in its caches from one layer to the next."""

Restart = Literal["never", "pass", "round"]
"""When a worker forgets its estimates: never, before each pass over the data, or each round."""


def descend(
    descent: NaturalGradient,
    network: Network,
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
    network: Network,
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
        own = {name: t[few] if t.dim() else t for name, t in known.items()}
        loss, moved = descend(
            descent, network, stack[few], theirs, rate, state_from_tensors(own, len(state))
        )
        losses.append(loss)
        after.append(state_tensors(moved))
    united = {
        name: torch.cat([each[name] for each in after]) if first.dim() else first
        for name, first in after[0].items()
    }
    return torch.cat(losses), state_from_tensors(united, len(state))


def recalled(
    descent: NaturalGradient, network: Network, replicas: Tensor, memory: Memory, restart: Restart
) -> list[Sides]:
    """The workers' estimates as a round begins, for replicas ``[W, P]``.

    Raises:
        ValueError: the memory is of another number of workers.
    """
    sizes = network.layout.sizes
    begins = restart == "round" or (restart == "pass" and memory.new_pass)
    if begins or not memory.tensors:
        return descent.start(sizes, len(replicas), replicas.dtype, replicas.device)
    known = {len(t) for t in memory.tensors.values() if t.dim()}
    if known != {len(replicas)}:
        raise ValueError(f"{len(replicas)} workers contribute with a memory of {known}")
    return state_from_tensors(memory.tensors, len(sizes) - 1)


def remember(memory: Memory, state: Sequence[Sides]) -> None:
    """Keep the workers' estimates for their next round."""
    memory.tensors = state_tensors(state)
