"""Algorithms whose every contribution and fold asks a device for the same operations.

Such operations can be recorded once, as a CUDA graph, and be played again. What the host would
decide in between (rates, weights of an average) is then read from a tensor that is filled before.

Shape letters: W contributions of a fold, P parameters, Q numbers of a fold.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from harness.algorithms.contract import Algorithm, Server


class Repeating(Algorithm):
    """An algorithm that can fold by numbers which lie in a tensor."""

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """Whether it does, as it is set: no memories, no operation that depends on what was."""
        ...

    @abstractmethod
    def numbers(self, server: Server, rate: float) -> tuple[float, ...]:
        """The Q numbers of the next fold, which the server counts from now on as done."""
        ...

    @abstractmethod
    def fold_from(
        self, server: Server, before: Tensor, contributions: Tensor, numbers: Tensor
    ) -> None:
        """What `fold` does, from the model ``before [P]`` into the server's, without counting it.

        Args:
            server: its vectors are changed in place; its model is written and not read.
            before: may be the server's model itself.
            contributions: ``[W, P]``, none of them stale in a round.
            numbers: ``[Q]``, in the model's precision.
        """
        ...
