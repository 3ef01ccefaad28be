"""Several folds in a row, with the reads between them.

A fold, an average and a read each pass over all parameters, and memory is slow: at 1.3 million
parameters three passes a fold cost a seventh of the gradient. Where parameter i depends on
nothing but what stands at i, folds in a row may be done for one block of parameters after the
other, which stays in the nearest cache (`blocks`). That changes the order in which memory is
visited and no bit of the result.

Shape letters: S slots, P parameters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from harness.algorithms.contract import Algorithm, Server
from harness.networks.contract import uploaded

SMALL = 2**16
"""Up to so many parameters lie in a processor's own cache: a lone fold saves nothing by blocks."""


class Turn(NamedTuple):
    """One fold, and who reads the version it makes.

    Args:
        entering: slots of the contributions.
        staleness: of each.
        readers: slots of the replicas that become the model.
        workers: whose each contribution is.
        weights: the minibatches of each.
    """

    entering: list[int]
    staleness: list[int]
    readers: list[int]
    workers: Sequence[int] = ()
    weights: Sequence[float] = ()


@dataclass(frozen=True)
class Turns:
    """Folds in their order, and the rows they take from and copy to.

    Args:
        contributions: ``[S, P]``; a slot's is not needed after its fold.
        replicas: ``[S, P]``; may be the same tensor: a model is then written where a
            contribution stood that has been folded.
        order: the folds.
    """

    contributions: Tensor
    replicas: Tensor
    order: Sequence[Turn]


class FoldsInARow(Algorithm):
    """An algorithm that knows a faster way to the bytes of ``one_by_one``."""

    @abstractmethod
    def fold_turns(self, server: Server, turns: Turns, rate: float) -> None:
        """All folds and reads of ``turns``."""
        ...


def fold_turns(algorithm: Algorithm, server: Server, turns: Turns, rate: float) -> None:
    """Execute folds in a row and the reads between them, the fastest way the algorithm has."""
    lone = len(turns.order) == 1 and server.model.numel() <= SMALL
    if isinstance(algorithm, FoldsInARow) and not lone:
        algorithm.fold_turns(server, turns, rate)
    else:
        one_by_one(algorithm, server, turns, rate)


def one_by_one(algorithm: Algorithm, server: Server, turns: Turns, rate: float) -> None:
    """What folds in a row mean: each in turn, and after it the copies of the model."""
    for entering, staleness, readers, workers, weights in turns.order:
        contributions = rows(turns.contributions, entering)
        algorithm.fold(server, contributions, staleness, rate, workers, weights)
        for slot in readers:
            turns.replicas[slot].copy_(server.model)


def rows(stack: Tensor, slots: Sequence[int]) -> Tensor:
    """The rows ``slots`` of a stack ``[S, P]``: a view where they lie together, else a copy."""
    if together(slots):
        return stack[slots[0] : slots[-1] + 1]
    return stack[uploaded(torch.tensor(slots), stack.device)]


def together(slots: Sequence[int]) -> bool:
    """Whether slots follow one another."""
    return list(slots) == list(range(slots[0], slots[0] + len(slots)))
